// SPDX-License-Identifier: MIT
// Sixteen lanes, spelled the same on every instruction set. A file that defines one of KERNEL_AVX512, KERNEL_AVX2 (with
// KERNEL_AVX_VNNI or without) and KERNEL_NEON before it includes this gets that one, any other the portable form. All
// names live in a namespace per instruction set (KERNEL_NS), so that one program can contain them all.
//
// Every operation gives the same bits on every instruction set: float ones are correctly rounded and in a fixed order,
// integer ones exact. So a product has one result on all machines, and the portable form tests the others.
//
//   F32  16 floats      I32  16 integers
//   Bytes  64 bytes: 16 outputs x 4 inputs, output by output; what dot() multiplies with the same 4 inputs of one row
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(KERNEL_AVX512) || defined(KERNEL_AVX2)
#include <immintrin.h>
#elif defined(KERNEL_NEON)
#include <arm_neon.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define KERNEL_INLINE static __forceinline
#elif defined(KERNEL_AVX512) || defined(KERNEL_AVX2) || defined(KERNEL_NEON)
#define KERNEL_INLINE static inline __attribute__((always_inline))
#else
#define KERNEL_INLINE [[maybe_unused]] static inline
#endif
#if defined(__GNUC__) && (defined(KERNEL_AVX512) || defined(KERNEL_AVX2) || defined(KERNEL_NEON))
#define KERNEL_UNROLL _Pragma("GCC unroll 32")
#else
#define KERNEL_UNROLL
#endif

#if defined(__GNUC__)
#define KERNEL_INLINE_LAMBDA __attribute__((always_inline))
#else
#define KERNEL_INLINE_LAMBDA
#endif

namespace eaglecpp::kernels::KERNEL_NS {

constexpr int n_lanes = 16;

#if defined(KERNEL_AVX512)

struct F32 {
    __m512 v;
};
struct I32 {
    __m512i v;
};
struct Bytes {
    __m512i v;
};

KERNEL_INLINE __mmask16 first(int n) {
    return (__mmask16)((1u << n) - 1u);
}
KERNEL_INLINE F32 zero_f32() {
    return {_mm512_setzero_ps()};
}
KERNEL_INLINE F32 set1(float x) {
    return {_mm512_set1_ps(x)};
}
KERNEL_INLINE F32 load(const float * p) {
    return {_mm512_loadu_ps(p)};
}
KERNEL_INLINE F32 load_n(const float * p, int n) {
    return {_mm512_maskz_loadu_ps(first(n), p)};
}
KERNEL_INLINE void store(float * p, F32 x) {
    _mm512_storeu_ps(p, x.v);
}
KERNEL_INLINE void store_n(float * p, F32 x, int n) {
    _mm512_mask_storeu_ps(p, first(n), x.v);
}
KERNEL_INLINE F32 load_f16(const void * p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))};
}
KERNEL_INLINE F32 load_f16_n(const void * p, int n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
}
KERNEL_INLINE void store_f16(void * p, F32 x) {  // nearest, ties to even
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
KERNEL_INLINE F32 load_bf16(const void * p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16))};
}
KERNEL_INLINE F32 load_bf16_n(const void * p, int n) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
}
KERNEL_INLINE F32 load_u8(const uint8_t * p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)))};
}
// low and high halves of 16 bytes
KERNEL_INLINE F32 load_lo4(const uint8_t * p) {
    const __m128i x = _mm_and_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(15));
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x))};
}
KERNEL_INLINE F32 load_hi4(const uint8_t * p) {
    const __m128i x = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4), _mm_set1_epi8(15));
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x))};
}
KERNEL_INLINE F32 load_i8(const int8_t * p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)))};
}
KERNEL_INLINE F32 add(F32 a, F32 b) {
    return {_mm512_add_ps(a.v, b.v)};
}
KERNEL_INLINE F32 sub(F32 a, F32 b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
KERNEL_INLINE F32 mul(F32 a, F32 b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
KERNEL_INLINE F32 max(F32 a, F32 b) {
    return {_mm512_max_ps(a.v, b.v)};
}
KERNEL_INLINE F32 min(F32 a, F32 b) {
    return {_mm512_min_ps(a.v, b.v)};
}
KERNEL_INLINE F32 abs(F32 a) {
    return {_mm512_abs_ps(a.v)};
}
KERNEL_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}  // a * b + c
KERNEL_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}  // c - a * b
KERNEL_INLINE F32 div(F32 a, F32 b) {
    return {_mm512_div_ps(a.v, b.v)};
}
// a < b ? x : y
KERNEL_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
KERNEL_INLINE F32 to_f32(I32 a) {
    return {_mm512_cvtepi32_ps(a.v)};
}
KERNEL_INLINE I32 to_i32(F32 a) {
    return {_mm512_cvtps_epi32(a.v)};
}  // nearest, ties to even
KERNEL_INLINE float max_of(F32 a) {
    return _mm512_reduce_max_ps(a.v);
}

KERNEL_INLINE I32 zero_i32() {
    return {_mm512_setzero_si512()};
}
KERNEL_INLINE I32 set1(int32_t x) {
    return {_mm512_set1_epi32(x)};
}
KERNEL_INLINE I32 add(I32 a, I32 b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
KERNEL_INLINE int32_t sum(I32 a) {
    return _mm512_reduce_add_epi32(a.v);
}
KERNEL_INLINE void store_i8(int8_t * p, I32 a) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a.v));
}
// 2^n for -126 <= n <= 127
KERNEL_INLINE F32 exp2_int(I32 n) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}

KERNEL_INLINE Bytes load_bytes(const uint8_t * p) {
    return {_mm512_loadu_si512(p)};
}
template <int n>
KERNEL_INLINE Bytes shr_and(Bytes a, int mask) {
    const __m512i m = _mm512_set1_epi8((char)mask);
    return {_mm512_and_si512(n == 0 ? a.v : _mm512_srli_epi16(a.v, n), m)};
}
template <int n>
KERNEL_INLINE Bytes shl_and(Bytes a, int mask) {
    const __m512i m = _mm512_set1_epi8((char)mask);
    return {_mm512_and_si512(n == 0 ? a.v : _mm512_slli_epi16(a.v, n), m)};
}
KERNEL_INLINE Bytes either(Bytes a, Bytes b) {
    return {_mm512_or_si512(a.v, b.v)};
}
// table[a] for a < 16
KERNEL_INLINE Bytes lookup(const uint8_t * table, Bytes a) {
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), a.v)};
}

// The bias added to packed signed weights when they are stored, so that dot_signed() may read them as unsigned: its
// result is then too large by signed_bias times the sum of the inputs.
constexpr int signed_bias = 128;
// sums of 4 products: bytes of 0..127 by four signed inputs
KERNEL_INLINE I32 dot(I32 sum, Bytes w, int32_t inputs) {
    return {_mm512_dpbusd_epi32(sum.v, w.v, _mm512_set1_epi32(inputs))};
}
// the same for bytes stored with signed_bias added
KERNEL_INLINE I32 dot_signed(I32 sum, Bytes w, int32_t inputs) {
    return dot(sum, w, inputs);
}

KERNEL_INLINE void prefetch(const void * p) {  // into the second-level cache
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

#elif defined(KERNEL_AVX2)

struct F32 {
    __m256 lo, hi;
};
struct I32 {
    __m256i lo, hi;
};
struct Bytes {
    __m256i lo, hi;
};

KERNEL_INLINE __m256i first8(int n) {
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), i);
}
KERNEL_INLINE F32 zero_f32() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
KERNEL_INLINE F32 set1(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
KERNEL_INLINE F32 load(const float * p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
KERNEL_INLINE F32 load_n(const float * p, int n) {
    return {_mm256_maskload_ps(p, first8(n)), n > 8 ? _mm256_maskload_ps(p + 8, first8(n - 8)) : _mm256_setzero_ps()};
}
KERNEL_INLINE void store(float * p, F32 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
KERNEL_INLINE void store_n(float * p, F32 x, int n) {
    _mm256_maskstore_ps(p, first8(n), x.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, first8(n - 8), x.hi);
}
KERNEL_INLINE F32 load_f16(const void * p) {
    const __m128i * q = (const __m128i *)p;
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
KERNEL_INLINE void store_f16(void * p, F32 x) {  // nearest, ties to even
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
KERNEL_INLINE F32 load_f16_n(const void * p, int n) {
    uint16_t x[16] = {};
    std::memcpy(x, p, n * sizeof(uint16_t));
    return load_f16(x);
}
KERNEL_INLINE F32 load_bf16(const void * p) {
    const __m128i * q = (const __m128i *)p;
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}
KERNEL_INLINE F32 load_bf16_n(const void * p, int n) {
    uint16_t x[16] = {};
    std::memcpy(x, p, n * sizeof(uint16_t));
    return load_bf16(x);
}
KERNEL_INLINE F32 widen_u8(__m128i x) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
KERNEL_INLINE F32 load_u8(const uint8_t * p) {
    return widen_u8(_mm_loadu_si128((const __m128i *)p));
}
KERNEL_INLINE F32 load_lo4(const uint8_t * p) {
    return widen_u8(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(15)));
}
KERNEL_INLINE F32 load_hi4(const uint8_t * p) {
    return widen_u8(_mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 4), _mm_set1_epi8(15)));
}
KERNEL_INLINE F32 load_i8(const int8_t * p) {
    const __m128i x = _mm_loadu_si128((const __m128i *)p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
KERNEL_INLINE F32 add(F32 a, F32 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
KERNEL_INLINE F32 sub(F32 a, F32 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
KERNEL_INLINE F32 mul(F32 a, F32 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
KERNEL_INLINE F32 max(F32 a, F32 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
KERNEL_INLINE F32 min(F32 a, F32 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
KERNEL_INLINE F32 abs(F32 a) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
KERNEL_INLINE F32 fma(F32 a, F32 b, F32 c) {  // a * b + c
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
KERNEL_INLINE F32 fnma(F32 a, F32 b, F32 c) {  // c - a * b
    return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
KERNEL_INLINE F32 div(F32 a, F32 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
KERNEL_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
KERNEL_INLINE F32 to_f32(I32 a) {
    return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
KERNEL_INLINE I32 to_i32(F32 a) {
    return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
KERNEL_INLINE float max_of(F32 a) {
    const __m256 m = _mm256_max_ps(a.lo, a.hi);
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

KERNEL_INLINE I32 zero_i32() {
    return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
KERNEL_INLINE I32 set1(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
KERNEL_INLINE I32 add(I32 a, I32 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
KERNEL_INLINE int32_t sum(I32 a) {
    const __m256i s = _mm256_add_epi32(a.lo, a.hi);
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    x = _mm_add_epi32(x, _mm_srli_si128(x, 8));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_srli_si128(x, 4)));
}
KERNEL_INLINE void store_i8(int8_t * p, I32 a) {
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
    const __m128i b = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)p, b);
}
KERNEL_INLINE F32 exp2_int(I32 n) {
    const __m256i b = _mm256_set1_epi32(127);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, b), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, b), 23))};
}

KERNEL_INLINE Bytes load_bytes(const uint8_t * p) {
    return {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}
template <int n>
KERNEL_INLINE Bytes shr_and(Bytes a, int mask) {
    const __m256i m = _mm256_set1_epi8((char)mask);
    return {_mm256_and_si256(_mm256_srli_epi16(a.lo, n), m), _mm256_and_si256(_mm256_srli_epi16(a.hi, n), m)};
}
template <int n>
KERNEL_INLINE Bytes shl_and(Bytes a, int mask) {
    const __m256i m = _mm256_set1_epi8((char)mask);
    return {_mm256_and_si256(_mm256_slli_epi16(a.lo, n), m), _mm256_and_si256(_mm256_slli_epi16(a.hi, n), m)};
}
KERNEL_INLINE Bytes either(Bytes a, Bytes b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
KERNEL_INLINE Bytes lookup(const uint8_t * table, Bytes a) {
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return {_mm256_shuffle_epi8(t, a.lo), _mm256_shuffle_epi8(t, a.hi)};
}

#if defined(KERNEL_AVX_VNNI)
constexpr int signed_bias = 128;
KERNEL_INLINE I32 dot(I32 sum, Bytes w, int32_t inputs) {
    const __m256i x = _mm256_set1_epi32(inputs);
    return {_mm256_dpbusd_avx_epi32(sum.lo, w.lo, x), _mm256_dpbusd_avx_epi32(sum.hi, w.hi, x)};
}
KERNEL_INLINE I32 dot_signed(I32 sum, Bytes w, int32_t inputs) {
    return dot(sum, w, inputs);
}
#else
// Without VNNI a group of four products takes two multiplications: one into pairs of 16 bits, one that only adds the
// pairs up. Weights of few bits leave room for the pairs of several groups in 16 bits, which are then added up once.
#define KERNEL_SHORT_SUMS
struct Shorts {
    __m256i lo, hi;
};
KERNEL_INLINE Shorts short_dot(Bytes w, int32_t inputs) {
    const __m256i x = _mm256_set1_epi32(inputs);
    return {_mm256_maddubs_epi16(w.lo, x), _mm256_maddubs_epi16(w.hi, x)};
}
KERNEL_INLINE Shorts add(Shorts a, Shorts b) {
    return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
KERNEL_INLINE I32 add(I32 sum, Shorts a) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, ones)),
            _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, ones))};
}
constexpr int signed_bias = 0;
// |w| <= 127 and |inputs| <= 127, so pairs of products stay within 16 bits
KERNEL_INLINE __m256i dot8(__m256i sum, __m256i w, __m256i x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
KERNEL_INLINE I32 dot(I32 sum, Bytes w, int32_t inputs) {
    const __m256i x = _mm256_set1_epi32(inputs);
    return {dot8(sum.lo, w.lo, x), dot8(sum.hi, w.hi, x)};
}
// |-128| is 128 when read unsigned: 2 * 128 * 127 still fits
KERNEL_INLINE I32 dot_signed(I32 sum, Bytes w, int32_t inputs) {
    const __m256i x = _mm256_set1_epi32(inputs);
    return {dot8(sum.lo, _mm256_abs_epi8(w.lo), _mm256_sign_epi8(x, w.lo)),
            dot8(sum.hi, _mm256_abs_epi8(w.hi), _mm256_sign_epi8(x, w.hi))};
}
#endif

KERNEL_INLINE void prefetch(const void * p) {  // into the second-level cache
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

#else

#if defined(KERNEL_NEON)

struct F32 {
    float32x4_t v[4];
};
struct I32 {
    int32x4_t v[4];
};
struct Bytes {
    uint8x16_t v[4];
};
#define KERNEL_EACH KERNEL_UNROLL for (int i = 0; i < 4; ++i)

KERNEL_INLINE F32 set1(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {{v, v, v, v}};
}
KERNEL_INLINE F32 zero_f32() {
    return set1(0.0f);
}
KERNEL_INLINE F32 load(const float * p) {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
KERNEL_INLINE void store(float * p, F32 x) {
    KERNEL_EACH vst1q_f32(p + 4 * i, x.v[i]);
}
KERNEL_INLINE F32 load_n(const float * p, int n) {
    float x[16] = {};
    std::memcpy(x, p, n * sizeof(float));
    return load(x);
}
KERNEL_INLINE void store_n(float * p, F32 x, int n) {
    float y[16];
    store(y, x);
    std::memcpy(p, y, n * sizeof(float));
}
KERNEL_INLINE F32 load_f16(const void * p) {
    F32 r;
    KERNEL_EACH r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + 4 * i)));
    return r;
}
KERNEL_INLINE void store_f16(void * p, F32 x) {  // nearest, ties to even
    KERNEL_EACH vst1_u16((uint16_t *)p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
KERNEL_INLINE F32 load_bf16(const void * p) {
    F32 r;
    KERNEL_EACH r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)p + 4 * i), 16));
    return r;
}
KERNEL_INLINE I32 widen(int16x8_t a, int16x8_t b) {
    return {{vmovl_s16(vget_low_s16(a)), vmovl_s16(vget_high_s16(a)), vmovl_s16(vget_low_s16(b)),
             vmovl_s16(vget_high_s16(b))}};
}
KERNEL_INLINE F32 to_f32(I32 a) {
    F32 r;
    KERNEL_EACH r.v[i] = vcvtq_f32_s32(a.v[i]);
    return r;
}
KERNEL_INLINE F32 load_u8(const uint8_t * p) {
    const uint8x16_t x = vld1q_u8(p);
    return to_f32(
        widen(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(x)))));
}
KERNEL_INLINE F32 load_i8(const int8_t * p) {
    const int8x16_t x = vld1q_s8(p);
    return to_f32(widen(vmovl_s8(vget_low_s8(x)), vmovl_s8(vget_high_s8(x))));
}
#define KERNEL_F32(name, f)                     \
    KERNEL_INLINE F32 name(F32 a, F32 b) {      \
        F32 r;                                  \
        KERNEL_EACH r.v[i] = f(a.v[i], b.v[i]); \
        return r;                               \
    }
KERNEL_F32(add, vaddq_f32)
KERNEL_F32(sub, vsubq_f32)
KERNEL_F32(mul, vmulq_f32)
KERNEL_F32(max, vmaxq_f32)
KERNEL_F32(min, vminq_f32)
KERNEL_F32(div, vdivq_f32)
#undef KERNEL_F32
KERNEL_INLINE F32 abs(F32 a) {
    KERNEL_EACH a.v[i] = vabsq_f32(a.v[i]);
    return a;
}
KERNEL_INLINE F32 fma(F32 a, F32 b, F32 c) {
    KERNEL_EACH c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}
KERNEL_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    KERNEL_EACH c.v[i] = vfmsq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}
KERNEL_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    KERNEL_EACH x.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]);
    return x;
}
KERNEL_INLINE I32 to_i32(F32 a) {
    I32 r;
    KERNEL_EACH r.v[i] = vcvtnq_s32_f32(a.v[i]);
    return r;
}
KERNEL_INLINE float max_of(F32 a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3])));
}
KERNEL_INLINE I32 set1(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return {{v, v, v, v}};
}
KERNEL_INLINE I32 zero_i32() {
    return set1((int32_t)0);
}
KERNEL_INLINE I32 add(I32 a, I32 b) {
    KERNEL_EACH a.v[i] = vaddq_s32(a.v[i], b.v[i]);
    return a;
}
KERNEL_INLINE int32_t sum(I32 a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
KERNEL_INLINE void store_i8(int8_t * p, I32 a) {
    const int16x8_t lo = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1]));
    const int16x8_t hi = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(lo), vqmovn_s16(hi)));
}
KERNEL_INLINE F32 exp2_int(I32 n) {
    F32 r;
    KERNEL_EACH r.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v[i], vdupq_n_s32(127)), 23));
    return r;
}
KERNEL_INLINE Bytes load_bytes(const uint8_t * p) {
    return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
template <int n>
KERNEL_INLINE Bytes shr_and(Bytes a, int mask) {
    KERNEL_EACH a.v[i] = vandq_u8(vshlq_u8(a.v[i], vdupq_n_s8(-n)), vdupq_n_u8((uint8_t)mask));
    return a;
}
template <int n>
KERNEL_INLINE Bytes shl_and(Bytes a, int mask) {
    KERNEL_EACH a.v[i] = vandq_u8(vshlq_u8(a.v[i], vdupq_n_s8(n)), vdupq_n_u8((uint8_t)mask));
    return a;
}
KERNEL_INLINE Bytes either(Bytes a, Bytes b) {
    KERNEL_EACH a.v[i] = vorrq_u8(a.v[i], b.v[i]);
    return a;
}
KERNEL_INLINE Bytes lookup(const uint8_t * table, Bytes a) {
    const uint8x16_t t = vld1q_u8(table);
    KERNEL_EACH a.v[i] = vqtbl1q_u8(t, a.v[i]);
    return a;
}
constexpr int signed_bias = 0;
KERNEL_INLINE I32 dot(I32 sum, Bytes w, int32_t inputs) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(inputs));
    KERNEL_EACH sum.v[i] = vdotq_s32(sum.v[i], vreinterpretq_s8_u8(w.v[i]), x);
    return sum;
}
KERNEL_INLINE I32 dot_signed(I32 sum, Bytes w, int32_t inputs) {
    return dot(sum, w, inputs);
}
KERNEL_INLINE void prefetch(const void * p) {  // into the second-level cache
    __builtin_prefetch(p, 0, 2);
}
#undef KERNEL_EACH

#else  // portable

struct F32 {
    float v[16];
};
struct I32 {
    int32_t v[16];
};
struct Bytes {
    uint8_t v[64];
};
#define KERNEL_EACH for (int i = 0; i < 16; ++i)

KERNEL_INLINE F32 set1(float x) {
    F32 r;
    KERNEL_EACH r.v[i] = x;
    return r;
}
KERNEL_INLINE F32 zero_f32() {
    return set1(0.0f);
}
KERNEL_INLINE F32 load(const float * p) {
    F32 r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
KERNEL_INLINE void store(float * p, F32 x) {
    std::memcpy(p, x.v, sizeof x.v);
}
KERNEL_INLINE F32 load_n(const float * p, int n) {
    F32 r = {};
    std::memcpy(r.v, p, n * sizeof(float));
    return r;
}
KERNEL_INLINE void store_n(float * p, F32 x, int n) {
    std::memcpy(p, x.v, n * sizeof(float));
}
KERNEL_INLINE float from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const int e = (h >> 10) & 31;
    const uint32_t m = h & 1023;
    float x;
    if (e == 0) {
        x = std::ldexp((float)m, -24);
    } else {
        const uint32_t bits = ((uint32_t)(e == 31 ? 255 : e + 112) << 23) | (m << 13);
        std::memcpy(&x, &bits, 4);
    }
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits |= sign;
    std::memcpy(&x, &bits, 4);
    return x;
}
KERNEL_INLINE F32 load_f16(const void * p) {
    uint16_t h[16];
    std::memcpy(h, p, sizeof h);
    F32 r;
    KERNEL_EACH r.v[i] = from_f16(h[i]);
    return r;
}
KERNEL_INLINE uint16_t to_f16(float x) {  // nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) return (uint16_t)(sign | (uint32_t)std::nearbyintf(std::ldexp(std::fabs(x), 24)));
    return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}
KERNEL_INLINE void store_f16(void * p, F32 x) {
    uint16_t h[16];
    KERNEL_EACH h[i] = to_f16(x.v[i]);
    std::memcpy(p, h, sizeof h);
}
KERNEL_INLINE F32 load_bf16(const void * p) {
    uint16_t h[16];
    std::memcpy(h, p, sizeof h);
    F32 r;
    KERNEL_EACH {
        const uint32_t bits = (uint32_t)h[i] << 16;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
KERNEL_INLINE F32 load_u8(const uint8_t * p) {
    F32 r;
    KERNEL_EACH r.v[i] = (float)p[i];
    return r;
}
KERNEL_INLINE F32 load_i8(const int8_t * p) {
    F32 r;
    KERNEL_EACH r.v[i] = (float)p[i];
    return r;
}
KERNEL_INLINE F32 add(F32 a, F32 b) {
    KERNEL_EACH a.v[i] += b.v[i];
    return a;
}
KERNEL_INLINE F32 sub(F32 a, F32 b) {
    KERNEL_EACH a.v[i] -= b.v[i];
    return a;
}
KERNEL_INLINE F32 mul(F32 a, F32 b) {
    KERNEL_EACH a.v[i] *= b.v[i];
    return a;
}
KERNEL_INLINE F32 max(F32 a, F32 b) {
    KERNEL_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
KERNEL_INLINE F32 min(F32 a, F32 b) {
    KERNEL_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}
KERNEL_INLINE F32 abs(F32 a) {
    KERNEL_EACH a.v[i] = std::fabs(a.v[i]);
    return a;
}
KERNEL_INLINE F32 fma(F32 a, F32 b, F32 c) {
    KERNEL_EACH c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return c;
}
KERNEL_INLINE F32 fnma(F32 a, F32 b, F32 c) {
    KERNEL_EACH c.v[i] = std::fma(-a.v[i], b.v[i], c.v[i]);
    return c;
}
KERNEL_INLINE F32 div(F32 a, F32 b) {
    KERNEL_EACH a.v[i] /= b.v[i];
    return a;
}
KERNEL_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    KERNEL_EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return x;
}
KERNEL_INLINE F32 to_f32(I32 a) {
    F32 r;
    KERNEL_EACH r.v[i] = (float)a.v[i];
    return r;
}
KERNEL_INLINE I32 to_i32(F32 a) {
    I32 r;
    KERNEL_EACH r.v[i] = (int32_t)std::nearbyintf(a.v[i]);
    return r;
}
KERNEL_INLINE float max_of(F32 a) {
    float m = a.v[0];
    KERNEL_EACH m = m > a.v[i] ? m : a.v[i];
    return m;
}
KERNEL_INLINE I32 set1(int32_t x) {
    I32 r;
    KERNEL_EACH r.v[i] = x;
    return r;
}
KERNEL_INLINE I32 zero_i32() {
    return set1((int32_t)0);
}
KERNEL_INLINE I32 add(I32 a, I32 b) {
    KERNEL_EACH a.v[i] += b.v[i];
    return a;
}
KERNEL_INLINE int32_t sum(I32 a) {
    int32_t s = 0;
    KERNEL_EACH s += a.v[i];
    return s;
}
KERNEL_INLINE void store_i8(int8_t * p, I32 a) {
    KERNEL_EACH p[i] = (int8_t)(a.v[i] > 127 ? 127 : a.v[i] < -128 ? -128 : a.v[i]);
}
KERNEL_INLINE F32 exp2_int(I32 n) {
    F32 r;
    KERNEL_EACH {
        const uint32_t bits = (uint32_t)(n.v[i] + 127) << 23;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
KERNEL_INLINE Bytes load_bytes(const uint8_t * p) {
    Bytes r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
template <int n>
KERNEL_INLINE Bytes shr_and(Bytes a, int mask) {
    for (uint8_t & x : a.v) x = (uint8_t)((x >> n) & mask);
    return a;
}
template <int n>
KERNEL_INLINE Bytes shl_and(Bytes a, int mask) {
    for (uint8_t & x : a.v) x = (uint8_t)((x << n) & mask);
    return a;
}
KERNEL_INLINE Bytes either(Bytes a, Bytes b) {
    for (int i = 0; i < 64; ++i) a.v[i] |= b.v[i];
    return a;
}
KERNEL_INLINE Bytes lookup(const uint8_t * table, Bytes a) {
    for (uint8_t & x : a.v) x = table[x];
    return a;
}
constexpr int signed_bias = 0;
KERNEL_INLINE I32 dot(I32 sum, Bytes w, int32_t inputs) {
    int8_t x[4];
    std::memcpy(x, &inputs, 4);
    KERNEL_EACH {
        for (int k = 0; k < 4; ++k) sum.v[i] += (int8_t)w.v[4 * i + k] * x[k];
    }
    return sum;
}
KERNEL_INLINE I32 dot_signed(I32 sum, Bytes w, int32_t inputs) {
    return dot(sum, w, inputs);
}
KERNEL_INLINE void prefetch(const void *) {}
#undef KERNEL_EACH

#endif

KERNEL_INLINE F32 load_f16_n(const void * p, int n) {
    uint16_t x[16] = {};
    std::memcpy(x, p, n * sizeof(uint16_t));
    return load_f16(x);
}
KERNEL_INLINE F32 load_bf16_n(const void * p, int n) {
    uint16_t x[16] = {};
    std::memcpy(x, p, n * sizeof(uint16_t));
    return load_bf16(x);
}
KERNEL_INLINE F32 load_lo4(const uint8_t * p) {
    uint8_t x[16];
    for (int i = 0; i < 16; ++i) x[i] = p[i] & 15;
    return load_u8(x);
}
KERNEL_INLINE F32 load_hi4(const uint8_t * p) {
    uint8_t x[16];
    for (int i = 0; i < 16; ++i) x[i] = p[i] >> 4;
    return load_u8(x);
}

#endif

// Sum of all lanes, always as a balanced tree over lanes 8, 4, 2 and 1 apart.
KERNEL_INLINE float sum(F32 a) {
#if defined(KERNEL_AVX512)
    const __m256 x =
        _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)));
#elif defined(KERNEL_AVX2)
    const __m256 x = _mm256_add_ps(a.lo, a.hi);
#endif
#if defined(KERNEL_AVX512) || defined(KERNEL_AVX2)
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
#else
    float x[16];
    store(x, a);
    for (int step = 8; step > 0; step /= 2) {
        for (int i = 0; i < step; ++i) x[i] = x[i] + x[i + step];
    }
    return x[0];
#endif
}

// out[0..4) = sums of a, b, c and d, each by the same tree as sum()
KERNEL_INLINE void store_sums(float * out, F32 a, F32 b, F32 c, F32 d) {
#if defined(KERNEL_AVX512)
    // lanes 8 apart; an addition's operands may change places
    const __m512 ab = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, a.v, b.v), _mm512_shuffle_f32x4(a.v, b.v, 0x4E));
    const __m512 cd = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, c.v, d.v), _mm512_shuffle_f32x4(c.v, d.v, 0x4E));
    __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0x4E));
    x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xB1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, x)));
#elif defined(KERNEL_AVX2)
    const __m256 a8 = _mm256_add_ps(a.lo, a.hi), b8 = _mm256_add_ps(b.lo, b.hi);
    const __m256 c8 = _mm256_add_ps(c.lo, c.hi), d8 = _mm256_add_ps(d.lo, d.hi);
    const __m256 ab = _mm256_add_ps(_mm256_blend_ps(a8, b8, 0xF0), _mm256_permute2f128_ps(a8, b8, 0x21));
    const __m256 cd = _mm256_add_ps(_mm256_blend_ps(c8, d8, 0xF0), _mm256_permute2f128_ps(c8, d8, 0x21));
    // a c in the low half, b d in the high one
    const __m256 x = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    const __m256 y = _mm256_add_ps(x, _mm256_permute_ps(x, 0xB1));
    _mm_storeu_ps(out, _mm_blend_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1), 0xA));
#elif defined(KERNEL_NEON)
    float32x4_t s[4];
    const F32 * all[4] = {&a, &b, &c, &d};
    KERNEL_UNROLL for (int i = 0; i < 4; ++i) {
        const float32x4_t * v = all[i]->v;
        s[i] = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    }
    // columns: lanes 2 apart, then neighbours
    const float32x4x2_t ab = vzipq_f32(s[0], s[1]), cd = vzipq_f32(s[2], s[3]);
    const float32x4_t c0 = vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0]));
    const float32x4_t c1 = vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0]));
    const float32x4_t c2 = vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1]));
    const float32x4_t c3 = vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1]));
    vst1q_f32(out, vaddq_f32(vaddq_f32(c0, c2), vaddq_f32(c1, c3)));
#else
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
#endif
}

// out[p * stride + c] = sum(a[p][c])
KERNEL_INLINE void store_sums(float * out, int64_t stride, const F32 (&a)[4][4]) {
#if defined(KERNEL_AVX512)
    __m512 x[4];  // of column c: what is left of row p in lanes 4 p and above
    KERNEL_UNROLL for (int c = 0; c < 4; ++c) {
        const __m512 p0 = a[0][c].v, p1 = a[1][c].v, p2 = a[2][c].v, p3 = a[3][c].v;
        const __m512 lo = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, p0, p1), _mm512_shuffle_f32x4(p0, p1, 0x4E));
        const __m512 hi = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, p2, p3), _mm512_shuffle_f32x4(p2, p3, 0x4E));
        x[c] = _mm512_add_ps(_mm512_shuffle_f32x4(lo, hi, 0x88), _mm512_shuffle_f32x4(lo, hi, 0xDD));
    }
    const __m512 y0 = _mm512_add_ps(_mm512_shuffle_ps(x[0], x[1], 0x44), _mm512_shuffle_ps(x[0], x[1], 0xEE));
    const __m512 y1 = _mm512_add_ps(_mm512_shuffle_ps(x[2], x[3], 0x44), _mm512_shuffle_ps(x[2], x[3], 0xEE));
    const __m512 z = _mm512_add_ps(_mm512_shuffle_ps(y0, y1, 0x88), _mm512_shuffle_ps(y0, y1, 0xDD));
    _mm_storeu_ps(out, _mm512_castps512_ps128(z));
    _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(z, 1));
    _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(z, 2));
    _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(z, 3));
#else
    for (int p = 0; p < 4; ++p) store_sums(out + p * stride, a[p][0], a[p][1], a[p][2], a[p][3]);
#endif
}

}  // namespace eaglecpp::kernels::KERNEL_NS
