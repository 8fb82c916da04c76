// Ends of the actions of one set of orders, for one set of times after another.
//
// The simulator finds out, again and again for equal orders, which action can run next. That does
// not depend on the times: found once, each action's end is one maximum and two additions, those
// that the simulator does, so the figures are the same to the last bit. For transfers that do not
// contend, and no pairs that overlap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

class FixedOrder {
 public:
  // Orders that run to completion.
  explicit FixedOrder(const Orders& orders);

  // End of every action [n], in the rows of the orders. Tables as in `ActionCosts`.
  std::vector<double> ends_s(std::span<const double> duration_s,
                             std::span<const double> forward_transfer_s,
                             std::span<const double> backward_transfer_s) const;

  int64_t num_stages() const { return num_stages_; }

 private:
  struct Step {
    int32_t row;
    int32_t rank;
    int32_t duration;  // place in the table of durations
    int32_t producer;  // row, or -1 where nothing arrives from another stage
    int32_t transfer;  // place among [forward of S, backward of S]
  };

  int64_t num_stages_, num_ranks_;
  std::vector<bool> stays_;  // [S], whether a stage and the next are on one rank
  std::vector<Step> steps_;
};

}  // namespace trainwright
