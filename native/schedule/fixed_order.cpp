#include "schedule/fixed_order.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {

namespace {

// A sequence of all rows in which each follows what it needs; times do not matter, so all are 0.
std::vector<int64_t> runnable_sequence(const Orders& orders) {
  const auto stages = static_cast<size_t>(orders.num_stages());
  const std::vector<double> durations_s(kNumActionKinds * stages, 0.0);
  const std::vector<double> transfers_s(stages - 1, 0.0);
  const std::vector<double> pairs_s(stages, std::numeric_limits<double>::infinity());
  std::vector<int64_t> sequence;
  sequence.reserve(orders.actions.size());
  simulate(orders,
           {.duration_s = durations_s,
            .forward_transfer_s = transfers_s,
            .backward_transfer_s = transfers_s,
            .pair_s = pairs_s},
           &sequence);
  return sequence;
}

}  // namespace

FixedOrder::FixedOrder(const Orders& orders)
    : num_stages_(orders.num_stages()),
      num_ranks_(orders.num_ranks()),
      stays_(static_cast<size_t>(orders.num_stages()), true) {
  const int64_t stages = num_stages_, count = orders.num_microbatches;
  for (int64_t s = 0; s + 1 < stages; ++s)
    stays_[s] = orders.rank_of_stage[s] == orders.rank_of_stage[s + 1];
  std::vector<int32_t> forward(stages * count, -1), backward(stages * count, -1);
  std::vector<int32_t> rank_of_row(orders.actions.size());
  for (int64_t rank = 0; rank < num_ranks_; ++rank)
    for (int64_t row = orders.rank_offsets[rank]; row < orders.rank_offsets[rank + 1]; ++row)
      rank_of_row[row] = static_cast<int32_t>(rank);
  steps_.reserve(orders.actions.size());
  for (const int64_t row : runnable_sequence(orders)) {
    const auto& a = orders.actions[row];
    const int64_t key = a.stage * count + a.microbatch;
    Step step{static_cast<int32_t>(row), rank_of_row[row],
              static_cast<int32_t>(a.kind * stages + a.stage), -1, 0};
    if (a.kind == kForward) {
      if (a.stage > 0) step.producer = forward[key - count];
      step.transfer = a.stage - 1;
      forward[key] = static_cast<int32_t>(row);
    } else if (a.kind == kInputGrad || a.kind == kBackward) {
      if (a.stage + 1 < stages) step.producer = backward[key + count];
      step.transfer = static_cast<int32_t>(stages) + a.stage;
      backward[key] = static_cast<int32_t>(row);
    }
    steps_.push_back(step);
  }
}

std::vector<double> FixedOrder::ends_s(std::span<const double> duration_s,
                                       std::span<const double> forward_transfer_s,
                                       std::span<const double> backward_transfer_s) const {
  std::vector<double> transfer_s(static_cast<size_t>(2 * num_stages_), 0.0);
  for (int64_t s = 0; s + 1 < num_stages_; ++s) {
    if (stays_[s]) continue;
    transfer_s[s] = forward_transfer_s[s];
    transfer_s[num_stages_ + s] = backward_transfer_s[s];
  }
  std::vector<double> ends_s(steps_.size()), free_s(static_cast<size_t>(num_ranks_), 0.0);
  for (const Step& step : steps_) {
    double start_s = free_s[step.rank];
    if (step.producer >= 0)
      start_s = std::max(start_s, ends_s[step.producer] + transfer_s[step.transfer]);
    ends_s[step.row] = free_s[step.rank] = start_s + duration_s[step.duration];
  }
  return ends_s;
}

}  // namespace trainwright
