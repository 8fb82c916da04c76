#include "partition/reach_limits.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {
namespace {

constexpr int32_t kUnlimited = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxEntries = int64_t{1} << 24;  // 64 MB in all rows

}  // namespace

ReachLimits::ReachLimits(const Instance& instance, const Downsets& sets, CompletionCaps& caps)
    : in_(&instance), sets_(&sets), caps_(&caps) {
  const int64_t size = int64_t{sets.num_groups()} * kMembers;
  const int64_t own = std::clamp<int64_t>(kMaxEntries / size, 1, 64);
  rows_.resize(std::min<size_t>(own, instance.data_degrees.size()));
}

void ReachLimits::reset(Row& row) const {
  row.target = 0;
  row.limit.assign(int64_t{sets_->num_groups()} * kMembers, kUnlimited);
  std::fill(row.limit.begin() + sets_->count, row.limit.end(), 0);
  row.fine.assign(sets_->num_groups(), kUnlimited);
  row.capped_at.assign(sets_->num_groups(), -1);
}

void ReachLimits::restart() {
  by_sum_.clear();
  for (Row& row : rows_) row.target = -1;
}

ReachLimits::Row& ReachLimits::row(size_t slot, int32_t sum) {
  const bool is_shared = slot + 1 >= rows_.size() && rows_.size() < in_->data_degrees.size();
  Row& row = rows_[std::min(slot, rows_.size() - 1)];
  const int32_t target = sum + static_cast<int32_t>(in_->data_degrees[slot]);
  if (row.target == target) return row;
  if (is_shared || row.target < 0) reset(row);
  fold(row, target);
  return row;
}

void ReachLimits::fold(Row& row, int32_t target) {
  const auto end = by_sum_.upper_bound(target);
  for (auto at = by_sum_.upper_bound(row.target); at != end; ++at)
    for (const auto& [downset, devices] : at->second)
      row.limit[downset] = std::min(row.limit[downset], devices);
  row.target = target;
  row.caps = &caps_->at_sum(target);
}

void ReachLimits::Row::lower(int32_t group) {
  const int64_t first = int64_t{group} * kMembers;
  int32_t* own = limit.data() + first;
  const int32_t *sums = caps->sum.data() + first, *devices = caps->devices.data() + first;
  int32_t most = 0;
  for (int32_t i = 0; i < kMembers; ++i) {
    own[i] = std::min(own[i], target <= sums[i] ? devices[i] + 1 : 0);
    most = std::max(most, own[i]);
  }
  fine[group] = most;
  capped_at[group] = target;
}

void ReachLimits::add(int32_t downset, int32_t sum, int32_t devices) {
  by_sum_[sum].push_back({downset, devices});
  for (Row& row : rows_)
    if (row.target >= sum) row.limit[downset] = std::min(row.limit[downset], devices);
}

int64_t ReachLimits::bytes() const {
  return static_cast<int64_t>(rows_.size() * sets_->num_groups() * kMembers * sizeof(int32_t));
}

}  // namespace trainwright
