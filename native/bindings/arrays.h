// SPDX-License-Identifier: MIT
// numpy arrays in and out of the bindings.
#pragma once

#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

namespace eaglecpp {

using ArrayOut = nanobind::ndarray<nanobind::numpy, float>;
template <int n_dims>
using ArrayIn = nanobind::ndarray<const float, nanobind::ndim<n_dims>, nanobind::c_contig, nanobind::device::cpu>;

// moves a vector into a numpy array of the given shape
inline ArrayOut to_array(std::vector<float> data, std::initializer_list<size_t> shape) {
    auto * owned = new std::vector<float>(std::move(data));
    nanobind::capsule owner(owned, [](void * p) noexcept { delete (std::vector<float> *)p; });
    return ArrayOut(owned->data(), shape, owner);
}

}  // namespace eaglecpp
