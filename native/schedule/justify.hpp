// A shorter schedule by justification: every action as late as possible, then as early.
//
// Gaps of a schedule are where an action could not start yet. Seen from its end they lie elsewhere:
// what only had to be done some time, such as weight gradients, moves into gaps near the end, and
// those on the longest path find room to start earlier in the pass that follows. Each pass visits
// actions by start time, in the first case of the mirrored schedule (last end first, successors for
// inputs, memory that is freed for memory that is taken), and moves them as `rank_gaps.hpp` tells;
// it ends no later than it began. Passes go on until one pair of them gains nothing.
//
// O(n·g) a pass for n actions and g of them between an action's input and its start.
//
// Reference: V. Valls, F. Ballestín, S. Quintanilla. *Justification and RCPSP: A technique that
// pays.* European Journal of Operational Research 165(2), 2005.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "schedule/rank_gaps.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

// Whether orders can be justified: plain ones of whole microbatches without pairs, whose transfers
// are free of contention.
bool can_justify(const Orders& orders, const ActionCosts& costs);

struct JustifyLimits {
  // [p] What follows the last action of each rank: the last of these ends is made sooner.
  std::span<const double> after_s;
  // Between their forward and the end of their backward; the given order has no more.
  int64_t most_activations = std::numeric_limits<int64_t>::max();
};

// In at most so many pairs of passes. A rank without a limit in bytes keeps its peak.
ReorderedOrders justify(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        const JustifyLimits& limits, int64_t rounds);

}  // namespace trainwright
