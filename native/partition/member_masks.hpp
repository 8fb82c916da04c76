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

constexpr int32_t kRowLanes = 8;

using RowsWithin = uint64_t (*)(const int32_t* rows, const int32_t* most, uint64_t members);
extern const RowsWithin rows_within_of_members;

// Those of the members whose row of values is nowhere above `most` [kRowLanes].
inline uint64_t rows_within(const int32_t* rows, const int32_t* most, uint64_t members) {
  return rows_within_of_members(rows, most, members);
}

}  // namespace trainwright
