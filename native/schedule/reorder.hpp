// Move actions into earlier idle gaps of their rank, without a higher peak and without delaying any
// other action.
//
// Actions are visited by start time and moved as `rank_gaps.hpp` tells. Then times are squeezed
// (earliest starts in the new order), and all of it repeats until nothing moves.
#pragma once

#include <cstdint>

#include "schedule/rank_gaps.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

struct ReorderWindow {
  double from_s = 0.0;   // only actions that start at or after this
  double until_s = 0.0;  // and before this
  int64_t sweeps = 0;    // at most so many rounds
};

// A rank without a limit keeps its peak.
ReorderedOrders reorder(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        const ReorderWindow& window);

}  // namespace trainwright
