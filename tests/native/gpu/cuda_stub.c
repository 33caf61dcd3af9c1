// SPDX-License-Identifier: MIT
// Replaces libcuda, which is part of NVIDIA's driver. With this stub, ggml's CUDA backend links without a driver. Like
// NVIDIA's own stub, it answers every call with an error (cuda.h: CUDA_ERROR_STUB_LIBRARY).
#define STUB(name) \
    int name(void) { return 34; }

STUB(cuInit)
STUB(cuDriverGetVersion)
STUB(cuGetErrorString)
STUB(cuGetProcAddress)
STUB(cuGetProcAddress_v2)
STUB(cuDeviceGet)
STUB(cuDeviceGetAttribute)
STUB(cuMemAddressFree)
STUB(cuMemAddressReserve)
STUB(cuMemCreate)
STUB(cuMemGetAllocationGranularity)
STUB(cuMemMap)
STUB(cuMemRelease)
STUB(cuMemSetAccess)
STUB(cuMemUnmap)
