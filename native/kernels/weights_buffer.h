// SPDX-License-Identifier: MIT
// A buffer type of ggml's CPU backend that keeps weights in our packed form. The hook answers for the operations on
// them.
#pragma once

#include "kernels/ggml_abi.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// Weights that cannot be packed are refused by supports_op(); whoever allocates asks can_pack() first.
// `init`: ggml_backend_buffer_init. One per process, never freed.
abi::BufferType * make_weights_buffer_type(const KernelTable & table, ggml_backend_dev_t cpu, abi::BufferInit init);

// While `on`, weights that this thread writes come from mapped files and are packed later where that is possible.
void pack_later(bool on);
// Waits until the weights of this tensor, which is in our buffer type, are packed, helping with the packing.
void finish_packing(const ggml_tensor * weights);

}  // namespace eaglecpp::kernels
