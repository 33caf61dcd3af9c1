// SPDX-License-Identifier: MIT
// Defines values of sixteen lanes with the same operations on every instruction set. A file selects an instruction set
// by defining KERNEL_AVX512, KERNEL_AVX2 (and optionally KERNEL_AVX_VNNI) or KERNEL_NEON before it includes this
// header. All other files get the portable version. Each instruction set has its own namespace (KERNEL_NS), so that one
// program can contain all versions.
//
// Lanes are stored in one or more registers. The files in lanes/ define the operations on one register (`Register`) and
// the operations that depend on how registers share the lanes. From these, this file builds the operations on sixteen
// lanes.
//
// Every operation gives the same bits on every instruction set: float operations are correctly rounded and in a fixed
// order, integer operations are exact. So a product has the same result on all machines, and tests can compare every
// version with the portable version.
//
//   F32    16 floats
//   I32    16 integers
//   Bytes  64 bytes: 16 outputs x 4 inputs, output by output; dot() multiplies them by the same 4 inputs of a row
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(KERNEL_AVX512)
#include <immintrin.h>
#define KERNEL_REGISTER_BYTES 64
#elif defined(KERNEL_AVX2)
#include <immintrin.h>
#define KERNEL_REGISTER_BYTES 32
#elif defined(KERNEL_NEON)
#include <arm_neon.h>
#define KERNEL_REGISTER_BYTES 16
#else
#define KERNEL_REGISTER_BYTES 4
#endif

#if KERNEL_REGISTER_BYTES > 4
#define KERNEL_INLINE static inline __attribute__((always_inline))
#define KERNEL_UNROLL _Pragma("GCC unroll 32")
#else
#define KERNEL_INLINE [[maybe_unused]] static inline
#define KERNEL_UNROLL
#endif
#define KERNEL_INLINE_LAMBDA __attribute__((always_inline))
#define KERNEL_EACH KERNEL_UNROLL for (int i = 0; i < n_registers; ++i)

namespace eaglecpp::kernels::KERNEL_NS {

constexpr int n_lanes = 16, n_registers = 64 / KERNEL_REGISTER_BYTES, n_in_register = n_lanes / n_registers;

// Vector types of gcc and clang. Their operators work element by element.
#if defined(KERNEL_AVX512) || defined(KERNEL_AVX2)
using ByteNumber = uint16_t;  // moves two bytes as one number; the result is masked
#else
using ByteNumber = uint8_t;
#endif
typedef float FloatRegister __attribute__((vector_size(KERNEL_REGISTER_BYTES)));
typedef uint32_t IntRegister __attribute__((vector_size(KERNEL_REGISTER_BYTES)));
typedef ByteNumber ByteRegister __attribute__((vector_size(KERNEL_REGISTER_BYTES)));

// Types for values in memory.
typedef FloatRegister FloatsInMemory __attribute__((aligned(4), may_alias));
typedef ByteRegister BytesInMemory __attribute__((aligned(1), may_alias));

template <class T>
struct Lanes {
    T v[n_registers];
};
using F32 = Lanes<FloatRegister>;
using I32 = Lanes<IntRegister>;  // each operation defines whether the integers are signed
using Bytes = Lanes<ByteRegister>;

#if defined(KERNEL_AVX512)
#include "kernels/lanes/avx512.inc"
#elif defined(KERNEL_AVX2)
#include "kernels/lanes/avx2.inc"
#elif defined(KERNEL_NEON)
#include "kernels/lanes/neon.inc"
#else
#include "kernels/lanes/portable.inc"
#endif

// --- numbers of all lanes -------------------------------------------------------------------------------------------

template <class To, class From>
KERNEL_INLINE To bits_as(const From & x) {
    static_assert(sizeof(To) == sizeof(From));
    To r;
    std::memcpy(&r, &x, sizeof r);
    return r;
}
KERNEL_INLINE F32 set1(float x) {
    F32 r;
    KERNEL_EACH r.v[i] = x - FloatRegister{};  // minus, because plus would turn -0 into 0
    return r;
}
KERNEL_INLINE I32 set1(int32_t x) {
    I32 r;
    KERNEL_EACH r.v[i] = (uint32_t)x + IntRegister{};
    return r;
}
KERNEL_INLINE F32 zero_f32() {
    return set1(0.0f);
}
KERNEL_INLINE I32 zero_i32() {
    return set1((int32_t)0);
}

// --- memory ---------------------------------------------------------------------------------------------------------

KERNEL_INLINE F32 load(const float * p) {
    F32 r;
    KERNEL_EACH r.v[i] = *(const FloatsInMemory *)(p + i * n_in_register);
    return r;
}
KERNEL_INLINE Bytes load_bytes(const uint8_t * p) {
    Bytes r;
    KERNEL_EACH r.v[i] = *(const BytesInMemory *)(p + i * KERNEL_REGISTER_BYTES);
    return r;
}
KERNEL_INLINE void store(float * p, F32 x) {
    KERNEL_EACH *(FloatsInMemory *)(p + i * n_in_register) = x.v[i];
}
// Loads the first n lanes and sets all other lanes to 0; n may be 0 or less.
KERNEL_INLINE F32 load_n(const float * p, int n) {
    F32 r;
    KERNEL_EACH r.v[i] = Register::load_n(p + i * n_in_register, n - i * n_in_register);
    return r;
}
KERNEL_INLINE void store_n(float * p, F32 x, int n) {
    KERNEL_EACH Register::store_n(p + i * n_in_register, x.v[i], n - i * n_in_register);
}
// Stores the first n lanes, or all lanes if n is larger.
KERNEL_INLINE void store_up_to(float * p, F32 x, int64_t n) {
    if (n < n_lanes) {
        store_n(p, x, (int)n);
    } else {
        store(p, x);
    }
}
KERNEL_INLINE F32 load_f16(const void * p) {
    F32 r;
    KERNEL_EACH r.v[i] = Register::load_f16((const uint16_t *)p + i * n_in_register);
    return r;
}
KERNEL_INLINE F32 set1_f16(const void * p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
    F32 r;
    KERNEL_EACH r.v[i] = Register::set1_f16(half);
    return r;
}
// Loads integers of 8 or 16 bits.
template <class T>
KERNEL_INLINE I32 widen(const T * p) {
    I32 r;
    KERNEL_EACH r.v[i] = Register::widen(p + i * n_in_register);
    return r;
}
KERNEL_INLINE F32 load_bf16(const void * p) {
    I32 x = widen((const uint16_t *)p);
    KERNEL_EACH x.v[i] = x.v[i] << 16;
    return bits_as<F32>(x);
}
template <F32 (*load)(const void *)>
KERNEL_INLINE F32 load_16_bits_n(const void * p, int n) {
    uint16_t x[n_lanes] = {};
    std::memcpy(x, p, n * sizeof(uint16_t));
    return load(x);
}
template <int cache = 2>  // loads into the L1 or L2 cache
KERNEL_INLINE void prefetch(const void * p) {
    __builtin_prefetch(p, 0, 4 - cache);
}

// --- arithmetic -----------------------------------------------------------------------------------------------------

template <class T>
KERNEL_INLINE T add(T a, T b) {
    KERNEL_EACH a.v[i] = a.v[i] + b.v[i];
    return a;
}
KERNEL_INLINE F32 sub(F32 a, F32 b) {
    KERNEL_EACH a.v[i] = a.v[i] - b.v[i];
    return a;
}
KERNEL_INLINE F32 mul(F32 a, F32 b) {
    KERNEL_EACH a.v[i] = a.v[i] * b.v[i];
    return a;
}
KERNEL_INLINE F32 div(F32 a, F32 b) {
    KERNEL_EACH a.v[i] = a.v[i] / b.v[i];
    return a;
}
KERNEL_INLINE F32 fma(F32 a, F32 b, F32 c) {  // a * b + c
    KERNEL_EACH c.v[i] = Register::fma(a.v[i], b.v[i], c.v[i]);
    return c;
}
KERNEL_INLINE F32 fnma(F32 a, F32 b, F32 c) {  // c - a * b
    KERNEL_EACH c.v[i] = Register::fma(-a.v[i], b.v[i], c.v[i]);
    return c;
}
KERNEL_INLINE F32 max(F32 a, F32 b) {
    KERNEL_EACH a.v[i] = Register::max(a.v[i], b.v[i]);
    return a;
}
KERNEL_INLINE F32 abs(F32 a) {
    KERNEL_EACH a.v[i] = Register::abs(a.v[i]);
    return a;
}
// Returns x in lanes where a < b, and y in all other lanes.
KERNEL_INLINE F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    KERNEL_EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return x;
}
#if !defined(KERNEL_AVX512)  // AVX-512 uses masks instead
// Returns x in lanes whose bit is set, and 0 in all other lanes.
KERNEL_INLINE F32 keep(uint16_t bits, F32 x) {
    static constexpr uint32_t of_lane[n_lanes] = {1,   2,   4,    8,    16,   32,   64,    128,
                                                  256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    I32 kept = set1((int32_t)bits);
    KERNEL_EACH {
        IntRegister own;
        std::memcpy(&own, of_lane + i * n_in_register, sizeof own);
        x.v[i] = (kept.v[i] & own) != 0 ? x.v[i] : FloatRegister{};
    }
    return x;
}
#endif
KERNEL_INLINE F32 to_f32(I32 a) {
    F32 r;
    KERNEL_EACH r.v[i] = Register::to_f32(a.v[i]);
    return r;
}
KERNEL_INLINE I32 to_i32(F32 a) {  // rounds to nearest, ties to even
    I32 r;
    KERNEL_EACH r.v[i] = Register::to_i32(a.v[i]);
    return r;
}
KERNEL_INLINE F32 load_u8(const uint8_t * p) {
    return to_f32(widen(p));
}
KERNEL_INLINE F32 load_i8(const int8_t * p) {
    return to_f32(widen(p));
}
// Load the numbers of the low nibbles and of the high nibbles of 16 bytes.
KERNEL_INLINE F32 load_lo4(const uint8_t * p) {
    I32 x = widen(p);
    KERNEL_EACH x.v[i] = x.v[i] & 15;
    return to_f32(x);
}
KERNEL_INLINE F32 load_hi4(const uint8_t * p) {
    I32 x = widen(p);
    KERNEL_EACH x.v[i] = x.v[i] >> 4;
    return to_f32(x);
}
// Returns 2^n for -126 <= n <= 127.
KERNEL_INLINE F32 exp2_int(I32 n) {
    KERNEL_EACH n.v[i] = (n.v[i] + 127) << 23;
    return bits_as<F32>(n);
}
// Returns the sum of all lanes. The additions always form the same tree: first lanes 8 apart, then 4, 2 and 1 apart.
template <int n = n_registers, class T>
KERNEL_INLINE auto sum(Lanes<T> a) {
    if constexpr (n > 1) {
        KERNEL_UNROLL for (int i = 0; i < n / 2; ++i) a.v[i] = a.v[i] + a.v[i + n / 2];
        return sum<n / 2>(a);
    } else {
        return Register::sum(a.v[0]);
    }
}
KERNEL_INLINE float max_of(F32 a) {
    KERNEL_UNROLL for (int i = 1; i < n_registers; ++i) a.v[0] = Register::max(a.v[0], a.v[i]);
    return Register::max_of(a.v[0]);
}

// --- tables ---------------------------------------------------------------------------------------------------------

// The table kvalues_iq4nl of ggml.
constexpr int8_t iq4_numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// --- tiles ----------------------------------------------------------------------------------------------------------

// Calls f with n as a compile-time constant, for n up to n_max.
template <int n_max, class F>
KERNEL_INLINE void with_constant(int n, const F & f) {
    if constexpr (n_max > 1) {
        if (n < n_max) return with_constant<n_max - 1>(n, f);
    }
    f(std::integral_constant<int, n_max>());
}

// --- bytes ----------------------------------------------------------------------------------------------------------

KERNEL_INLINE Bytes masked(Bytes a, int mask) {
    KERNEL_EACH a.v[i] = a.v[i] & (ByteNumber)(mask * 0x0101);
    return a;
}
template <int n>
KERNEL_INLINE Bytes shr_and(Bytes a, int mask) {
    KERNEL_EACH a.v[i] = a.v[i] >> n;
    return sizeof(ByteNumber) == 1 && mask == 255 >> n ? a : masked(a, mask);
}
KERNEL_INLINE Bytes either(Bytes a, Bytes b) {
    KERNEL_EACH a.v[i] = a.v[i] | b.v[i];
    return a;
}

}  // namespace eaglecpp::kernels::KERNEL_NS
