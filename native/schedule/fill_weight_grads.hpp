// Weight gradients as filler: given the order of everything else, put each W where it hurts least.
//
// One worklist pass as in simulate.hpp. Each rank keeps a queue of W made ready by its I. Before an
// action it takes W from the queue
//   - while the action would exceed the memory limit,
//   - while the rank would wait for the action's input longer than the W takes,
//   - once more for a wait that is shorter, unless the rank's idle time so far plus this wait stays
//     within `tolerated_idle_s`: then waiting costs nothing that another rank does not wait too.
// What is left follows the last action. Transfers are taken as free of contention.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

struct FilledOrders {
  std::vector<ActionRow> actions{};
  std::vector<int64_t> rank_offsets{};
  double span_s = 0.0;
  double makespan_s = 0.0;
  bool complete = true;  // false where the limit or the order leaves no way on
};

// W in `orders` are dropped and placed anew.
FilledOrders fill_weight_grads(const Orders& orders, const ActionCosts& costs,
                               const ActionMemory& memory, double tolerated_idle_s);

}  // namespace trainwright
