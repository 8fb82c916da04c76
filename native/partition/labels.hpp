// Per downset, the Pareto-minimal pairs (s, k): sum of data degrees and devices already placed.
//
// Real labels stand for a chain of stages and are extended; virtual labels only dominate. A label
// at D spreads to D \ {v} for every good layer v (instance.hpp) that D can lose: any completion of
// D \ {v} completes D once v is deleted from it, at no cost.
//
// A pass over a window of thresholds also keeps "late" labels, whose slowest stage lies inside the
// window. A late label is dominated by any other within (s, k) that is no slower.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/reach_limits.hpp"

namespace trainwright {

struct Label {
  int32_t downset;
  int32_t sum, devices;         // s, k
  int32_t parent;               // label behind the stage, -1 at {}
  int32_t degree, data_degree;  // of the stage in front
  bool is_real, is_dead;
  double late_s = 0;  // time of the slowest stage, if within the window; 0 if faster
};

class Labels {
 public:
  // A scan is told of every label through `limits`, which may be null.
  Labels(const Instance& instance, const Downsets& sets, ReachLimits* limits);

  void clear();
  bool dominated(int32_t downset, int32_t sum, int32_t devices) const {
    if (last_sum_[downset] <= sum) return last_devices_[downset] <= devices;
    return least_sum_[downset] <= sum && dominated_within(downset, sum, devices);
  }
  bool late_dominated(int32_t downset, int32_t sum, int32_t devices, double late_s) const;
  // Adds a label that is not dominated and spreads it. Returns its number.
  int32_t add(const Label& label);

  const Label& operator[](int32_t i) const { return labels_[i]; }
  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  int64_t bytes() const;

 private:
  bool dominated_within(int32_t downset, int32_t sum, int32_t devices) const;
  void place(int32_t number);
  void place_late(int32_t number);
  void kill_equal(const std::vector<int32_t>& list, const Label& label);
  void spread(int32_t number);

  const Instance* in_;
  const Downsets* sets_;
  ReachLimits* limits_;
  std::vector<Label> labels_;
  std::vector<std::vector<int32_t>> lists_;  // ascending s, descending k
  std::vector<std::vector<int32_t>> late_;   // late labels, in the order they came
  // Of the label with the largest sum and fewest devices; smallest sum of any label.
  std::vector<int32_t> last_sum_, last_devices_, least_sum_;
  std::vector<int32_t> touched_, stack_;
};

}  // namespace trainwright
