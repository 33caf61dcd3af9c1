// SPDX-License-Identifier: MIT
// Loops over a row of logits or many states, compiled for several instruction sets. Baseline x86-64 has only four
// lanes, and these loops would take as long as a small draft head. All versions give the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace eaglecpp {

constexpr int n_row_block = 128;

// way: for tests, the loops of one instruction set, from 0 (portable) to n_row_ways() - 1 (the default, also -1).
int n_row_ways();

// Computes the largest value of each block of n_row_block; the last block may be shorter. Ignores NaN; a block of
// only NaN gives -infinity.
void block_tops(const float * x, int n, std::vector<float> & tops, int way = -1);

// Hashes the groups of four tokens in a block, starting with group `first`; see noise.h. Returns 0 if no token of the
// block has all of `bits` clear in its 16 bits.
using ZerosInBlock = uint64_t (*)(uint64_t key, uint64_t first, uint64_t bits);
ZerosInBlock zeros_in_block(int way = -1);
constexpr uint64_t one_each = 0x0001000100010001ull;  // 1 in each 16-bit part
constexpr uint64_t top_bits = 0x8000ull * one_each;

// sum(exp(x - max)), where max is the largest of x. Relative error below 1e-5.
double sum_exp(const float * x, int n, float max, int way = -1);

}  // namespace eaglecpp
