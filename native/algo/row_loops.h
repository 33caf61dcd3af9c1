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

// sum(exp(x - max)), max the largest of x; relative error below 1e-5
double sum_exp(const float * x, int n, float max, int way = -1);

}  // namespace eaglecpp
