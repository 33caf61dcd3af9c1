// SPDX-License-Identifier: MIT
// Stands before CUDA's runtime in a process that is started with LD_PRELOAD, and counts what ggml's CUDA backend asks
// of it: how often the host waits, how many kernels it launches one by one, and what becomes of CUDA graphs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

struct counts {
    uint64_t waits, launches, graph_launches, captures, instantiations, updates;
};
static struct counts counts;

__attribute__((visibility("default"))) struct counts eaglecpp_cuda_counts(void) {
    return counts;
}

// Numbers and pointers, eight at most: passed on as they came in registers and on the stack, which the calling
// conventions of x86-64 and AArch64 allow.
typedef long word;
typedef word (*function)(word, word, word, word, word, word, word, word);

static function find(const char * name) {
    void * found = dlsym(RTLD_NEXT, name);
    static const char * const libraries[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
    for (unsigned i = 0; !found && i < sizeof(libraries) / sizeof(*libraries); ++i) {
        void * library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        if (library) found = dlsym(library, name);
    }
    if (!found) abort();
    return (function)found;
}

#define COUNT(name, counter)                                                                                           \
    __attribute__((visibility("default"))) word name(word a, word b, word c, word d, word e, word f, word g, word h) { \
        static function real;                                                                                          \
        if (!real) real = find(#name);                                                                                 \
        __atomic_add_fetch(&counts.counter, 1, __ATOMIC_RELAXED);                                                      \
        return real(a, b, c, d, e, f, g, h);                                                                           \
    }

COUNT(cudaStreamSynchronize, waits)
COUNT(cudaDeviceSynchronize, waits)
COUNT(cudaEventSynchronize, waits)
COUNT(cudaMemcpy, waits)
COUNT(__cudaLaunchKernel, launches)
COUNT(cudaLaunchKernel, launches)
COUNT(cudaLaunchKernelExC, launches)
COUNT(cudaGraphLaunch, graph_launches)
COUNT(cudaStreamBeginCapture, captures)
COUNT(cudaGraphInstantiate, instantiations)
COUNT(cudaGraphExecUpdate, updates)
