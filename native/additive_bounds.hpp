// Lower bounds on a stage that are differences of prefix sums over downsets.
//
// For a multiplier mu >= 0, phi(v) = min over options of (p + mu (a y + b)) adds over layers, and
//
//     stage time * d  >=  Phi(D) - Phi(D') - mu M          (Lagrange, memory relaxed).
//
// A table holds 14 multipliers for one y, the fastest time (mu = 0) and the least memory
// (mu -> infinity): 16 lanes. Lanes are integers rounded down, so that sums are exact, inclusion
// never lowers them, and a rejection is a proof without any slack for rounding. A bound for a
// smaller y is valid for a larger one, so tables exist on a grid of y only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "downsets.hpp"
#include "instance.hpp"

namespace trainwright {

struct BoundTable {
  static constexpr int32_t kLanes = 16;
  static constexpr int32_t kMemoryLane = 15;
  static constexpr int32_t kSuper = 8;  // groups of 64 per coarse group

  double multiplier[kLanes] = {};
  double scale[kLanes] = {};          // units per second, or per byte in the memory lane
  int32_t total[kLanes] = {};         // Phi(V)
  std::vector<int32_t> sums;          // [downsets * lanes]
  std::vector<int32_t> fine, coarse;  // least lanes per group of 64, and of 512

  // Largest Phi(D) a stage in front of `below` may reach within `limit_s` = lambda d.
  void thresholds(int32_t below, double limit_s, double memory_bytes, int32_t* out) const;
  static bool exceeds(const int32_t* lanes, const int32_t* threshold) {
    int32_t over = 0;
    for (int32_t i = 0; i < kLanes; ++i) over |= lanes[i] > threshold[i];
    return over != 0;
  }
  const int32_t* lanes(int32_t i) const { return sums.data() + int64_t{i} * kLanes; }
  // Seconds of stage time * d that the lanes prove for the pair.
  double proved_s(int32_t below, int32_t above, double memory_bytes) const;
};

// Which sums: a tensor degree's own, or the least over all degrees of phi (data degrees a layer
// needs) or of t * phi (devices a layer needs). The last two bound what is still to be placed.
enum class BoundKind { degree, data_degrees, devices };

class AdditiveBounds {
 public:
  AdditiveBounds(const Instance& instance, const Downsets& sets, int64_t max_bytes);

  const BoundTable& table(BoundKind kind, int32_t degree, int64_t y);
  int64_t num_built() const { return num_built_; }

 private:
  int64_t grid_slot(int64_t y) const;
  std::unique_ptr<BoundTable> build(BoundKind kind, int32_t degree, int64_t y) const;

  const Instance* instance_;
  const Downsets* sets_;
  std::vector<int64_t> grid_;                                     // ascending y
  std::vector<int32_t> slot_of_;                                  // grid slot of small y
  std::vector<std::vector<std::unique_ptr<BoundTable>>> tables_;  // [kind and degree][grid slot]
  int64_t num_built_ = 0;
};

}  // namespace trainwright
