#include "partition/depth_prices.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trainwright {
namespace {

constexpr int32_t kLanes = DepthPrices::kLanes;
constexpr int32_t kCandidates = 32;  // multipliers looked at per degree
constexpr int32_t kEverySum = 128;   // beyond: two sums at once
constexpr int64_t kMostSum = 512;    // s and devices
constexpr double kReuse = 4e-3;      // thresholds this far below use the same caps
constexpr double kPrice[kLanes] = {0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5};  // times t
constexpr double kSlack = 1 + 1e-11;  // capacities round up, costs down
constexpr float kRounding = 1e-2F;    // devices: some hundred sums below 2048, 2^-24 of it each
constexpr float kDearest = 1e6F;      // of a layer that does not offer the degree
constexpr float kNothing = -1e9F;

struct LayerLinks {
  const int32_t *offset, *layer, *target;
};

struct Stage {                     // one (s', d, t)
  int32_t first_end, first_start;  // ranks from which on D'' and D can be reached in time
  int32_t end;                     // ranks from which on D cannot be completed
  const int16_t* ahead;            // C(D'', s' + d)
  int16_t* caps;                   // C(D, s')
  const float* cost;
  float refund[kLanes];  // pi d - d t
};

// The longest paths over one layer more at a time.
[[gnu::always_inline]] inline void relax_ranks(const Stage& stage, const LayerLinks& up,
                                               const double* device_s, double least_s,
                                               float* most) {
  for (int32_t at = stage.first_end; at < stage.end; ++at) {
    if (device_s[at] < least_s) continue;
    float own[kLanes];
    const float here = stage.ahead[at] >= 0 ? static_cast<float>(stage.ahead[at]) : kNothing;
    for (int32_t i = 0; i < kLanes; ++i) own[i] = here;
    for (int32_t link = up.offset[at]; link < up.offset[at + 1]; ++link) {
      if (up.target[link] < stage.first_end) continue;
      const float* above = most + int64_t{up.target[link]} * kLanes;
      const float* cost = stage.cost + int64_t{up.layer[link]} * kLanes;
      for (int32_t i = 0; i < kLanes; ++i) {
        const float there = above[i] - cost[i];
        own[i] = own[i] < there ? there : own[i];
      }
    }
    float* stored = most + int64_t{at} * kLanes;
    for (int32_t i = 0; i < kLanes; ++i) stored[i] = own[i];
    if (at < stage.first_start) continue;
    float refunded[kLanes];
    for (int32_t i = 0; i < kLanes; ++i) refunded[i] = own[i] + stage.refund[i];
    for (int32_t half = kLanes / 2; half > 0; half /= 2)
      for (int32_t i = 0; i < half; ++i)
        refunded[i] = refunded[i + half] < refunded[i] ? refunded[i + half] : refunded[i];
    if (refunded[0] >= static_cast<float>(stage.caps[at] + 1))
      stage.caps[at] = static_cast<int16_t>(std::floor(refunded[0]));
  }
}

using Relax = void (*)(const Stage&, const LayerLinks&, const double*, double, float*);

void relax_portable(const Stage& stage, const LayerLinks& up, const double* device_s,
                    double least_s, float* most) {
  relax_ranks(stage, up, device_s, least_s, most);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx512f,prefer-vector-width=512"))) void relax_avx512(
    const Stage& stage, const LayerLinks& up, const double* device_s, double least_s, float* most) {
  relax_ranks(stage, up, device_s, least_s, most);
}

__attribute__((target("avx2"))) void relax_avx2(const Stage& stage, const LayerLinks& up,
                                                const double* device_s, double least_s,
                                                float* most) {
  relax_ranks(stage, up, device_s, least_s, most);
}
#endif

Relax best_relax() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return relax_avx512;
  if (__builtin_cpu_supports("avx2")) return relax_avx2;
#endif
  return relax_portable;
}

// Seconds per byte at which a layer would change from its fastest option, at 32 quantiles.
std::vector<double> slopes_of(const Instance& in, int32_t t) {
  std::vector<double> all;
  for (int32_t v = 0; v < in.num_layers; ++v) {
    const int64_t first = in.option_first[in.slot(v, t)];
    for (int64_t o = first; o < in.option_first[in.slot(v, t) + 1]; ++o) {
      const double saved = in.options[first].saved_bytes - in.options[o].saved_bytes;
      if (saved > 0) all.push_back((in.options[o].time_s - in.options[first].time_s) / saved);
    }
  }
  std::sort(all.begin(), all.end());
  if (all.empty()) all.push_back(0);
  std::vector<double> chosen;
  for (int32_t i = 0; i < kCandidates; ++i)
    chosen.push_back(all[(all.size() - 1) * i / (kCandidates - 1)]);
  return chosen;
}

// A stage's work per unit of capacity, for one multiplier.
struct Charge {
  Charge(const Instance& instance, double threshold_s, double d, double y, int32_t t, double mu)
      : in(&instance), t(t), sync(instance.sync_s_per_byte * (d - 1)), mu(mu), y(y) {
    per_second = d / ((threshold_s * d + mu * instance.memory_bytes) * kSlack);
  }
  double of(int32_t v) const {  // infinity where the degree is not offered
    double least = std::numeric_limits<double>::infinity();
    for (int64_t o = in->option_first[in->slot(v, t)]; o < in->option_first[in->slot(v, t) + 1];
         ++o) {
      const Option& x = in->options[o];
      least = std::min(
          least, x.time_s + sync * x.gradient_bytes + mu * (x.saved_bytes * y + x.static_bytes));
    }
    return least == 0 ? 0 : least * per_second;  // also where a device has no capacity at all
  }
  double total() const {
    double sum = 0;
    for (int32_t v = 0; v < in->num_layers; ++v)
      if (in->offers(v, t)) sum += of(v);
    return sum;
  }
  const Instance* in;
  int32_t t;
  double sync, mu, y, per_second;
};

}  // namespace

bool DepthPrices::pays(const Instance& instance, const Downsets& sets,
                       const PartitionLimits& limits) {
  return sets.complete && instance.num_degrees > 1 && instance.max_sum > limits.priced_from &&
         std::max(instance.max_sum, instance.max_devices) <= kMostSum;
}

DepthPrices::DepthPrices(const Instance& instance, const Downsets& sets)
    : in_(&instance), sets_(&sets), rank_(sets.count) {
  for (int32_t t = 0; t < instance.num_degrees; ++t) slopes_.push_back(slopes_of(instance, t));
  rank_downsets();
}

void DepthPrices::rank_downsets() {
  const Instance& in = *in_;
  std::vector<double> sum(in.num_layers), device(in.num_layers), sum_s, device_s;
  for (int32_t v = 0; v < in.num_layers; ++v) {
    sum[v] = device[v] = std::numeric_limits<double>::infinity();
    for (int32_t t = 0; t < in.num_degrees; ++t)
      if (in.offers(v, t)) {
        sum[v] = std::min(sum[v], in.fastest_s(v, t));
        device[v] = std::min(device[v], in.fastest_s(v, t) * in.problem->tensor_degrees[t]);
      }
  }
  sets_->add_up(sum, sum_s);
  sets_->add_up(device, device_s);
  const LayerLinks up{sets_->up.offset.data(), sets_->up.layer.data(), sets_->up.target.data()};
  for (int32_t i = 0; i < sets_->count; ++i)  // never falling under inclusion, despite rounding
    for (int32_t link = up.offset[i]; link < up.offset[i + 1]; ++link) {
      const int32_t above = up.target[link];
      sum_s[above] = std::max(sum_s[above], sum_s[i]);
      device_s[above] = std::max(device_s[above], device_s[i]);
    }
  std::vector<int32_t> order(sets_->count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return sum_s[a] != sum_s[b] ? sum_s[a] > sum_s[b] : a > b;
  });
  for (int32_t i = 0; i < sets_->count; ++i) rank_[order[i]] = i;
  link_offset_.push_back(0);
  for (int32_t i : order) {
    sum_s_.push_back(sum_s[i]);
    device_s_.push_back(device_s[i]);
    for (int32_t link = up.offset[i]; link < up.offset[i + 1]; ++link) {
      link_layer_.push_back(up.layer[link]);
      link_target_.push_back(rank_[up.target[link]]);
    }
    link_offset_.push_back(static_cast<int32_t>(link_layer_.size()));
  }
}

void DepthPrices::restart(double threshold_s) {
  if (threshold_s <= threshold_s_ && threshold_s > threshold_s_ * (1 - kReuse)) return;
  threshold_s_ = threshold_s;
  const Instance& in = *in_;
  const int32_t last = static_cast<int32_t>(in.max_sum), count = sets_->count;
  caps_.assign(num_sums() * count, -1);
  cost_.resize(int64_t{in.num_layers} * kLanes);
  most_.resize(int64_t{count} * kLanes);
  for (int64_t sum = 0; sum <= last; ++sum)
    caps_[sum * count] = static_cast<int16_t>(in.max_devices);
  dearest_.assign(in.data_degrees.size() * in.num_degrees, kCandidates / 2);
  if (last <= kEverySum) {
    for (int32_t sum = last; sum-- > 0;) {
      relax_degrees(sum, 1, 0);
      keep_falling(sum);
    }
    return;
  }
  // Even data degrees are looked at for two sums at once, as if both were the smaller.
  for (int32_t sum = (last - 1) / 2 * 2; sum >= 0; sum -= 2) {
    relax_degrees(sum, 2, 2);
    if (sum + 1 < last) {
      std::copy_n(caps_.begin() + int64_t{sum} * count, count,
                  caps_.begin() + int64_t{sum + 1} * count);
      relax_degrees(sum + 1, 1, 1);
      keep_falling(sum + 1);
    }
    relax_degrees(sum, 1, 1);
    keep_falling(sum);
  }
}

// Labels do not exist so early behind a large downset; the caps there must not grow with the sum.
void DepthPrices::keep_falling(int32_t sum) {
  int16_t* caps = caps_.data() + int64_t{sum} * sets_->count;
  for (int32_t i = 0; i < sets_->count; ++i) caps[i] = std::max(caps[i], caps[i + sets_->count]);
}

// Stages behind the sums [sum, sum + width) of data degrees that are even (2), odd (1) or any (0).
void DepthPrices::relax_degrees(int32_t sum, int32_t width, int32_t parity) {
  const Instance& in = *in_;
  for (size_t slot = 0; slot < in.data_degrees.size(); ++slot) {
    const auto d = static_cast<int32_t>(in.data_degrees[slot]);
    if (sum + d > in.max_sum) break;
    if (parity != 0 && 2 - d % 2 != parity) continue;
    for (int32_t t = 0; t < in.num_degrees; ++t) {
      if (sum + d * in.problem->tensor_degrees[t] > in.max_devices) continue;
      price(sum, slot, t);
      relax(sum, width, d, t);
    }
  }
}

// With the multiplier that makes the layers dearest, were all of them in such a stage.
void DepthPrices::price(int32_t sum, size_t slot, int32_t t) {
  const Instance& in = *in_;
  const double d = static_cast<double>(in.data_degrees[slot]), y = 1 + std::ceil(sum / d);
  const auto charge = [&](int32_t candidate) {
    const double mu = candidate < 0 ? 0 : slopes_[t][std::min(candidate, kCandidates - 1)] / y;
    return Charge(in, threshold_s_, d, y, t, mu);
  };
  int32_t& dearest = dearest_[slot * in.num_degrees + t];
  double most = charge(dearest).total();
  for (int32_t step : {4, -4, 1, -1})
    while (dearest + step >= -1 && dearest + step < kCandidates) {
      const double next = charge(dearest + step).total();
      if (next <= most) break;
      most = next;
      dearest += step;
    }
  const double degree = in.problem->tensor_degrees[t];
  const Charge chosen = charge(dearest);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    const double units = chosen.of(v) * degree;
    float* cost = cost_.data() + int64_t{v} * kLanes;
    for (int32_t i = 0; i < kLanes; ++i)
      cost[i] = std::min(kDearest, static_cast<float>(units * kPrice[i]));
  }
}

void DepthPrices::relax(int32_t sum, int32_t width, int32_t d, int32_t t) {
  static const Relax relax_best = best_relax();
  const int32_t degree = in_->problem->tensor_degrees[t], count = sets_->count;
  const double rounding_s = 1e-12 * device_s_[0];
  const auto first_within = [&](double most_s) {
    return static_cast<int32_t>(
        std::partition_point(sum_s_.begin(), sum_s_.end(),
                             [&](double s) { return s > most_s * kSlack + rounding_s; }) -
        sum_s_.begin());
  };
  Stage stage{first_within(threshold_s_ * (sum + width - 1 + d)),
              first_within(threshold_s_ * (sum + width - 1)),
              count,
              caps_.data() + int64_t{sum + d} * count,
              caps_.data() + int64_t{sum} * count,
              cost_.data(),
              {}};
  for (int32_t i = 0; i < kLanes; ++i)
    stage.refund[i] = static_cast<float>((kPrice[i] - 1) * d * degree) + kRounding;
  // Behind a label with this sum are at least as many devices.
  const double least_s =
      (device_s_[0] - threshold_s_ * static_cast<double>(in_->max_devices - sum) * kSlack) -
      rounding_s;
  relax_best(stage, {link_offset_.data(), link_layer_.data(), link_target_.data()},
             device_s_.data(), least_s, most_.data());
}

}  // namespace trainwright
