// Cuts of good plans, found by exchanging layers between stages under several data degrees.
#pragma once

#include <cstdint>
#include <vector>

#include "downsets.hpp"
#include "instance.hpp"

namespace trainwright {

// Anneals the layers of a plan, and of others with its stages halved or joined as long as one of
// them is better, then the best of them slowly. The cuts of all, and those next to the best ones.
std::vector<uint64_t> exchanged_cuts(const Instance& instance,
                                     const std::vector<PartitionStage>& stages, const Stop& stop);

}  // namespace trainwright
