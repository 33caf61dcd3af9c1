// SPDX-License-Identifier: MIT
// Loops over a row of logits or over many hash states, compiled for several instruction sets. With the four lanes of
// baseline x86-64, these loops would take as long as a small draft head. All versions give the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace eaglecpp {

constexpr int n_row_block = 128;

// Returns the number of instruction sets that the loops are compiled for and that this machine can run. The parameter
// `way` selects an instruction set in tests, from 0 (portable) to n_row_ways() - 1. The default, -1, selects the
// fastest.
int n_row_ways();

// Computes the largest value of each block of n_row_block values; the last block may be shorter. Ignores NaN. A block
// of only NaN gives -infinity.
void block_tops(const float * x, int n, std::vector<float> & tops, int way = -1);

// Hashes the groups of four tokens in a block, starting with group `first`; see noise.h. Returns 0 if no token of the
// block has a 0 at all of `bits` in its 16 bits of the hash.
using ZerosInBlock = uint64_t (*)(uint64_t key, uint64_t first, uint64_t bits);
ZerosInBlock zeros_in_block(int way = -1);
constexpr uint64_t one_each = 0x0001000100010001ull;  // a 1 in each 16-bit part
constexpr uint64_t top_bits = 0x8000ull * one_each;

// Returns sum(exp(x[i] - max)), where max is the largest value of x. The relative error is below 1e-5.
double sum_exp(const float * x, int n, float max, int way = -1);

}  // namespace eaglecpp
