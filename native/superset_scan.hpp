// Candidate stages in front of one downset D', from large to small, without a pair list.
//
// Groups of 512 and 64 members are skipped whole when their union misses a layer of D' (once per
// D') or when their least lanes exceed the thresholds (for each y and d); what survives is a bit
// mask of supersets. Valid because the lanes are additive and never fall under inclusion.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "additive_bounds.hpp"
#include "cut_floors.hpp"
#include "downsets.hpp"
#include "member_bits.hpp"
#include "reach_limits.hpp"

namespace trainwright {

class SupersetScan {
 public:
  struct Unwatched {
    void group(int32_t, int32_t) {}
    void members(int32_t, uint64_t) {}
  };
  // Lists the groups above `below`; storage is kept between uses.
  void start(const Downsets& sets, const MemberBits& bits, int32_t below);
  // Least communication of its stages, per tensor degree.
  std::vector<CutFloors::From> cuts;

  // Of the stages that end at s' + d with t: where they are useful, and what they may not exceed.
  struct Bounds {
    const BoundTable& table;
    const int32_t* thresholds;
    const CutFloors::From& cuts;
    ReachLimits::Row& reach;
    int32_t devices;
  };
  // Calls visit(D) for every D > D' within the bounds, until visit returns false. Tells `watch`
  // what the thresholds reject: whole groups, supersets or not, and supersets as masks.
  template <typename Visit, typename Watch>
  void for_each(const Bounds& bounds, Visit visit, Watch watch) {
    const BoundTable& table = bounds.table;
    constexpr int32_t lanes = BoundTable::kLanes;
    const auto begin = coarse_.begin(), last = coarse_.end() - 1;
    const auto first = std::partition_point(begin, last, [&](const Coarse& group) {
      return BoundTable::exceeds(table.from_coarse.data() + int64_t{group.index} * lanes,
                                 bounds.thresholds);
    });
    for (auto group = begin; group != first; ++group)
      watch.group(group->index * kCoarse, (group->index + 1) * kCoarse);
    for (size_t c = first - begin; c + 1 < coarse_.size(); ++c) {
      const int32_t coarse = coarse_[c].index;
      if (bounds.reach.coarse[coarse] <= bounds.devices) continue;
      if (BoundTable::exceeds(table.coarse.data() + int64_t{coarse} * lanes, bounds.thresholds)) {
        watch.group(coarse * kCoarse, (coarse + 1) * kCoarse);
        continue;
      }
      for (int32_t i = coarse_[c].first_group; i < coarse_[c + 1].first_group; ++i) {
        Group& group = groups_[i];
        if (bounds.reach.fine[group.index] <= bounds.devices) continue;
        if (group.is_known && group.members == 0) continue;
        const int32_t begin = group.index * Downsets::kGroup;
        if (BoundTable::exceeds(table.fine.data() + int64_t{group.index} * lanes,
                                bounds.thresholds)) {
          watch.group(begin, begin + Downsets::kGroup);
          continue;
        }
        const uint64_t open = bounds.reach.open_members(group.index, bounds.devices);
        if (open == 0) continue;
        if (!group.is_known) group = {group.index, true, supersets_in(group.index)};
        if ((open & group.members) == 0) continue;
        if (!visit_members(bounds, group.index, open & group.members, visit, watch)) return;
      }
    }
  }

 private:
  static constexpr int32_t kCoarse = Downsets::kGroup * Downsets::kSuper;
  struct Group {
    int32_t index;
    bool is_known;  // members are found at first use
    uint64_t members;
  };
  struct Coarse {
    int32_t index, first_group;  // into groups_
  };
  template <typename Visit, typename Watch>
  bool visit_members(const Bounds& bounds, int32_t group, uint64_t supersets, Visit& visit,
                     Watch& watch) {
    const int32_t begin = group * Downsets::kGroup;
    alignas(64) int32_t lowered[BoundTable::kLanes];
    bounds.table.lower_thresholds(bounds.thresholds, bounds.cuts.of_group(*bits_, group), lowered);
    uint64_t rest = bounds.table.within(group, lowered, supersets, first_lane_);
    watch.members(begin, supersets & ~rest);
    while (rest != 0) {
      const int32_t last = 63 - std::countl_zero(rest);
      rest ^= uint64_t{1} << last;
      if (bounds.reach.limit[begin + last] <= bounds.devices) continue;  // by a label made since
      if (!bounds.table.is_within(group, last, bounds.thresholds,
                                  bounds.cuts.of_member(*bits_, group, last), first_lane_)) {
        watch.members(begin, uint64_t{1} << last);
      } else if (!visit(begin + last)) {
        return false;
      }
    }
    return true;
  }
  uint64_t supersets_in(int32_t group) const;

  const Downsets* sets_ = nullptr;
  const MemberBits* bits_ = nullptr;
  int32_t below_ = 0, first_lane_ = 0;
  std::vector<Group> groups_;
  std::vector<Coarse> coarse_;
};

}  // namespace trainwright
