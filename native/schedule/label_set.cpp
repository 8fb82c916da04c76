#include "schedule/label_set.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace trainwright {

std::vector<TimeLabel> thinned(std::vector<TimeLabel> labels, std::span<const double> weight,
                               size_t kept) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < labels.size(); ++i)
    order.emplace_back(std::inner_product(weight.begin(), weight.end(), labels[i].begin(), 0.0), i);
  std::ranges::sort(order);
  std::vector<TimeLabel> best;
  for (const auto& [sum_s, i] : order) {
    TimeLabel& label = labels[i];
    const auto earlier = [&](const TimeLabel& other) {
      for (size_t t = 0; t < label.size(); ++t)
        if (other[t] > label[t]) return false;
      return true;
    };
    if (std::ranges::any_of(best, earlier)) continue;
    if (best.size() < kept) {
      best.push_back(std::move(label));
      continue;
    }
    const auto lost_s = [&](const TimeLabel& other) {
      double sum_s = 0;
      for (size_t t = 0; t < label.size(); ++t)
        if (other[t] > label[t]) sum_s += weight[t] * (other[t] - label[t]);
      return sum_s;
    };
    TimeLabel& closest = *std::ranges::min_element(best, {}, lost_s);
    for (size_t t = 0; t < label.size(); ++t) closest[t] = std::min(closest[t], label[t]);
  }
  return best;
}

int64_t LabelAllowance::per_state(std::vector<int64_t> num_labels) const {
  std::ranges::sort(num_labels);
  int64_t room = left_ / layers_, states = std::ssize(num_labels);
  for (const int64_t num : num_labels) {
    if (num > room / states) return room / states;
    room -= num;
    --states;
  }
  return std::numeric_limits<int64_t>::max();
}

void LabelAllowance::spend(int64_t num_kept, bool had_more) {
  was_enough_ &= !had_more;
  left_ = std::max<int64_t>(0, left_ - num_kept);
  --layers_;
}

}  // namespace trainwright
