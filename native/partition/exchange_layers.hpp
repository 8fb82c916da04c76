// Layers exchanged between the stages of a plan, by simulated annealing.
//
// The data and tensor degrees stay. A step moves one layer to another stage between those of its
// neighbours, and mostly another layer back, the first one with which the step is taken: single
// layers are coarser than what is to be gained. A stage is priced by a choice of options near that
// of the linear relaxation, one that is possible where options differ in time and memory only; a
// bound by the relaxation's multiplier comes first. The energy sums d exp(time) over the stages, so
// that all slow ones count.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"

namespace trainwright {

struct ExchangedCuts {
  double time_s;                       // by those options
  std::vector<PartitionStage> stages;  // without options
};

// The best met in `num_steps` steps from the layers and degrees of `stages`. Given up early when it
// is far from `beat_s`. The same for the same seed.
ExchangedCuts exchange_layers(const Instance& instance, const std::vector<PartitionStage>& stages,
                              int64_t num_steps, uint64_t seed, double beat_s, const Stop& stop);

}  // namespace trainwright
