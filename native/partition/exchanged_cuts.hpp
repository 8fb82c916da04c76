// Cuts of good plans, found by exchanging layers between stages under several data degrees.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"

namespace trainwright {

constexpr double kShortAnneal = 0.04;  // of the steps of a slow one

// Anneals the layers of a plan quickly, and of others with its stages halved or joined as long as
// one of them is better. The cuts of all, and those next to the best ones.
std::vector<uint64_t> regrouped_cuts(const Instance& instance,
                                     const std::vector<PartitionStage>& stages, const Stop& stop);

// Anneals the layers of a plan, slowest with a share of 1: the cuts it comes to and those near.
std::vector<uint64_t> exchanged_cuts(const Instance& instance,
                                     const std::vector<PartitionStage>& stages, double share,
                                     const Stop& stop);

}  // namespace trainwright
