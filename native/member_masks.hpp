// Comparisons over the 64 members of a group at once, one bit per member.
//
// The hottest loop of a scan: four instructions where the processor has 512-bit vectors, else a
// plain loop over bytes that compilers turn into vector code. Chosen once, when the core is loaded.
#pragma once

#include <cstdint>

namespace trainwright {

constexpr int32_t kMembers = 64;

using AtMost = uint64_t (*)(const int32_t* values, int32_t limit);
extern const AtMost at_most_of_members;

// Members whose value is at most the limit.
inline uint64_t at_most(const int32_t* values, int32_t limit) {
  return at_most_of_members(values, limit);
}

}  // namespace trainwright
