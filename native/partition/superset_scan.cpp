#include "partition/superset_scan.hpp"

#include <algorithm>

namespace trainwright {

void SupersetScan::start(const Downsets& sets, const MemberBits& bits, int32_t below) {
  sets_ = &sets;
  bits_ = &bits;
  below_ = below;
  first_group_ = (below + 1) / Downsets::kGroup;
  members_.assign(std::max(0, sets.num_groups() - first_group_), {false, 0});
}

// Members of the group that contain D', bit i for member 64 * group + i.
uint64_t SupersetScan::supersets_in(int32_t group) const {
  const int64_t words = sets_->num_words;
  const uint64_t* below = sets_->row(below_);
  const uint64_t* all = sets_->group_and.data() + group * words;
  const int32_t begin = group * Downsets::kGroup;
  const int32_t size = std::min(Downsets::kGroup, sets_->count - begin);
  uint64_t mask = size == 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;
  for (int64_t w = 0; w < words && mask != 0; ++w)
    for (uint64_t rest = below[w] & ~all[w]; rest != 0; rest &= rest - 1)  // not in every member
      mask &= bits_->with(group, static_cast<int32_t>(w * 64 + std::countr_zero(rest)));
  if (begin <= below_) mask &= ~uint64_t{1} << (below_ - begin);  // larger ones only
  return mask;
}

}  // namespace trainwright
