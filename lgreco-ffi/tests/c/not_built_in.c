// Tests that the library refuses kinds of devices for which it was not built.

#include "check.h"

int main(void) {
    lgreco_context *context = (lgreco_context *)&context;
    const char *const devices[] = {"cuda", "cuda:1", "wgpu"};
    for (int i = 0; i < 3; i++) {
        STATUS(LGRECO_NOT_BUILT_IN, lgreco_context_create(devices[i], &context));
        TEXT("the library was built without this kind of device", lgreco_message());
        CHECK(context == NULL);
    }
    lgreco_cuda *cuda = (lgreco_cuda *)(void *)&context;
    STATUS(LGRECO_NOT_BUILT_IN, lgreco_cuda_create(0, &cuda));
    TEXT("the library was built without this kind of device", lgreco_message());
    CHECK(cuda == NULL);
    STATUS(LGRECO_NOT_BUILT_IN, lgreco_cuda_create_on_stream(NULL, &cuda));
    return report("not_built_in");
}
