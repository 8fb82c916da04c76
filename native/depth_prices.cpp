#include "depth_prices.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainwright {
namespace {

constexpr int32_t kLanes = DepthPrices::kLanes;
constexpr int32_t kMultipliers = 4, kPrices = kLanes / kMultipliers;
constexpr int32_t kCandidates = 32;       // multipliers looked at per degree
constexpr int32_t kLeastDownsets = 2000;  // smaller families take milliseconds
constexpr int64_t kMostSum = 512;
constexpr int32_t kAround[kMultipliers] = {-4, -1, 1, 4};  // candidates beside the dearest
constexpr double kPrice[kPrices] = {1.0, 1.1, 1.25, 1.5};  // devices per unit of capacity, times t
constexpr double kSlack = 1 + 1e-11;                       // capacities round up, costs down
constexpr float kRounding = 1e-2F;  // devices; sums of a few hundred terms below 1000
constexpr float kNothing = -1e9F;

}  // namespace

bool DepthPrices::affordable(const Instance& instance, const Downsets& sets) {
  return sets.complete && sets.count > kLeastDownsets && instance.max_sum <= kMostSum &&
         instance.max_devices <= kMostSum;
}

DepthPrices::DepthPrices(const Instance& instance, const Downsets& sets)
    : in_(&instance), sets_(&sets), stride_(int64_t{sets.num_groups()} * kMembers) {
  const Instance& in = instance;
  std::vector<double> sum_s(in.num_layers), device_s(in.num_layers);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    sum_s[v] = device_s[v] = std::numeric_limits<double>::infinity();
    for (int32_t t = 0; t < in.num_degrees; ++t)
      if (in.offers(v, t)) {
        sum_s[v] = std::min(sum_s[v], in.fastest_s(v, t));
        device_s[v] = std::min(device_s[v], in.fastest_s(v, t) * in.problem->tensor_degrees[t]);
      }
  }
  sets.add_up(sum_s, sum_s_);
  sets.add_up(device_s, device_s_);
  rounding_s_ = 1e-12 * device_s_.back();
}

void DepthPrices::restart(double threshold_s) {
  if (threshold_s <= threshold_s_ && threshold_s > threshold_s_ * (1 - 2e-3)) return;
  threshold_s_ = threshold_s;
  const Instance& in = *in_;
  const int32_t last = static_cast<int32_t>(in.max_sum);
  caps_.assign((last + 1) * stride_, -1);
  cost_.resize(int64_t{in.num_layers} * kLanes);
  most_.resize(int64_t{sets_->count} * kLanes);
  for (int32_t sum = 0; sum <= last; ++sum)
    caps_[sum * stride_ + sets_->count - 1] = static_cast<int16_t>(in.max_devices);
  dearest_.assign(in.data_degrees.size() * in.num_degrees, kCandidates / 2);
  for (int32_t sum = last; sum-- > 0;) {
    for (size_t slot = 0; slot < in.data_degrees.size(); ++slot) {
      if (sum + in.data_degrees[slot] > last) break;
      for (int32_t t = 0; t < in.num_degrees; ++t) {
        price(sum, slot, t);
        relax(sum, static_cast<int32_t>(in.data_degrees[slot]), t);
      }
    }
    int16_t* caps = caps_.data() + sum * stride_;  // those behind too large a sum for the work done
    for (int64_t i = 0; i < sets_->count; ++i) caps[i] = std::max(caps[i], caps[i + stride_]);
  }
}

void DepthPrices::price(int32_t sum, size_t slot, int32_t t) {
  const Instance& in = *in_;
  const double d = static_cast<double>(in.data_degrees[slot]);
  const double y = 1 + std::ceil(sum / d);
  if (slopes_.empty()) {
    slopes_.resize(in.num_degrees);
    for (int32_t j = 0; j < in.num_degrees; ++j) {
      std::vector<double> all;
      for (int32_t v = 0; v < in.num_layers; ++v) {
        const int64_t first = in.option_first[in.slot(v, j)];
        for (int64_t o = first; o < in.option_first[in.slot(v, j) + 1]; ++o) {
          const Option &fast = in.options[first], &lean = in.options[o];
          const double saved = fast.saved_bytes - lean.saved_bytes;
          if (saved > 0) all.push_back((lean.time_s - fast.time_s) / saved);
        }
      }
      std::sort(all.begin(), all.end());
      if (all.empty()) all.push_back(0);
      for (int32_t i = 0; i < kCandidates; ++i)
        slopes_[j].push_back(all[(all.size() - 1) * i / (kCandidates - 1)]);
    }
  }
  // Time and memory multiplied with y: slopes of options scale with 1/y.
  const auto multiplier = [&](int32_t i) {
    return i < 0 ? 0 : slopes_[t][std::min(i, kCandidates - 1)] / y;
  };
  const auto units = [&](int32_t v, double mu) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t o = in.option_first[in.slot(v, t)]; o < in.option_first[in.slot(v, t) + 1]; ++o) {
      const Option& x = in.options[o];
      least = std::min(least, x.time_s + in.sync_s_per_byte * (d - 1) * x.gradient_bytes +
                                  mu * (x.saved_bytes * y + x.static_bytes));
    }
    return least;
  };
  const auto capacity = [&](double mu) {
    return (threshold_s_ * d + mu * in.memory_bytes) * kSlack / d;
  };
  const auto total = [&](int32_t i) {
    double sum_units = 0;
    for (int32_t v = 0; v < in.num_layers; ++v)
      if (in.offers(v, t)) sum_units += units(v, multiplier(i));
    return sum_units / capacity(multiplier(i));
  };
  int32_t& dearest = dearest_[slot * in.num_degrees + t];
  double best = total(dearest);
  for (int32_t step : {4, 1})
    for (int32_t way : {-step, step})
      while (dearest + way >= -1 && dearest + way < kCandidates) {
        const double next = total(dearest + way);
        if (next <= best) break;
        best = next;
        dearest += way;
      }
  for (int32_t m = 0; m < kMultipliers; ++m) {
    const double mu = multiplier(dearest + kAround[m]), room = capacity(mu);
    for (int32_t v = 0; v < in.num_layers; ++v)
      for (int32_t i = 0; i < kPrices; ++i) {
        const double c = in.offers(v, t) ? units(v, mu) / room : 1e6;
        cost_[int64_t{v} * kLanes + m * kPrices + i] = static_cast<float>(
            std::min(1e6, c * kPrice[i] * in.problem->tensor_degrees[t]));
      }
  }
}

void DepthPrices::relax(int32_t sum, int32_t d, int32_t t) {
  const int32_t degree = in_->problem->tensor_degrees[t];
  int16_t* caps = caps_.data() + sum * stride_;
  const int16_t* ahead = caps_.data() + (sum + d) * stride_;
  const double most_start_s = threshold_s_ * sum * kSlack + rounding_s_;
  const double most_end_s = threshold_s_ * (sum + d) * kSlack + rounding_s_;
  const double least_s =
      (device_s_.back() - threshold_s_ * static_cast<double>(in_->max_devices - sum)) / kSlack -
      rounding_s_;
  const Links& up = sets_->up;
  float extra[kLanes];
  for (int32_t i = 0; i < kLanes; ++i)
    extra[i] = static_cast<float>((kPrice[i % kPrices] - 1) * d * degree) + kRounding;
  for (int32_t at = sets_->count; at-- > 0;) {
    if (sum_s_[at] > most_end_s || device_s_[at] < least_s) continue;
    float* stored = most_.data() + int64_t{at} * kLanes;
    float own[kLanes];
    const float here = ahead[at] >= 0 ? static_cast<float>(ahead[at]) : kNothing;
    for (int32_t i = 0; i < kLanes; ++i) own[i] = here;
    for (int32_t link = up.offset[at]; link < up.offset[at + 1]; ++link) {
      const int32_t above_at = up.target[link];
      if (sum_s_[above_at] > most_end_s || device_s_[above_at] < least_s) continue;
      const float* above = most_.data() + int64_t{above_at} * kLanes;
      const float* cost = cost_.data() + int64_t{up.layer[link]} * kLanes;
      for (int32_t i = 0; i < kLanes; ++i) own[i] = std::max(own[i], above[i] - cost[i]);
    }
    for (int32_t i = 0; i < kLanes; ++i) stored[i] = own[i];
    if (sum_s_[at] > most_start_s) continue;
    float most = own[0] + extra[0];
    for (int32_t i = 1; i < kLanes; ++i) most = std::min(most, own[i] + extra[i]);
    const auto cap = static_cast<int32_t>(std::max(-1.0F, std::floor(most)));
    if (cap > caps[at]) caps[at] = static_cast<int16_t>(cap);
  }
}

}  // namespace trainwright
