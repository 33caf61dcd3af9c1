// SPDX-License-Identifier: MIT
// Loops over a row of logits or many states, compiled for several instruction sets: the least processor of x86-64 has
// four lanes, and these loops take as long there as a small draft head. All of them give the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace eaglecpp {

constexpr int n_row_block = 128;

// `way`, for tests: the loops of one instruction set, 0 (the portable ones) to n_row_ways() - 1 (those in use, as is
// -1).
int n_row_ways();

// The largest number of each block of n_row_block, the last of which may be shorter. NaN never is, unless all are: then
// -infinity.
void block_tops(const float * x, int n, std::vector<float> & tops, int way = -1);

// 64-bit hashes of neighbouring groups of four tokens, of which the first is group `first`; see noise.h. Not 0 if one
// of a block's tokens may have none of `bits` in its 16.
using ZerosInBlock = uint64_t (*)(uint64_t key, uint64_t first, uint64_t bits);
ZerosInBlock zeros_in_block(int way = -1);
constexpr uint64_t one_each = 0x0001000100010001ull;  // of the four 16-bit parts
constexpr uint64_t top_bits = 0x8000ull * one_each;

// sum(exp(x - max)), max the largest of x; relative error below 1e-5
double sum_exp(const float * x, int n, float max, int way = -1);

}  // namespace eaglecpp
