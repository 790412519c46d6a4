// Devices that this build of the library does not have.

#include "check.h"

int main(void) {
    lgreco_context *context = NULL, *other = (lgreco_context *)&other;
    OK(lgreco_context_create(NULL, &context));
    char reason[512];
    lgreco_context_options options = LGRECO_CONTEXT_OPTIONS_INIT;
    options.message = reason;
    options.message_capacity = sizeof reason;
    const lgreco_device devices[] = {LGRECO_DEVICE_CUDA, LGRECO_DEVICE_WGPU};
    for (int i = 0; i < 2; i++) {
        options.device = devices[i];
        STATUS(LGRECO_NOT_BUILT_IN, lgreco_context_create(&options, &other));
        TEXT("the library was built without this kind of device", reason);
        CHECK(other == NULL);
    }
    lgreco_cuda *cuda = (lgreco_cuda *)(void *)&other;
    STATUS(LGRECO_NOT_BUILT_IN, lgreco_cuda_create(context, 0, &cuda));
    TEXT("the library was built without this kind of device", lgreco_context_message(context));
    CHECK(cuda == NULL);
    STATUS(LGRECO_NOT_BUILT_IN, lgreco_cuda_create_on_stream(context, &cuda, NULL));
    OK(lgreco_context_destroy(&context));
    return report("not_built_in");
}
