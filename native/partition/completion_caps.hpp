// How much of s and k a label may have spent if what is left is still to be placed.
//
// A stage in front of a label with sum s holds sum(a (d + s) + b d) <= d M over its d replicas, so
// for every multiplier mu (additive_bounds.hpp), with y = 1 + s,
//
//     sum over unplaced layers of min t (p + mu (a y + b))  <=  (lambda + mu M) (devices left),
//
// and the same without t for the data degrees left. Caps for a smaller s hold for a larger one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "partition/additive_bounds.hpp"
#include "partition/depth_prices.hpp"
#include "partition/downsets.hpp"
#include "partition/instance.hpp"

namespace trainwright {

struct Cap {
  int32_t sum = -1, devices = -1;  // labels beyond cannot be completed
  bool allows(int32_t s, int32_t k) const { return s <= sum && k <= devices; }
};

class CompletionCaps {
 public:
  struct Level {
    std::vector<int32_t> sum, devices;  // per downset, [groups * 64]
    double threshold_s = -1;            // of the pass it was computed for

    std::vector<int32_t> fine;        // devices: at least the largest of a group of 64
    std::vector<int32_t> most_up_to;  // and of this group and all before

    // Groups before this one allow no label with so many devices.
    int32_t first_group(int32_t devices) const {
      const auto begin = most_up_to.begin(), end = most_up_to.end();
      return static_cast<int32_t>(std::lower_bound(begin, end, devices) - begin);
    }

    Cap own(int32_t downset) const { return {sum[downset], devices[downset]}; }
  };
  // `is_priced`: by depth_prices.hpp instead.
  CompletionCaps(const Instance& instance, const Downsets& sets, AdditiveBounds& bounds,
                 bool is_priced);

  void restart(double threshold_s);
  // Labels are also dropped that have fewer devices left than this, by the devices they need at
  // least [max_devices + 1]. Proves nothing; empty: no such limit.
  void set_least_left(std::vector<int32_t> least_left);
  // Caps for labels with at least this sum.
  Level& at_sum(int64_t sum);
  // Those of one downset by the bounds alone, without filling a level.
  Cap cap(int32_t downset, int64_t sum);

  // Whether caps can be lowered one by one.
  bool can_learn() const { return prices_ != nullptr; }
  // Until a pass has a larger threshold than this, what is learned holds.
  void learn(double threshold_s);
  // Learned: no label with at least this sum and so many devices can be completed at the downset.
  // False if that is known already.
  bool lower(int32_t downset, int64_t sum, int32_t devices);

 private:
  struct Need;  // of one table at the threshold
  int64_t level_of(int64_t sum) const;
  void fill(Level& level, int64_t sum);
  void fill_additively(Level& level, int64_t sum);
  void find_most(Level& level) const;
  Cap cap_from(const Need& sums, const Need& devices, int32_t downset) const;

  const Instance* in_;
  const Downsets* sets_;
  AdditiveBounds* bounds_;
  double threshold_s_ = 0;
  std::vector<int32_t> least_left_;
  std::vector<int16_t> learned_;         // most devices by sum and downset; empty: nothing learned
  double learned_to_s_ = 0;              // the largest threshold it is valid for
  std::unique_ptr<DepthPrices> prices_;  // null: not priced
  std::vector<std::unique_ptr<Level>> levels_;
};

}  // namespace trainwright
