// The stages beyond the last of a rank, where forwards meet input gradients (crossings.hpp).
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/label_set.hpp"

namespace trainwright {

// Times of the L stages, outermost last, and transfers into and out of each.
struct BeyondTimes {
  std::vector<double> forward_s, input_grad_s, down_s, up_s;  // [L]
};

class WayBeyond {
 public:
  WayBeyond() = default;
  // Sums of the same times may differ by `rounding_s`.
  WayBeyond(const BeyondTimes& times, double rounding_s);

  bool empty() const { return num_stages_ == 0; }
  double round_trip_s() const { return down_up_s_.back(); }
  // Components [first, last) of a label are pairs (h, e) of microbatches beyond, in order. One more
  // leaves the rank at `start_s`: the labels with its pair at their end, one for each arrival at
  // the last stage that may be best.
  void cross(const TimeLabel& label, double start_s, size_t first, size_t last,
             std::vector<TimeLabel>& found) const;
  // An h that is earlier than this meets no forward that leaves the rank at `start_s` or later.
  double never_met_s(double start_s) const { return start_s + down_all_s_ - up_down_s_.back(); }

 private:
  size_t num_stages_ = 0;
  std::vector<double> down_up_s_{0.0}, up_down_s_{0.0};  // A and B
  double down_all_s_ = 0, up_all_s_ = 0, last_input_grad_s_ = 0, rounding_s_ = 0;
};

}  // namespace trainwright
