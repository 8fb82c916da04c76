// What a stage in front of a label may reach: for each data degree d and downset, the devices
// from which on there is nothing to gain.
//
// While labels with sum s' are extended, a stage of degree d ends at s' + d. It is of no use at a
// downset that has a label within (s' + d, k), nor where no label beyond k can be completed
// (completion_caps.hpp). Both are one number per (d, downset), since s' only grows: the 64 members
// of a group are settled by one comparison each, however many labels they have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "partition/completion_caps.hpp"
#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/member_masks.hpp"

namespace trainwright {

class ReachLimits {
 public:
  struct Row {                       // of one data degree
    int32_t target = 0;              // s' + d
    std::vector<int32_t> limit;      // per downset, [groups * 64]: useful below this many devices
    std::vector<int32_t> fine;       // at least the largest per group of 64
    std::vector<int32_t> capped_at;  // per group: target at which caps were last looked up
    const CompletionCaps::Level* caps = nullptr;

    // Groups before this one are of no use.
    int32_t first_group(int32_t devices) const { return caps->first_group(devices); }
    bool is_closed(int32_t group, int32_t devices) const { return fine[group] <= devices; }
    bool is_open(int32_t downset, int32_t devices) const { return limit[downset] > devices; }
    uint64_t open_members(int32_t group, int32_t devices) {
      if (capped_at[group] != target) lower(group);
      return ~at_most(limit.data() + int64_t{group} * kMembers, devices);
    }
    void lower(int32_t group);  // to the caps
  };

  ReachLimits(const Instance& instance, const Downsets& sets, CompletionCaps& caps);

  void restart();
  // Of the data degree in this slot, while labels with `sum` (never less than before) are extended.
  Row& row(size_t slot, int32_t sum);
  void add(int32_t downset, int32_t sum, int32_t devices);
  const CompletionCaps::Level& caps(int32_t sum) { return caps_->at_sum(sum); }
  int64_t bytes() const;

 private:
  void reset(Row& row) const;
  void fold(Row& row, int32_t target);

  const Instance* in_;
  const Downsets* sets_;
  CompletionCaps* caps_;
  std::vector<Row> rows_;  // of the smallest data degrees; the others share the last row
  std::map<int32_t, std::vector<std::pair<int32_t, int32_t>>> by_sum_;  // (downset, devices)
};

}  // namespace trainwright
