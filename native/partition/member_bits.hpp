// Which members of a group of 64 downsets have a layer: one word per (group, layer).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/member_masks.hpp"

namespace trainwright {

class MemberBits {
 public:
  explicit MemberBits(const Downsets& sets)
      : num_layers_(sets.num_layers), bits_(int64_t{sets.num_groups()} * sets.num_layers, 0) {
    for (int32_t group = 0; group < sets.num_groups(); ++group) add_group(sets, group);
  }
  uint64_t with(int32_t group, int32_t layer) const { return bits_[at(group, layer)]; }

 private:
  void add_group(const Downsets& sets, int32_t group) {
    const int32_t begin = group * kMembers, size = std::min(kMembers, sets.count - begin);
    const int64_t words = int64_t{group} * sets.num_words;
    for (int32_t w = 0; w < sets.num_words; ++w) {
      const uint64_t all = sets.group_and[words + w];  // most layers: the members have much alike
      for (uint64_t rest = all; rest != 0; rest &= rest - 1)
        bits_[at(group, w * 64 + std::countr_zero(rest))] = ~uint64_t{0} >> (kMembers - size);
      for (int32_t i = 0; i < size; ++i)
        for (uint64_t rest = sets.row(begin + i)[w] & ~all; rest != 0; rest &= rest - 1)
          bits_[at(group, w * 64 + std::countr_zero(rest))] |= uint64_t{1} << i;
    }
  }
  int64_t at(int32_t group, int32_t layer) const { return int64_t{group} * num_layers_ + layer; }

  int64_t num_layers_;
  std::vector<uint64_t> bits_;
};

}  // namespace trainwright
