// SPDX-License-Identifier: MIT
#include "ggml_hook/late_logits.h"

#include <cstdint>
#include <cstring>
#include <functional>

#include "ggml_hook/hook_state.h"

namespace eaglecpp::kernels {

void LateLogits::begin(int n_rows) {
    *this = {};
    n_rows_ = n_rows;
}

bool LateLogits::take(const ggml_tensor * t, void * to, size_t offset, size_t n_bytes) {
    const bool is_whole_batch = n_rows_ > 0 && ggml_nrows(t) == n_rows_ && offset == 0 && n_bytes == ggml_nbytes(t);
    if (!is_whole_batch || !ggml_is_contiguous(t)) return false;
    from_ = (const char *)t->data;
    to_ = (const char *)to;
    n_row_ = n_bytes / (size_t)n_rows_;
    // Every row of llama.cpp's buffer says which one it is: a graph may compute them in another order than the batch
    // has, and llama.cpp then swaps rows of its buffer when they are asked for.
    for (int32_t i = 0; i < n_rows_; ++i) std::memcpy((char *)to + (size_t)i * n_row_, &i, sizeof(i));
    return true;
}

const float * LateLogits::find(const float * copied) const {
    const std::less<const char *> is_before;
    const char * p = (const char *)copied;
    if (!from_ || is_before(p, to_) || !is_before(p, to_ + (size_t)n_rows_ * n_row_)) return copied;
    int32_t row;
    std::memcpy(&row, p, sizeof(row));
    return (const float *)(from_ + (size_t)row * n_row_);
}

// As ggml does it for a backend without a way of its own, but for logits that may stay where they are.
void get_or_leave(ggml_backend_t backend, const ggml_tensor * t, void * to, size_t offset, size_t n_bytes) {
    ggml_backend_synchronize(backend);
    LateLogits * late = std::strcmp(t->name, "result_output") == 0 ? scope.late_logits : nullptr;
    if (!late || !late->take(t, to, offset, n_bytes)) ggml_backend_tensor_get(t, to, offset, n_bytes);
}

}  // namespace eaglecpp::kernels
