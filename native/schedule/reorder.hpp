// Move actions into earlier idle gaps of their rank, without a higher peak and without delaying any
// other action.
//
// Actions are visited by start time. Each looks back over the actions before it, from the nearest
// on, for the earliest gap that begins after its inputs are there and is long enough; moving it
// from position i to q raises the memory level of positions q to i-1 by what it allocates, so the
// largest level of that range, kept while looking back, decides whether the limit holds. An action
// that finds no gap still starts earlier where its inputs now allow. Then times are squeezed
// (earliest starts in the new order), and all of it repeats until nothing moves.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

struct ReorderWindow {
  double from_s = 0.0;   // only actions that start at or after this
  double until_s = 0.0;  // and before this
  int64_t sweeps = 0;    // at most so many rounds
};

struct ReorderedOrders {
  std::vector<ActionRow> actions;  // offsets stay those of the given orders
  int64_t num_moves = 0;
  bool complete = true;  // false where the given orders deadlock
};

ReorderedOrders reorder(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        const ReorderWindow& window);

}  // namespace trainwright
