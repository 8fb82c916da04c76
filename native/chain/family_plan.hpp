// The fastest plan of a chain under given orders: a schedule family, d replicas, p ranks.
//
// Ranks are filled within a limit on their time that is bisected (fill.hpp). In V, where rank r
// owns stages r and 2p-1-r, they take layers off both ends of the chain, the end with fewer layers
// first. Orders are known, so memory is exact:
//
//   state + Σ over chunks (before · saved + pending · weight inputs + running · transient)
//
// at the fullest of the instants `counts`: microbatches before their input gradient, between input
// and weight gradient, and whose input gradient runs. The plan is then simulated, and each rank
// exchanges with its replicas, stage after stage, what does not hide (common/zero.hpp) and updates
// its weights at its own end. Passed over are plans whose heaviest rank cannot beat the best:
//
//   time >= way to its first stage + m · w_r + exchanges and update of r
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chain/uniform_plan.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

struct FamilyOrder {
  Orders orders;
  int64_t num_chunks = 1;           // of a rank: 1, or 2 in V
  std::span<const int32_t> counts;  // [k, 3 · chunks]: before, pending, running, chunk by chunk
  std::span<const int64_t> count_offset;  // [p + 1] rows of each rank
};

// What a backward in two parts needs beside the problem, by class.
struct SplitBackward {
  std::span<const double> weight_grad_s;
  std::span<const double> pending_bytes;   // kept from input to weight gradient
  std::span<const double> restored_bytes;  // of these, what a recomputation brings back
};

struct FamilyPlan {
  double step_s = 0;            // infinite: nothing fits, or nothing beats the cutoff
  std::vector<int64_t> starts;  // first layer of each stage, in order of the chain
};

// The fastest plan below `cutoff_s` of one option and data degree, both by their place.
FamilyPlan fastest_family_plan(const UniformProblem& problem, const ChainTimes& times,
                               const SplitBackward& split, const FamilyOrder& order, size_t option,
                               size_t degree, double cutoff_s);

}  // namespace trainwright
