// SPDX-License-Identifier: MIT
// Selects the attention operations that the kernels of attention.inc compute. ggml computes all other attention
// operations.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <cstring>

namespace eaglecpp::kernels {

// Returns the block size of a cache of this type; 0 = our kernels do not support the type, so ggml computes the
// operation.
inline int attention_block(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32:
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16:
            return 1;
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_IQ4_NL:
            return 32;
        default:
            return 0;
    }
}

inline bool attention_type_fits(ggml_type type) {
    return attention_block(type) > 0;
}

inline bool attention_fits(const ggml_tensor * op) {
    if (op->op != GGML_OP_FLASH_ATTN_EXT || op->type != GGML_TYPE_F32) return false;
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    for (int i = 5; i < GGML_MAX_SRC; ++i) {
        if (op->src[i]) return false;  // a later version of ggml added this input
    }
    int32_t precision;
    std::memcpy(&precision, op->op_params + 3, sizeof precision);
    if (precision != GGML_PREC_DEFAULT && precision != GGML_PREC_F32) return false;
    if (!q || !k || !v || q->type != GGML_TYPE_F32 || !attention_type_fits(k->type) || !attention_type_fits(v->type)) {
        return false;
    }
    if (q->nb[0] != sizeof(float) || op->nb[0] != sizeof(float)) return false;
    if (k->nb[0] != ggml_type_size(k->type) || v->nb[0] != ggml_type_size(v->type)) return false;
    // ggml ignores the result's strides: it writes all heads of a row one after another, then the next row.
    if (op->nb[1] != op->ne[0] * sizeof(float) || !ggml_is_contiguous(op)) return false;
    if (k->ne[0] != q->ne[0] || v->ne[1] != k->ne[1] || v->ne[2] != k->ne[2] || v->ne[3] != k->ne[3]) return false;
    if (q->ne[2] % k->ne[2] != 0 || q->ne[3] % k->ne[3] != 0) return false;
    if (op->ne[0] != v->ne[0] || op->ne[1] != q->ne[2] || op->ne[2] != q->ne[1] || op->ne[3] != q->ne[3]) return false;
    if (k->ne[1] > INT32_MAX || q->ne[0] > 4096 || v->ne[0] > 4096) return false;
    if (mask) {
        if (mask->type != GGML_TYPE_F16 || mask->nb[0] != sizeof(uint16_t)) return false;
        if (mask->ne[0] < k->ne[1] || mask->ne[1] < q->ne[1]) return false;
    }
    if (sinks && (sinks->type != GGML_TYPE_F32 || sinks->nb[0] != sizeof(float) || sinks->ne[0] < q->ne[2]))
        return false;
    return true;
}

}  // namespace eaglecpp::kernels
