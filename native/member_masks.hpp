// Comparisons over the 64 members of a group at once, one bit per member.
//
// Written as plain loops over bytes and 32-bit integers, which compilers turn into vector code.
#pragma once

#include <cstdint>
#include <cstring>

namespace trainwright {

constexpr int32_t kMembers = 64;

// Bit i is the lowest bit of flags[i].
inline uint64_t bits_of(const uint8_t* flags) {
  uint64_t bits = 0;
  for (int32_t i = 0; i < kMembers; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, flags + i, sizeof eight);
    bits |= ((eight & 0x0101010101010101) * 0x0102040810204080 >> 56) << i;
  }
  return bits;
}

// Members whose value is at most the limit.
inline uint64_t at_most(const int32_t* values, int32_t limit) {
  uint8_t flags[kMembers];
  for (int32_t i = 0; i < kMembers; ++i) flags[i] = values[i] <= limit;
  return bits_of(flags);
}

}  // namespace trainwright
