// Simulated annealing on finished orders with copies to the host: actions move on their rank.
//
// Words (`word_annealing.hpp`) know no copies: what a copy waits for lies on the link of its rank.
// Here every action of an order is a row, and a move takes one, or one kind of action of a stage
// over a range of microbatches, a few places along its rank; mostly of the critical path. It keeps
// the order of what a stage does with one microbatch. It is refused if the rank would then exceed
// a limit or some rank wait for ever, and if the order would be longer by more than the temperature
// allows.
//
// Rows stand in a sequence in which each follows what it needs. A move changes nothing that stands
// before the first row it touches; what stands between its rows is put in a new sequence, and what
// follows keeps its own, and its times from where none that changed is read any more:
//
//   start(O, L)  = max(end of the computation before it, end of the link's last copy)
//   start(D)     = max(end of the computation before it, end(O))
//   start(other) = max(end of the computation before it, arrival of its input, end(L))
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/objective.hpp"
#include "schedule/simulate.hpp"
#include "schedule/stream_problem.hpp"

namespace trainwright {

struct MovePlan {
  uint64_t seed = 0;
  int64_t work = 0;                    // actions to simulate
  double stop_at_s = 0.0;              // a length that ends the search
  std::function<bool(double)> poll{};  // told the best now and then; true stops
};

struct MovedOrders {
  std::vector<ActionRow> actions;  // offsets stay those of the given orders
  double value_s = 0.0;
  int64_t work = 0;
  bool complete = true;  // false where the given orders deadlock
  bool interrupted = false;
};

// From plain orders without pairs, whose transfers are taken as free of contention.
MovedOrders anneal_moves(const Orders& orders, const ActionCosts& costs,
                         const std::vector<Resource>& resources, Objective objective,
                         const MovePlan& plan);

}  // namespace trainwright
