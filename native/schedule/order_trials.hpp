// The best of several orders of forwards and input gradients once they hold weight gradients.
//
// Each is filled in two ways, waits tolerated or not, and its idle gaps are closed; an order that
// was filled before is left out. The first whose objective is enough ends the search. Otherwise the
// best few get better places for their weight gradients, in rounds that close gaps again, as long
// as the objective falls. Less is the objective, then the other of span and makespan; of equal ones
// the first.
//
// Orders may have to hold so many activations at some instant, which those who ask can then rely
// on. One that never does is left out, and gaps stay open where closing them would end that.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "schedule/fill_weight_grads.hpp"
#include "schedule/objective.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

struct PolishEffort {
  int64_t num_finalists = 0;  // orders that are polished
  int64_t rounds = 0;         // at most, for each
  int64_t simulations = 0;    // of the whole order while placing weight gradients, in each round
};

class OrderTrials {
 public:
  // What costs and memory look at must outlive this. Gaps are closed in at most so many sweeps.
  // By each row of `held` [N, S] a rank has so many microbatches of all of its stages at one
  // instant, at least, between their forward and their input gradient.
  OrderTrials(const ActionCosts& costs, const ActionMemory& memory, Objective objective,
              double enough_s, int64_t sweeps, std::vector<int64_t> held);

  // Tries an order without weight gradients and without pairs; all have one placement and number of
  // microbatches. Whether one is good enough now: no more need be tried.
  bool add(const Orders& order);

  // The best of all within the limits; not complete where there is none.
  FilledOrders best(const PolishEffort& effort) const;

 private:
  struct Trial {
    std::vector<ActionRow> actions;
    std::vector<int64_t> rank_offsets;
    double span_s = 0.0, makespan_s = 0.0;
  };

  double objective_s(const Trial& trial) const;
  bool is_less(const Trial& one, const Trial& other) const;
  bool holds(const Orders& orders) const;

  Orders view(const std::vector<ActionRow>& actions,
              const std::vector<int64_t>& rank_offsets) const;
  Trial timed(std::vector<ActionRow> actions, const std::vector<int64_t>& rank_offsets) const;
  Trial closed(const std::vector<ActionRow>& actions,
               const std::vector<int64_t>& rank_offsets) const;
  Trial polished(const Trial& trial, const PolishEffort& effort) const;
  Trial justified(const Trial& trial, int64_t rounds) const;

  ActionCosts costs_;
  ActionMemory memory_;
  Objective objective_;
  double enough_s_;
  int64_t sweeps_;
  std::vector<int64_t> held_;
  std::vector<int32_t> rank_of_stage_;
  int64_t num_microbatches_ = 0;
  std::set<std::string> orders_, filled_;  // seen before, as bytes
  std::vector<Trial> trials_;
  bool is_enough_ = false;  // then the last trial is the answer
};

}  // namespace trainwright
