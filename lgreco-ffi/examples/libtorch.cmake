# Shared by the programs with LibTorch.
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

# PyPI's LibTorch for Linux has CUDA, so its CMake package looks for a CUDA toolkit. It does not look if the target for the
# CUDA runtime already exists. A program that needs the runtime's headers must find them itself.
add_library(torch::cudart INTERFACE IMPORTED)
find_package(Torch REQUIRED)
find_package(lgreco 0.1 REQUIRED)

# Adds a program with one source file.
function(add_libtorch_program name source)
    add_executable(${name} ${source})
    target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
    target_include_directories(${name} SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
    target_link_libraries(${name} PRIVATE torch_cpu_library lgreco::lgreco)
endfunction()
