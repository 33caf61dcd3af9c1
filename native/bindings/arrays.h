// SPDX-License-Identifier: MIT
// Converts between vectors and numpy arrays.
#pragma once

#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

namespace eaglecpp {

template <typename T>
using ArrayOf = nanobind::ndarray<nanobind::numpy, T>;
using ArrayOut = ArrayOf<float>;
template <int n_dims>
using ArrayIn = nanobind::ndarray<const float, nanobind::ndim<n_dims>, nanobind::c_contig, nanobind::device::cpu>;

// Moves a vector into a numpy array of the given shape.
template <typename T>
ArrayOf<T> to_array(std::vector<T> data, std::initializer_list<size_t> shape) {
    auto * owned = new std::vector<T>(std::move(data));
    nanobind::capsule owner(owned, [](void * p) noexcept { delete (std::vector<T> *)p; });
    return ArrayOf<T>(owned->data(), shape, owner);
}

}  // namespace eaglecpp
