#include "partition/member_masks.hpp"

#include <bit>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define TRAINWRIGHT_X86
#include <immintrin.h>
#endif

namespace trainwright {
namespace {

uint64_t at_most_portable(const int32_t* values, int32_t limit) {
  uint8_t flags[kMembers];
  for (int32_t i = 0; i < kMembers; ++i) flags[i] = values[i] <= limit;
  uint64_t bits = 0;
  for (int32_t i = 0; i < kMembers; i += 8) {  // the lowest bit of every byte
    uint64_t eight;
    std::memcpy(&eight, flags + i, sizeof eight);
    bits |= ((eight & 0x0101010101010101) * 0x0102040810204080 >> 56) << i;
  }
  return bits;
}

uint64_t rows_within_portable(const int32_t* rows, const int32_t* most, uint64_t members) {
  uint64_t within = 0;
  for (; members != 0; members &= members - 1) {
    const int32_t member = std::countr_zero(members);
    const int32_t* row = rows + member * kRowLanes;
    int32_t over = 0;
    for (int32_t i = 0; i < kRowLanes; ++i) over |= row[i] > most[i];
    within |= uint64_t{over == 0} << member;
  }
  return within;
}

#ifdef TRAINWRIGHT_X86
__attribute__((target("avx2,bmi"))) uint64_t rows_within_avx2(const int32_t* rows,
                                                              const int32_t* most,
                                                              uint64_t members) {
  const __m256i limit = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(most));
  uint64_t within = 0;
  for (; members != 0; members &= members - 1) {
    const int32_t member = std::countr_zero(members);
    const auto* row = reinterpret_cast<const __m256i*>(rows + member * kRowLanes);
    const __m256i over = _mm256_cmpgt_epi32(_mm256_loadu_si256(row), limit);
    within |= uint64_t{_mm256_testz_si256(over, over) != 0} << member;
  }
  return within;
}

__attribute__((target("avx512f"))) uint64_t at_most_avx512(const int32_t* values, int32_t limit) {
  const __m512i most = _mm512_set1_epi32(limit);
  uint64_t bits = 0;
  for (int32_t i = 0; i < kMembers; i += 16)
    bits |= uint64_t{_mm512_cmple_epi32_mask(_mm512_loadu_si512(values + i), most)} << i;
  return bits;
}

__attribute__((target("avx2"))) uint64_t at_most_avx2(const int32_t* values, int32_t limit) {
  const __m256i most = _mm256_set1_epi32(limit);
  uint64_t above = 0;
  for (int32_t i = 0; i < kMembers; i += 8) {
    const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
    const __m256 over = _mm256_castsi256_ps(_mm256_cmpgt_epi32(eight, most));
    above |= uint64_t{static_cast<uint32_t>(_mm256_movemask_ps(over))} << i;
  }
  return ~above;
}
#endif

AtMost best_at_most() {
#ifdef TRAINWRIGHT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return at_most_avx512;
  if (__builtin_cpu_supports("avx2")) return at_most_avx2;
#endif
  return at_most_portable;
}

RowsWithin best_rows_within() {
#ifdef TRAINWRIGHT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi")) return rows_within_avx2;
#endif
  return rows_within_portable;
}

}  // namespace

const RowsWithin rows_within_of_members = best_rows_within();
const AtMost at_most_of_members = best_at_most();

}  // namespace trainwright
