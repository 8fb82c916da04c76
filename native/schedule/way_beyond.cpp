#include "schedule/way_beyond.hpp"

#include <algorithm>

namespace trainwright {

WayBeyond::WayBeyond(const BeyondTimes& times, double rounding_s)
    : num_stages_(times.forward_s.size()), rounding_s_(rounding_s) {
  for (size_t q = 0; q < num_stages_; ++q) {
    const double down_s = times.forward_s[q] + times.down_s[q];
    const double up_s = times.input_grad_s[q] + times.up_s[q];
    down_up_s_.push_back(down_up_s_.back() + down_s + up_s);
    down_all_s_ += down_s;
    up_all_s_ += up_s;
  }
  for (size_t n = 1; n <= num_stages_; ++n) {
    const size_t stage = num_stages_ - n;
    double both_s = times.forward_s[stage] + times.input_grad_s[stage];
    if (n > 1) both_s += times.down_s[stage + 1] + times.up_s[stage + 1];
    up_down_s_.push_back(up_down_s_.back() + both_s);
  }
  if (num_stages_ > 0) last_input_grad_s_ = times.input_grad_s.back();
}

void WayBeyond::cross(const TimeLabel& label, double start_s, size_t first, size_t last,
                      std::vector<TimeLabel>& found) const {
  const double earliest_s = start_s + down_all_s_;
  std::vector<double> arrivals_s{earliest_s};
  for (size_t pair = first; pair < last; pair += 2)
    for (size_t n = 1; n <= num_stages_; ++n) {
      const double waits_s = start_s + down_up_s_[num_stages_ - n + 1];  // if it were n - 1
      if (n > 1 && waits_s <= label[pair + 1]) break;
      if (const double there_s = label[pair] + up_down_s_[n]; there_s > earliest_s)
        arrivals_s.push_back(there_s);
    }
  std::ranges::sort(arrivals_s);
  arrivals_s.erase(std::ranges::unique(arrivals_s).begin(), arrivals_s.end());
  for (const double arrival_s : arrivals_s) {
    TimeLabel later = label;
    for (size_t pair = first; pair < last; pair += 2) {
      size_t n = 0;
      const double until_s = arrival_s + rounding_s_;
      while (n < num_stages_ && later[pair] + up_down_s_[n + 1] <= until_s) ++n;
      if (n == num_stages_) continue;
      if (n == 0) later[pair] = arrival_s;
      const double back_s = n == 0 ? arrival_s + up_all_s_ : start_s + down_up_s_[num_stages_ - n];
      later[pair + 1] = std::max(later[pair + 1], back_s);
    }
    double turn_s = arrival_s;
    if (last > first) turn_s = std::max(turn_s, later[last - 2] + last_input_grad_s_);
    const double times_s[] = {turn_s, turn_s + up_all_s_};
    later.insert(later.begin() + static_cast<std::ptrdiff_t>(last), times_s, times_s + 2);
    found.push_back(std::move(later));
  }
}

}  // namespace trainwright
