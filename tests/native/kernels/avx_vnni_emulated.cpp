// SPDX-License-Identifier: MIT
// The shipped kernels for AVX2 with VNNI, for processors without VNNI. The missing instruction is emulated.
#include <immintrin.h>

// Adds four products of unsigned and signed bytes to each 32-bit sum, without saturation.
static inline __m256i emulated_dpbusd(__m256i sum, __m256i bytes, __m256i inputs) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi16(0xFF);
    const __m256i even =
        _mm256_mullo_epi16(_mm256_and_si256(bytes, low), _mm256_srai_epi16(_mm256_slli_epi16(inputs, 8), 8));
    const __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(bytes, 8), _mm256_srai_epi16(inputs, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(even, ones), _mm256_madd_epi16(odd, ones)));
}
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd

#define KERNEL_AVX2
#define KERNEL_AVX_VNNI
#define KERNEL_NS avx_vnni_emulated
#define KERNEL_PRODUCTS products_avx_vnni_emulated
#include "kernels/isa/products_only.inc"
