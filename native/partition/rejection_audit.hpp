// A reservoir sample of the stages a search rejected, for somebody else to prove again.
//
// Every rejected stage is offered, and of those skipped in groups one at random per group. The
// sample depends on the seed and the search alone, not on clock or address.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/partition.hpp"
#include "partition/stage_test.hpp"

namespace trainwright {

class RejectionAudit {
 public:
  RejectionAudit(const Instance& instance, int64_t most, uint64_t seed)
      : in_(&instance), most_(most), state_(seed) {}

  bool is_on() const { return most_ > 0; }
  void offer(const Downsets& sets, const StageKey& stage, double threshold_s);
  // One of the stages from `below` to some superset among the members [begin, end), if the one
  // drawn is a superset.
  void offer_group(const Downsets& sets, StageKey stage, int32_t begin, int32_t end,
                   double threshold_s);
  // A number less than `end`.
  uint64_t draw(uint64_t end);

  // What a scan from one downset rejects in groups (superset_scan.hpp).
  struct Watch {
    void group(int32_t begin, int32_t end) {
      audit.offer_group(sets, stage, begin, std::min(end, sets.count), threshold_s);
    }
    void members(int32_t begin, uint64_t mask) {
      if (mask == 0) return;
      for (uint64_t skip = audit.draw(static_cast<uint64_t>(std::popcount(mask))); skip > 0; --skip)
        mask &= mask - 1;
      StageKey drawn = stage;
      drawn.above = begin + std::countr_zero(mask);
      audit.offer(sets, drawn, threshold_s);
    }
    RejectionAudit& audit;
    const Downsets& sets;
    StageKey stage;
    double threshold_s;
  };

  std::vector<RejectedStage> take() { return std::move(sample_); }

 private:
  const Instance* in_;
  int64_t most_, num_offered_ = 0;
  uint64_t state_;
  std::vector<RejectedStage> sample_;
};

}  // namespace trainwright
