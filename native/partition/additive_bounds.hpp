// Lower bounds on a stage that are differences of prefix sums over downsets.
//
// For a multiplier mu >= 0, phi(v) = min over options of (p + mu (a y + b)) adds over layers, and
//
//     stage time * d  >=  Phi(D) - Phi(D') - mu M          (Lagrange, memory relaxed).
//
// A table holds 6 multipliers for one y, the fastest time (mu = 0) and the least memory
// (mu -> infinity): 8 lanes. Lanes are integers rounded down, so that sums are exact, inclusion
// never lowers them, and a rejection is a proof without any slack for rounding. A bound for a
// smaller y is valid for a larger one, so tables exist on a grid of y only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/member_masks.hpp"

namespace trainwright {

struct BoundTable {
  static constexpr int32_t kLanes = kRowLanes;
  static constexpr int32_t kMemoryLane = kLanes - 1;
  static constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

  // Units per second of lanes that are compared together with cut_floors.hpp.
  static double cut_scale(const Instance& instance, int32_t degree);

  double multiplier[kLanes] = {};
  double scale[kLanes] = {};       // units per second, or per byte in the memory lane
  int32_t total[kLanes] = {};      // Phi(V)
  int32_t cut_mask[kLanes] = {};   // -1 for lanes in the units of cut_scale
  std::vector<int32_t> sums;       // [groups * 64 * lanes], zeros after the last downset
  std::vector<int32_t> fine;       // least lanes per group of 64
  std::vector<int32_t> from_fine;  // least lanes of this group and all after it

  // What a stage within `limit_s` = lambda d may add to Phi, per lane.
  void rooms(double limit_s, double memory_bytes, int32_t* out) const;
  // Largest Phi(D) that a stage in front of `below` may reach.
  void thresholds(int32_t below, const int32_t* room, int32_t* out) const {
    const int32_t* own = row(below);
    for (int32_t i = 0; i < kLanes; ++i) out[i] = own[i] + std::min(room[i], kMost - own[i]);
  }
  // Some lane above its threshold? The hottest test: four lanes at a time.
  static bool exceeds(const int32_t* lanes, const int32_t* threshold) {
    using Four [[gnu::vector_size(16)]] = int32_t;
    Four over = {};
    for (int32_t i = 0; i < kLanes; i += 4) {
      Four lane, limit;
      std::memcpy(&lane, lanes + i, sizeof lane);
      std::memcpy(&limit, threshold + i, sizeof limit);
      over |= lane > limit;
    }
    uint64_t half[2];
    std::memcpy(half, &over, sizeof half);
    return (half[0] | half[1]) != 0;
  }
  // Thresholds for members that cost at least `cut` units of communication on top of the time.
  void lower_thresholds(const int32_t* threshold, int32_t cut, int32_t* out) const {
    for (int32_t i = 0; i < kLanes; ++i) out[i] = threshold[i] - (cut & cut_mask[i]);
  }
  const int32_t* row(int32_t i) const { return sums.data() + int64_t{i} * kLanes; }
  void fetch(int32_t i) const { __builtin_prefetch(row(i)); }  // into the cache
  int32_t sum(int32_t i, int32_t lane) const { return row(i)[lane]; }
  // Those of the members that are within the thresholds.
  uint64_t within(int32_t group, const int32_t* threshold, uint64_t members) const {
    return rows_within(row(group * kMembers), threshold, members);
  }
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
  // Every y up to this passes the least-memory test of the stage: beyond it nothing fits.
  int64_t most_in_flight(int32_t below, int32_t above, int32_t degree);
  int64_t num_built() const { return num_built_; }
  // The y that share a table share a slot.
  int64_t num_slots() const { return static_cast<int64_t>(grid_.size()); }
  int64_t slot(int64_t y) const;

 private:
  std::unique_ptr<BoundTable> build(BoundKind kind, int32_t degree, int64_t y);

  const Instance* instance_;
  const Downsets* sets_;
  std::vector<int64_t> grid_;                                     // ascending y
  std::vector<int32_t> slot_of_;                                  // grid slot of small y
  std::vector<std::vector<std::unique_ptr<BoundTable>>> tables_;  // [kind and degree][grid slot]
  int64_t num_built_ = 0;
};

}  // namespace trainwright
