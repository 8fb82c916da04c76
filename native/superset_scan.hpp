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
  // Lists the groups above `below`; storage is kept between uses.
  void start(const Downsets& sets, int32_t below);

  // Calls visit(D) for every D > D' within the thresholds whose group passes keep(group), until
  // visit returns false.
  template <typename Keep, typename Visit>
  void for_each(const Downsets& sets, const BoundTable& table, const int32_t* thresholds, Keep keep,
                Visit visit) {
    constexpr int32_t lanes = BoundTable::kLanes;
    for (size_t c = 0; c + 1 < coarse_.size(); ++c) {
      if (BoundTable::exceeds(table.coarse.data() + int64_t{coarse_[c].index} * lanes, thresholds))
        continue;
      for (int32_t i = coarse_[c].first_group; i < coarse_[c + 1].first_group; ++i) {
        Group& group = groups_[i];
        if (!keep(group.index) ||
            BoundTable::exceeds(table.fine.data() + int64_t{group.index} * lanes, thresholds))
          continue;
        if (!group.is_known) group = {group.index, true, supersets_in(sets, group.index)};
        for (uint64_t rest = group.members; rest != 0;) {
          const int32_t last = 63 - std::countl_zero(rest);
          rest ^= uint64_t{1} << last;
          if (!visit(group.index * Downsets::kGroup + last)) return;
        }
      }
    }
  }

 private:
  struct Group {
    int32_t index;
    bool is_known;  // members are found at first use
    uint64_t members;
  };
  struct Coarse {
    int32_t index, first_group;  // into groups_
  };
  uint64_t supersets_in(const Downsets& sets, int32_t group) const;

  int32_t below_ = 0;
  std::vector<Group> groups_;
  std::vector<Coarse> coarse_;
};

}  // namespace trainwright
