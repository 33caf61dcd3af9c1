// SPDX-License-Identifier: MIT
// A library for LD_PRELOAD that never destroys Vulkan buffers, but frees their memory. Mesa's lavapipe of Debian 12
// (22.3.6) crashes if ggml (ggml_vk_preallocate_buffers) or eaglecpp destroys a buffer that was bound to a shader. The
// crash comes if the device lives on, because its queue releases the buffer a second time when another buffer replaces
// it. ggml also polls a fence until the fence is ready. If the CPU serves as the GPU, polling takes a core from the work
// that the fence waits for. So this library yields the core.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*GetProcAddr)(void *, const char *);

static GetProcAddr of_instance, of_device;
static int (*fence_status)(void *, uint64_t);

static void keep_buffer(void) {}

static int get_fence_status(void * device, uint64_t fence) {
    const int status = fence_status(device, fence);
    if (status != 0) sched_yield();
    return status;
}

static Function wrap(const char * name, Function found) {
    if (found && strcmp(name, "vkDestroyBuffer") == 0) return keep_buffer;
    if (found && strcmp(name, "vkGetFenceStatus") == 0) {
        fence_status = (int (*)(void *, uint64_t))found;
        return (Function)get_fence_status;
    }
    return found;
}

static Function get_device_proc_addr(void * device, const char * name) {
    return wrap(name, of_device(device, name));
}

// Replaces the function through which clients of the loader find all other functions.
Function vkGetInstanceProcAddr(void * instance, const char * name) {
    if (!of_instance) of_instance = (GetProcAddr)dlsym(RTLD_NEXT, "vkGetInstanceProcAddr");
    if (!of_instance) {
        void * loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (loader) of_instance = (GetProcAddr)dlsym(loader, "vkGetInstanceProcAddr");
    }
    Function found = of_instance ? of_instance(instance, name) : NULL;
    if (found && strcmp(name, "vkGetDeviceProcAddr") == 0) {
        of_device = (GetProcAddr)found;
        return (Function)get_device_proc_addr;
    }
    return wrap(name, found);
}
