// A shorter schedule by justification: every action as late as possible, then as early.
//
// Gaps of a schedule are where an action could not start yet. Seen from its end they lie elsewhere:
// what only had to be done some time, such as weight gradients, moves into gaps near the end, and
// those on the longest path find room to start earlier in the pass that follows. Each pass visits
// actions by start time, in the first case of the mirrored schedule (last end first, successors for
// inputs, memory that is freed for memory that is taken). An action may pass others of its rank
// into a gap that is long enough, within the limits of memory, and delays nobody; a pass ends no
// later than it began. Passes go on until one pair of them gains nothing.
//
// O(n·g) a pass for n actions and g of them between an action's input and its start.
//
// Reference: V. Valls, F. Ballestín, S. Quintanilla. *Justification and RCPSP: A technique that
// pays.* European Journal of Operational Research 165(2), 2005.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

struct JustifiedOrders {
  std::vector<ActionRow> actions;  // offsets stay those of the given orders
  bool complete = true;            // false where the given orders deadlock
};

// Whether orders can be justified: plain ones of whole microbatches without pairs, whose transfers
// are free of contention.
bool can_justify(const Orders& orders, const ActionCosts& costs);

// In at most so many pairs of passes. A rank without a limit keeps its peak.
JustifiedOrders justify(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        int64_t rounds);

}  // namespace trainwright
