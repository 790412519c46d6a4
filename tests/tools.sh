# Finds and installs the tools that steps need. Sourced by tests/run.

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else return 127; fi
}
apt_install() { # PACKAGE...
    local package
    say "tests/run: installing $*"
    as_root apt-get update && {
        as_root apt-get install -y --no-install-recommends "$@" ||
            for package in "$@"; do as_root apt-get install -y --no-install-recommends "$package"; done
    }
}

# Installs the tools without which nothing can be tested, or ends the run.
compiler_and_linker() {
    local component
    command -v cargo >/dev/null ||
        die "no cargo found; install Rust from https://rustup.rs or your distribution, 1.89 or later"
    command -v cc >/dev/null || apt_install gcc libc6-dev >&2 ||
        die "could not install gcc; install a C compiler and linker, then run again"
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 && continue
        say "tests/run: cargo has no $component: installing it"
        rustup component add "$component" >&2 || die "could not install $component; install it, then run again"
    done
}

# Prints the name of a Chromium.
find_chromium() {
    local name
    for name in chromium chromium-browser google-chrome; do command -v "$name" && return; done
    return 1
}

has_vulkan() {
    [ "$(uname)" != Linux ] || [ -n "${VK_ICD_FILENAMES:-}" ] ||
        compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null || compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null
}

# Installs packages. The installation is a separate step, so that tests can be compiled at the same time. If a package
# cannot be installed, the steps that need the package report the failure.
tools() {
    local tool packages=()
    for tool in g++ cmake make pkg-config mpicxx mpirun python3 ip ${full:+clang valgrind llvm-symbolizer}; do
        command -v "$tool" >/dev/null && continue
        case $tool in
        mpicxx) packages+=(libopenmpi-dev) ;;
        mpirun) packages+=(openmpi-bin) ;;
        ip) packages+=(iproute2) ;; # for slow links
        llvm-symbolizer) packages+=(llvm) ;; # for names in the reports of sanitizers
        *) packages+=("$tool") ;;
        esac
    done
    has_vulkan || packages+=(mesa-vulkan-drivers)
    command -v spirv-val >/dev/null || packages+=(spirv-tools)
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    [ -z "$full" ] || find_chromium >/dev/null || packages+=(chromium fonts-dejavu-core)
    [ ${#packages[@]} = 0 ] || apt_install "${packages[@]}" || true
}

# Ends the step as skipped if one of these programs is missing.
need() { # KIND TOOL...
    local kind=$1 tool
    shift
    for tool in "$@"; do command -v "$tool" >/dev/null || skip "$kind" "no $tool"; done
}
need_vulkan() { has_vulkan || skip wgpu "no Vulkan driver and none could be installed"; }

# SwiftShader, a second Vulkan driver. This driver is one library in Debian's package of Chromium, a download of 32 MB.
swiftshader=target/swiftshader
has_swiftshader() { [ -e "$swiftshader/libvk_swiftshader.so" ]; }
need_swiftshader() {
    local folder=$PWD/$swiftshader
    has_swiftshader || {
        command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip wgpu "no apt-get to get SwiftShader with"
        mkdir -p "$folder/package"
        (cd "$folder/package" && rm -f ./*.deb && apt-get download -q chromium-common && dpkg-deb -x ./*.deb .) ||
            skip wgpu "chromium-common, which has SwiftShader, could not be downloaded"
        cp "$folder/package/usr/lib/chromium/"{libvk_swiftshader.so,vk_swiftshader_icd.json} "$folder" ||
            skip wgpu "chromium-common has no SwiftShader"
        rm -rf "$folder/package"
    }
}

# NVIDIA's run-time compiler from PyPI, which compiles the kernels of lgreco-cuda.
cuda_venv=target/cuda/venv
nvrtc_package=nvidia-cuda-nvrtc-cu12==12.9.86 # 180 MB on disk
nvrtc() { compgen -G "$PWD/$cuda_venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.12"; }
need_nvrtc() {
    nvrtc >/dev/null && return
    python3 -m venv "$cuda_venv" || skip nvrtc "no Python with venv"
    "$cuda_venv/bin/pip" install --quiet --disable-pip-version-check "$nvrtc_package" ||
        skip nvrtc "could not install $nvrtc_package"
}

# Prints why CUDA's kernels cannot run on the CPU here.
cuda_reason() {
    [ "$(uname -sm)" = "Linux x86_64" ] || { echo "kernels run on the CPU on x86-64 Linux alone"; return; }
    command -v g++ >/dev/null || echo "no g++"
}
need_cuda() {
    local reason
    reason=$(cuda_reason)
    [ -z "$reason" ] || skip cuda "$reason"
}

# Prints the kinds of checks that must not be skipped, because this machine supports them.
required() {
    local kinds=${LGRECO_REQUIRE:-}
    ! has_vulkan || kinds+=,wgpu
    [ -n "$(cuda_reason)" ] || kinds+=,cuda
    ! command -v spirv-val >/dev/null || kinds+=,spirv
    echo "$kinds"
}

# mdbook, which makes the documentation site. mdbook is compiled from source, which takes minutes on two cores.
mdbook=target/mdbook
mdbook_version=0.5.4
need_mdbook() {
    [ "$("$mdbook/bin/mdbook" --version 2>/dev/null)" = "mdbook v$mdbook_version" ] && return
    cargo install mdbook --locked --root "$mdbook" --version "$mdbook_version" --no-default-features --features search --force ||
        skip book "no mdbook $mdbook_version and it could not be installed"
}
