#include "superset_scan.hpp"

#include <algorithm>

namespace trainwright {

void SupersetScan::start(const Downsets& sets, int32_t below) {
  below_ = below;
  groups_.clear();
  coarse_.clear();
  const int32_t first = (below + 1) / Downsets::kGroup, words = sets.num_words;
  for (int32_t coarse = (sets.num_groups() - 1) / Downsets::kSuper;
       coarse >= first / Downsets::kSuper; --coarse) {
    if (!sets.is_subset_of(below, sets.coarse_or.data() + int64_t{coarse} * words)) continue;
    coarse_.push_back({coarse, static_cast<int32_t>(groups_.size())});
    const int32_t end = std::min((coarse + 1) * Downsets::kSuper, sets.num_groups());
    for (int32_t group = end; group-- > std::max(first, coarse * Downsets::kSuper);)
      if (sets.is_subset_of(below, sets.group_or.data() + int64_t{group} * words))
        groups_.push_back({group, false, 0});
  }
  coarse_.push_back({-1, static_cast<int32_t>(groups_.size())});
}

// Members of the group that contain D', bit i for member 64 * group + i.
uint64_t SupersetScan::supersets_in(const Downsets& sets, int32_t group) const {
  const int64_t words = sets.num_words;
  const uint64_t* below = sets.row(below_);
  const uint64_t* all = sets.group_and.data() + group * words;
  const int32_t begin = group * Downsets::kGroup;
  const int32_t size = std::min(Downsets::kGroup, sets.count - begin);
  uint64_t mask = size == 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;
  for (int64_t w = 0; w < words && mask != 0; ++w) {
    if ((below[w] & ~all[w]) == 0) continue;  // every member has these layers
    const uint64_t* member = sets.row(begin) + w;
    uint64_t inside = 0;
    for (int32_t i = 0; i < size; ++i)
      inside |= uint64_t{(below[w] & ~member[i * words]) == 0} << i;
    mask &= inside;
  }
  if (begin <= below_) mask &= ~uint64_t{1} << (below_ - begin);  // larger ones only
  return mask;
}

}  // namespace trainwright
