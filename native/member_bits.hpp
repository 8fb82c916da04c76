// Which members of a group of 64 downsets have a layer: one word per (group, layer).
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "downsets.hpp"
#include "member_masks.hpp"

namespace trainwright {

class MemberBits {
 public:
  explicit MemberBits(const Downsets& sets)
      : num_layers_(sets.num_layers), bits_(int64_t{sets.num_groups()} * sets.num_layers, 0) {
    for (int32_t i = 0; i < sets.count; ++i)
      for_each_between(sets, 0, i, [&](int32_t layer) {
        bits_[at(i / kMembers, layer)] |= uint64_t{1} << (i % kMembers);
      });
  }
  uint64_t with(int32_t group, int32_t layer) const { return bits_[at(group, layer)]; }

 private:
  int64_t at(int32_t group, int32_t layer) const { return int64_t{group} * num_layers_ + layer; }

  int64_t num_layers_;
  std::vector<uint64_t> bits_;
};

}  // namespace trainwright
