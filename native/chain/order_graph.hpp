// The forwards and whole backwards of plain orders as a graph: what each waits for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

// An action. Places in the sequence count from one; at place 0 all is at hand.
struct OrderStep {
  int32_t cost;      // stage of a forward, or S + stage
  int32_t previous;  // the place before on its rank, or 0
  int32_t producer;  // the place of its input, or 0
  int32_t hop;       // 1 + the boundary that the input crosses, or 0
};

struct OrderGraph {
  std::vector<OrderStep> steps;  // so that each comes after all that it waits for
  std::vector<int32_t> last;     // [p] place of each rank's last action, 0 where it has none

  explicit OrderGraph(const Orders& orders) {
    const int64_t stages = orders.num_stages(), m = orders.num_microbatches;
    const std::vector<double> unit(static_cast<size_t>(kNumActionKinds * stages), 1.0);
    const std::vector<double> none(static_cast<size_t>(std::max<int64_t>(stages - 1, 0)), 0.0);
    const std::vector<double> never(static_cast<size_t>(stages),
                                    std::numeric_limits<double>::infinity());
    std::vector<int64_t> sequence;
    const ActionCosts costs{unit, none, none, never};
    const Simulation found = simulate(orders, costs, &sequence);
    if (!found.complete) throw std::invalid_argument("orders must run without deadlock");
    // Neighbours that do not wait for each other run side by side on a processor.
    std::stable_sort(sequence.begin(), sequence.end(),
                     [&](int64_t a, int64_t b) { return found.end_s[a] < found.end_s[b]; });
    last.assign(static_cast<size_t>(orders.num_ranks()), 0);
    std::vector<int32_t> place_of(static_cast<size_t>(2 * stages * m), 0);
    const auto at = [&](bool back, int64_t stage, int64_t microbatch) {
      return static_cast<size_t>(((back ? stages : 0) + stage) * m + microbatch);
    };
    steps.reserve(sequence.size() + 1);
    steps.push_back({0, 0, 0, 0});
    for (const int64_t row : sequence) {
      const ActionRow& a = orders.actions[row];
      const bool back = a.kind != kForward;
      const auto place = static_cast<int32_t>(steps.size());
      int32_t& before = last[orders.rank_of_stage[a.stage]];
      OrderStep step{static_cast<int32_t>((back ? stages : 0) + a.stage), before, 0, 0};
      const int64_t other = back ? a.stage + 1 : a.stage - 1;
      if (other >= 0 && other < stages) {
        step.producer = place_of[at(back, other, a.microbatch)];
        if (orders.rank_of_stage[a.stage] != orders.rank_of_stage[other])
          step.hop = static_cast<int32_t>(std::min<int64_t>(a.stage, other)) + 1;
      }
      place_of[at(back, a.stage, a.microbatch)] = before = place;
      steps.push_back(step);
    }
  }
};

// Transfers by boundary as steps name them: [S], 0 for none.
inline std::vector<double> hops_s(std::span<const double> transfer_s) {
  std::vector<double> found{0.0};
  found.insert(found.end(), transfer_s.begin(), transfer_s.end());
  return found;
}

}  // namespace trainwright
