// Candidate stages in front of one downset D', from large to small, without a pair list.
//
// Downsets ascend by work. Those that are of use begin at some group of 64 (reach_limits.hpp),
// those whose least lanes are within the thresholds end at another, found by bisection; between
// them single groups are skipped by the same two. What survives is a bit mask of supersets. Valid
// because the lanes are additive and never fall under inclusion.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "partition/additive_bounds.hpp"
#include "partition/cut_floors.hpp"
#include "partition/downsets.hpp"
#include "partition/member_bits.hpp"
#include "partition/reach_limits.hpp"

namespace trainwright {

class SupersetScan {
 public:
  struct Unwatched {
    void group(int32_t, int32_t) {}
    void members(int32_t, uint64_t) {}
  };
  // Begins with the group of `below`; storage is kept between uses.
  void start(const Downsets& sets, const MemberBits& bits, int32_t below);
  // Least communication of its stages, per tensor degree.
  std::vector<CutFloors::From> cuts;

  // Of all stages with t that end at s' + d: what they may not exceed, and where they are useful.
  // `Reach` says where (reach_limits.hpp, or dead_ends.cpp).
  template <typename Reach>
  struct Limits {
    const BoundTable& table;
    const int32_t* room;
    Reach& reach;
  };
  template <typename Reach>
  struct Bounds {  // of those in front of D'
    Limits<Reach> of;
    const CutFloors::From& cuts;
    int32_t devices;
  };
  // Calls visit(D) for every D > D' within the bounds, until visit returns false. Tells `watch`
  // what the thresholds reject: whole groups, supersets or not, and supersets as masks.
  template <typename Reach, typename Visit, typename Watch>
  void for_each(const Bounds<Reach>& bounds, Visit visit, Watch watch) {
    const BoundTable& table = bounds.of.table;
    constexpr int32_t lanes = BoundTable::kLanes;
    const int32_t all = sets_->num_groups();
    const auto reject = [&](int32_t group) {
      watch.group(group * Downsets::kGroup, (group + 1) * Downsets::kGroup);
    };
    const int32_t low = std::max(first_group_, bounds.of.reach.first_group(bounds.devices));
    if (low >= all) return;
    alignas(64) int32_t thresholds[lanes];
    table.thresholds(below_, bounds.of.room, thresholds);
    int32_t end = low;  // of the groups that may hold a member within the thresholds
    for (int32_t beyond = all; end < beyond;) {
      const int32_t middle = end + (beyond - end) / 2;
      if (BoundTable::exceeds(table.from_fine.data() + int64_t{middle} * lanes, thresholds)) {
        beyond = middle;
      } else {
        end = middle + 1;
      }
    }
    for (int32_t group = all; group-- > end;) reject(group);
    for (int32_t group = end; group-- > low;) {
      if (bounds.of.reach.is_closed(group, bounds.devices)) continue;
      Members& members = members_[group - first_group_];
      if (members.is_known && members.bits == 0) continue;
      if (BoundTable::exceeds(table.fine.data() + int64_t{group} * lanes, thresholds)) {
        reject(group);
        continue;
      }
      const uint64_t open = bounds.of.reach.open_members(group, bounds.devices);
      if (open == 0) continue;
      if (!members.is_known) members = {true, supersets_in(group)};
      if ((open & members.bits) == 0) continue;
      if (!visit_members(bounds, thresholds, group, open & members.bits, visit, watch)) return;
    }
  }

 private:
  struct Members {
    bool is_known;  // found at first use
    uint64_t bits;
  };
  template <typename Reach, typename Visit, typename Watch>
  bool visit_members(const Bounds<Reach>& bounds, const int32_t* thresholds, int32_t group,
                     uint64_t supersets, Visit& visit, Watch& watch) {
    const int32_t begin = group * Downsets::kGroup;
    alignas(64) int32_t lowered[BoundTable::kLanes];
    const int32_t least_cut = bounds.cuts.of_group(*bits_, group);
    bounds.of.table.lower_thresholds(thresholds, least_cut, lowered);
    uint64_t rest = bounds.of.table.within(group, lowered, supersets);
    watch.members(begin, supersets & ~rest);
    while (rest != 0) {
      const int32_t last = 63 - std::countl_zero(rest);
      rest ^= uint64_t{1} << last;
      if (!bounds.of.reach.is_open(begin + last, bounds.devices))
        continue;  // by a label made since
      const int32_t cut = bounds.cuts.of_member(*bits_, group, last);
      if (cut > least_cut) bounds.of.table.lower_thresholds(thresholds, cut, lowered);
      if (cut > least_cut && BoundTable::exceeds(bounds.of.table.row(begin + last), lowered)) {
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
  int32_t below_ = 0, first_group_ = 0;
  std::vector<Members> members_;  // of the groups from the first
};

}  // namespace trainwright
