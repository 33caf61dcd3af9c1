// SPDX-License-Identifier: MIT
// Where the drafter goes: to the GPU that holds the target's output layer, if there is room.
#pragma once

#include <memory>
#include <string>

#include "draft/feature_drafter.h"
#include "engine/options.h"

namespace eaglecpp {

struct PlacedDrafter {
    std::unique_ptr<FeatureDrafter> drafter;
    std::string why;  // a sentence when it is not where it would best be; "" = it is
};

// Loads the drafter on the device that the options name, or with "auto" on the best one, ready to use; on a GPU, what
// its conversations need is allocated now. With "auto" the CPU is used if the device has no room.
// Error(value) for an unknown device, and every error that a FeatureDrafter throws.
PlacedDrafter place_drafter(const EngineOptions & options, const DraftFile & file, const Target & target);

}  // namespace eaglecpp
