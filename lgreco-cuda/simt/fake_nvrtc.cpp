// An NVRTC for tests of which one is chosen: of version MAJOR.MINOR, for compute capabilities LEAST and 9.0. It
// compiles nothing.
#define CALL(name, parameters, ...)                                         \
    extern "C" __attribute__((visibility("default"))) int name parameters { \
        __VA_ARGS__;                                                        \
        return 0;                                                           \
    }

CALL(nvrtcVersion, (int* major, int* minor), *major = MAJOR; *minor = MINOR)
CALL(nvrtcGetNumSupportedArchs, (int* count), *count = 2)
CALL(nvrtcGetSupportedArchs, (int* numbers), numbers[0] = LEAST; numbers[1] = 90)
CALL(nvrtcCreateProgram, (), return 5)
CALL(nvrtcDestroyProgram, (), return 5)
CALL(nvrtcCompileProgram, (), return 5)
CALL(nvrtcGetProgramLogSize, (), return 5)
CALL(nvrtcGetProgramLog, (), return 5)
CALL(nvrtcGetPTXSize, (), return 5)
CALL(nvrtcGetPTX, (), return 5)
CALL(nvrtcGetCUBINSize, (), return 5)
CALL(nvrtcGetCUBIN, (), return 5)
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int) { return "a stand-in"; }
