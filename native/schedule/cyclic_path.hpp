// The path of one microbatch through a V that waits least where waits cost most, of all paths whose
// ranks never pause: exact, by a shortest path over the cyclic orders of every rank.
//
// Ranks have the same period, so their six actions fill it in one of 120 cyclic orders; time that a
// rank has left is shared out among its actions. What a microbatch waits between two neighbours
// depends on both orders and on the shift between them, and in the best shift one of the four waits
// is none. So the least weighted sum of waits is a shortest path through p layers of 120 orders.
//
// What a wait costs follows from memory: it lengthens the lives of all activations that it is part
// of, by so many bytes on so many ranks. Each rank has a multiplier, the price of its bytes, which
// rises where a path holds more than fits and falls where it leaves room (Lagrangian relaxation).
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/cyclic_v.hpp"

namespace trainwright {

// Starts [p, 6] of the first path within the limits that is found in so many rounds of prices; none
// where there is none, or where too many neighbours differ.
std::vector<double> cyclic_path(const CyclicProblem& problem, double period_s, int64_t rounds);

}  // namespace trainwright
