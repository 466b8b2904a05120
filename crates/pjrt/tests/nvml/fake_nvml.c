/* A driver of three GPUs, of which the last tells nothing but its memory. */
#include <stdint.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };
#ifndef INIT
#define INIT OK
#endif
#define GPUS 3

static int begun = 0;
static unsigned samples[GPUS];
static const char *names[GPUS] = {"GPU-aa00-1", "GPU-aa11-2", "GPU-bb22-3"};

typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;

/* How often it is begun and not ended: for the test. */
int fake_begun(void) { return begun; }

int nvmlInit_v2(void) { if (INIT == OK) begun++; return INIT; }
int nvmlShutdown(void) { if (!begun) return UNINITIALIZED; begun--; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!begun) return UNINITIALIZED;
    *count = GPUS;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!begun) return UNINITIALIZED;
    if (index >= GPUS) return INVALID_ARGUMENT;
    *device = (void *)(uintptr_t)(index + 1);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) {
    if (!begun) return UNINITIALIZED;
    if (strcmp(name, "MIG-whole") != 0) return NOT_FOUND;
    *device = (void *)(uintptr_t)GPUS;
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *name, unsigned size) {
    const char *found = names[(uintptr_t)device - 1];
    if (strlen(found) >= size) return INVALID_ARGUMENT;
    strcpy(name, found);
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization *shares) {
    uintptr_t gpu = (uintptr_t)device - 1;
    if (!begun) return UNINITIALIZED;
    if (gpu == 2) return NOT_SUPPORTED;
    /* The second time the first GPU is lost, for once. */
    if (samples[gpu]++ == 1 && gpu == 0) return GPU_IS_LOST;
    shares->gpu = 70 + gpu;
    shares->memory = 30 + gpu;
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *info) {
    uintptr_t gpu = (uintptr_t)device - 1;
    if (!begun) return UNINITIALIZED;
    info->total = 80ull << 30;
    info->used = (10 + gpu) << 30;
    info->free = info->total - info->used;
    return OK;
}
#ifndef WITHOUT_POWER
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    if (!begun) return UNINITIALIZED;
    if ((uintptr_t)device == GPUS) return NOT_SUPPORTED;
    *milliwatts = 250500 + (unsigned)(uintptr_t)device;
    return OK;
}
#endif
