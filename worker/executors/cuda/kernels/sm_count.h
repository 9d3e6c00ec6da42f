// Forced into every flashinfer module that is compiled at run time (see build.py): a planner that
// asks the device for its number of SMs is told the size of the partition that it plans for.
//
// flashinfer sizes attention plans and persistent grids by cudaDevAttrMultiProcessorCount, which
// stays that of the whole device on a green context, and has no argument for it. The value lives in
// a small library that the worker loads first with global visibility (sm_count.c). The reference is
// weak, so a module also loads, and plans for the whole device, where that library is absent.
#pragma once
#ifdef __CUDACC__
#include <cuda_runtime.h>

extern "C" __attribute__((weak, visibility("default"))) int tandem_sm_count;

static inline cudaError_t tandem_device_get_attribute(int* value, cudaDeviceAttr attribute,
                                                      int device) {
  const cudaError_t status = cudaDeviceGetAttribute(value, attribute, device);
  if (status == cudaSuccess && attribute == cudaDevAttrMultiProcessorCount &&
      &tandem_sm_count != nullptr) {
    const int planned = __atomic_load_n(&tandem_sm_count, __ATOMIC_RELAXED);
    if (planned > 0 && planned < *value) *value = planned;
  }
  return status;
}

// Object-like, so that qualified uses and uses as a function pointer are renamed too.
#define cudaDeviceGetAttribute tandem_device_get_attribute
#endif
