// How many devices may be used behind a downset if what is left is still to be placed: a bound
// that follows the microbatches in flight from label to label.
//
// A stage of d replicas with s' behind it ends at e = s' + d. Its replicas hold
// sum(a e + b d) <= d M and take sum p <= d lambda, hence for every multiplier mu >= 0
//
//     sum over its layers of c(v)  <=  d,      c(v) = (p + mu (a B + b)) / (lambda + mu M),   B <= e
//
// and t sum c(v) <= t d devices. *Levels* are ascending values of B, each with a multiplier of its
// own; a stage belongs to the highest one with B <= e. Place its layers one after the other, each
// at s + c(v) and k + t c(v): then s and k never exceed those of the plan, levels never fall, and
// within a level s stays below the next level's B. So a label (s, k) at D can be completed only if
// it lies in the region R(D, level of s + 1) where
//
//     R(D, i)  =  R(D, i + 1)  u  { (s, k) : (s + c, k + t c) in R(D + v, i), s + c <= B(i + 1) }
//
// over all layers v that D can take and all their options. Regions are kept as their largest
// k + theta s for 16 slopes theta: a shift then is a subtraction, and a limit on s a comparison with
// the slope before. The bound needs the complete family of downsets.
#pragma once

#include <cstdint>
#include <vector>

#include "downsets.hpp"
#include "instance.hpp"
#include "member_masks.hpp"

namespace trainwright {

class DepthPrices {
 public:
  static constexpr int32_t kLanes = 16;

  static bool affordable(const Instance& instance, const Downsets& sets);
  DepthPrices(const Instance& instance, const Downsets& sets);

  // Computes the caps for a threshold; does nothing if they are known.
  void restart(double threshold_s);

  int32_t num_levels() const { return static_cast<int32_t>(in_->max_sum) + 1; }
  int32_t level_of(int64_t sum) const { return static_cast<int32_t>(sum); }
  int64_t least_sum(int32_t level) const { return level; }
  // Most devices of a label at the level that can be completed, -1 if none [groups * 64].
  const int16_t* most_devices(int32_t level) const {
    return caps_.data() + static_cast<int64_t>(level) * stride_;
  }

 private:
  void price(int32_t sum, size_t slot, int32_t t);
  void relax(int32_t sum, int32_t d, int32_t t);

  const Instance* in_;
  const Downsets* sets_;
  int64_t stride_;
  double threshold_s_ = -1;
  std::vector<double> sum_s_, device_s_;  // least work of every downset
  double rounding_s_;                     // of both
  std::vector<std::vector<double>> slopes_;
  std::vector<int32_t> dearest_;
  std::vector<float> cost_;  // [n * kLanes] of the stage
  std::vector<float> most_;  // [downsets * kLanes]
  std::vector<int16_t> caps_;
};

}  // namespace trainwright
