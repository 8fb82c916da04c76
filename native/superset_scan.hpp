// Candidate stages in front of one downset D', from large to small, without a pair list.
//
// Groups of 512 and 64 members are skipped whole when their union misses a layer of D' (once per
// D') or when their least lanes exceed the thresholds (for each y and d); what survives is a bit
// mask of supersets. Valid because the lanes are additive and never fall under inclusion.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "additive_bounds.hpp"
#include "downsets.hpp"

namespace trainwright {

class SupersetScan {
 public:
  struct Unwatched {
    void group(int32_t, int32_t) {}
    void members(int32_t, uint64_t) {}
  };
  // Lists the groups above `below`; storage is kept between uses.
  void start(const Downsets& sets, int32_t below);

  // Calls visit(D) for every D > D' within the thresholds among those that open(group) gives as a
  // mask, until visit returns false. Coarse groups that fail keep_coarse are skipped. Tells
  // `watch` what the thresholds reject: whole groups, supersets or not, and supersets as masks.
  template <typename KeepCoarse, typename Open, typename Visit, typename Watch>
  void for_each(const Downsets& sets, const BoundTable& table, const int32_t* thresholds,
                KeepCoarse keep_coarse, Open open, Visit visit, Watch watch) {
    constexpr int32_t lanes = BoundTable::kLanes;
    for (size_t c = 0; c + 1 < coarse_.size(); ++c) {
      const int32_t coarse = coarse_[c].index;
      if (!keep_coarse(coarse)) continue;
      if (BoundTable::exceeds(table.coarse.data() + int64_t{coarse} * lanes, thresholds)) {
        watch.group(coarse * kCoarse, (coarse + 1) * kCoarse);
        continue;
      }
      for (int32_t i = coarse_[c].first_group; i < coarse_[c + 1].first_group; ++i) {
        Group& group = groups_[i];
        if (group.is_known && group.members == 0) continue;
        const int32_t begin = group.index * Downsets::kGroup;
        if (BoundTable::exceeds(table.fine.data() + int64_t{group.index} * lanes, thresholds)) {
          watch.group(begin, begin + Downsets::kGroup);
          continue;
        }
        uint64_t rest = open(group.index);
        if (rest == 0) continue;
        if (!group.is_known) group = {group.index, true, supersets_in(sets, group.index)};
        const uint64_t supersets = rest & group.members;
        if (supersets == 0) continue;
        rest = table.within(group.index, thresholds, supersets, first_lane_);
        watch.members(begin, supersets & ~rest);
        while (rest != 0) {
          const int32_t last = 63 - std::countl_zero(rest);
          rest ^= uint64_t{1} << last;
          if (!visit(begin + last)) return;
        }
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
  uint64_t supersets_in(const Downsets& sets, int32_t group) const;

  int32_t below_ = 0, first_lane_ = 0;
  std::vector<Group> groups_;
  std::vector<Coarse> coarse_;
};

}  // namespace trainwright
