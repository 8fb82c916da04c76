// How many devices a label may have used if what is left is still to be placed: a bound that
// follows the microbatches in flight from stage to stage.
//
// A stage of data degree d and tensor degree t in front of a label with sum s' keeps
// y = 1 + ceil(s'/d) microbatches. For every multiplier mu >= 0 of its memory
//
//     sum over its layers of c(v)  <=  d,
//     c(v) = d min over options of (p + 4 (d - 1)/(N B) w + mu (a y + b)) / (lambda d + mu M).
//
// With a price of pi devices per unit of c, a label (s', k) at D can be completed only if
//
//     k  <=  C(D, s')  =  max over d, t of  min over mu, pi of
//            max over D'' > D of  C(D'', s' + d) - d t - pi (sum over D'' \ D of c - d)
//
// and C(V, s) = K. The inner maximum is a longest path: it takes the layers of D'' \ D one after
// the other, for eight prices at once. One multiplier per stage is nearly as good as eight; several
// prices are worth 2% of the bound, for C moves in whole devices and a stage that may exceed d at
// a price wins the next one. Needs the complete family of downsets.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"

namespace trainwright {

class DepthPrices {
 public:
  static constexpr int32_t kLanes = 8;

  static bool pays(const Instance& instance, const Downsets& sets, const PartitionLimits& limits);
  DepthPrices(const Instance& instance, const Downsets& sets);

  // Caps for this threshold, or for one slightly above it that are known: they hold below it.
  void restart(double threshold_s);

  int64_t num_sums() const { return in_->max_sum + 1; }
  // Most devices of a label that can be completed, -1 if none. Never grows with the sum.
  int32_t most_devices(int32_t downset, int64_t sum) const {
    return caps_[sum * sets_->count + rank_[downset]];
  }

 private:
  void rank_downsets();
  void price(int32_t sum, size_t slot, int32_t t);
  void relax_degrees(int32_t sum, int32_t width, int32_t parity);
  void keep_falling(int32_t sum);
  void relax(int32_t sum, int32_t width, int32_t d, int32_t t);

  const Instance* in_;
  const Downsets* sets_;
  double threshold_s_ = -1;
  std::vector<int32_t> rank_;             // of a downset: descending least sum_s, V first
  std::vector<double> sum_s_, device_s_;  // by rank: least time, and least t * time, of the layers
  std::vector<int32_t> link_offset_, link_layer_, link_target_;  // by rank: one layer more
  std::vector<std::vector<double>> slopes_;  // per degree: seconds per byte saved, ascending
  std::vector<int32_t> dearest_;             // per data and tensor degree: where to look first
  std::vector<float> cost_;                  // [n * kLanes]: pi c of the stage
  std::vector<float> most_;                  // [ranks * kLanes]: the inner maximum
  std::vector<int16_t> caps_;                // C by sum and rank
};

}  // namespace trainwright
