// Better places for weight gradients, given the order of everything else.
//
// One rank at a time. Its inputs arrive when the other ranks let them, its outputs are due when the
// other ranks need them so that all end by a target. Let E(i, c) be the earliest end of the rank's
// i-th other action with c weight gradients done before it:
//
//   E(i, c) = max(arrival_i, min over c' <= c of E(i-1, c') + W_{c'} + … + W_{c-1}) + duration_i
//
// where memory demands a least c and readiness a greatest; a word whose W need too much is dropped.
// States that start later than due plus a lateness are dropped; the least lateness that leaves a
// way through is found by halving. Ranks take turns until the target holds or nothing changes;
// targets halve the gap to the busiest rank's work.
#pragma once

#include <cstdint>

#include "schedule/fill_weight_grads.hpp"
#include "schedule/objective.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

// `budget` counts actions simulated; orders must be complete, W included. Never worse than given.
FilledOrders improve_weight_grads(const Orders& orders, const ActionCosts& costs,
                                  const ActionMemory& memory, Objective objective, int64_t budget);

}  // namespace trainwright
