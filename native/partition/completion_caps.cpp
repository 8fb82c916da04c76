#include "partition/completion_caps.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainwright {
namespace {

constexpr double kSlack = 1 + 1e-11;
constexpr int32_t kLanes = BoundTable::kLanes;
constexpr double kNever = 0x1p40;  // units, when a device has no capacity at all

}  // namespace

CompletionCaps::CompletionCaps(const Instance& instance, const Downsets& sets,
                               AdditiveBounds& bounds, bool is_priced)
    : in_(&instance), sets_(&sets), bounds_(&bounds) {
  if (is_priced) prices_ = std::make_unique<DepthPrices>(instance, sets);
  levels_.resize(prices_ ? prices_->num_sums() : bounds.num_slots());
}

void CompletionCaps::restart(double threshold_s) {
  threshold_s_ = threshold_s;
  if (threshold_s > learned_to_s_) learned_.clear();
  if (prices_) prices_->restart(threshold_s);
}

int64_t CompletionCaps::level_of(int64_t sum) const {
  return prices_ ? sum : bounds_->slot(1 + sum);
}

// Units (devices or data degrees) per lane value, so that a downset costs one pass over its lanes.
struct CompletionCaps::Need {
  Need(const BoundTable& bounds, double threshold_s, double memory_bytes) : table(&bounds) {
    for (int32_t i = 0; i < kLanes; ++i) {
      const double room = i == BoundTable::kMemoryLane
                              ? memory_bytes
                              : threshold_s + bounds.multiplier[i] * memory_bytes;
      const double capacity = room * kSlack * bounds.scale[i];  // of one device
      per_value[i] = bounds.scale[i] == 0 ? 0 : capacity > 0 ? 1 / capacity : kNever;
    }
  }
  static int64_t whole(double units) {
    return static_cast<int64_t>(std::ceil(std::min(units * (1 - 1e-14), kNever)));
  }
  int64_t units(int32_t downset) const {
    double most = 0;
    for (int32_t i = 0; i < kLanes; ++i)
      most = std::max(most, (table->total[i] - table->sum(downset, i)) * per_value[i]);
    return whole(most);
  }
  // The same for the 64 members of a group, as what remains of `most`, at least -1.
  void remaining(int32_t group, int64_t most, int32_t* out) const {
    for (int32_t m = 0; m < kMembers; ++m) {
      const int32_t* sums = table->row(group * kMembers + m);
      double units = 0;
      for (int32_t i = 0; i < kLanes; ++i)
        units = std::max(units, static_cast<double>(table->total[i] - sums[i]) * per_value[i]);
      out[m] = static_cast<int32_t>(std::max<int64_t>(-1, most - whole(units)));
    }
  }
  const BoundTable* table;
  double per_value[kLanes];
};

Cap CompletionCaps::cap_from(const Need& sums, const Need& devices, int32_t downset) const {
  const int64_t sum = sums.units(downset);
  const int64_t device = sums.table == devices.table ? sum : devices.units(downset);
  return {static_cast<int32_t>(std::max<int64_t>(-1, in_->max_sum - sum)),
          static_cast<int32_t>(std::max<int64_t>(-1, in_->max_devices - device))};
}

Cap CompletionCaps::cap(int32_t downset, int64_t sum) {
  if (prices_) return {static_cast<int32_t>(in_->max_sum), prices_->most_devices(downset, sum)};
  const double memory = in_->memory_bytes;
  return cap_from(Need(bounds_->table(BoundKind::data_degrees, 0, 1 + sum), threshold_s_, memory),
                  Need(bounds_->table(BoundKind::devices, 0, 1 + sum), threshold_s_, memory),
                  downset);
}

void CompletionCaps::set_least_left(std::vector<int32_t> least_left) {
  least_left_ = std::move(least_left);
  for (auto& level : levels_)
    if (level) level->threshold_s = -1;
}

CompletionCaps::Level& CompletionCaps::at_sum(int64_t sum) {
  const int64_t at = level_of(sum);
  auto& entry = levels_[at];
  if (!entry) entry = std::make_unique<Level>();
  Level& level = *entry;
  if (level.threshold_s == threshold_s_) return level;
  level.threshold_s = threshold_s_;
  fill(level, sum);
  find_most(level);
  return level;
}

void CompletionCaps::fill(Level& level, int64_t sum) {
  level.sum.resize(sets_->num_groups() * kMembers);
  level.devices.resize(level.sum.size());
  if (prices_) {  // nearly always the sharper of the two
    std::fill(level.sum.begin(), level.sum.end(), static_cast<int32_t>(in_->max_sum));
    for (int32_t i = 0; i < sets_->count; ++i) level.devices[i] = prices_->most_devices(i, sum);
    if (!learned_.empty())
      for (int32_t i = 0; i < sets_->count; ++i)
        level.devices[i] = std::min<int32_t>(level.devices[i], learned_[sum * sets_->count + i]);
  } else {
    fill_additively(level, sum);
  }
  if (!least_left_.empty())
    for (int32_t& devices : level.devices)
      if (devices >= 0) {
        const auto most = static_cast<int32_t>(in_->max_devices);
        devices = most - least_left_[most - devices];
      }
}

void CompletionCaps::fill_additively(Level& level, int64_t sum) {
  const double memory = in_->memory_bytes;
  const Need sums(bounds_->table(BoundKind::data_degrees, 0, 1 + sum), threshold_s_, memory);
  const Need devices(bounds_->table(BoundKind::devices, 0, 1 + sum), threshold_s_, memory);
  for (int32_t group = 0; group < sets_->num_groups(); ++group) {
    const int32_t first = group * kMembers;
    sums.remaining(group, in_->max_sum, level.sum.data() + first);
    if (sums.table == devices.table) {
      for (int32_t i = first; i < first + kMembers; ++i)
        level.devices[i] = level.sum[i] + static_cast<int32_t>(in_->max_devices - in_->max_sum);
    } else {
      devices.remaining(group, in_->max_devices, level.devices.data() + first);
    }
  }
}

void CompletionCaps::learn(double threshold_s) {
  restart(threshold_s);
  if (learned_.empty())
    learned_.assign(prices_->num_sums() * sets_->count, std::numeric_limits<int16_t>::max());
  learned_to_s_ = threshold_s;
}

bool CompletionCaps::lower(int32_t downset, int64_t sum, int32_t devices) {
  const auto most = static_cast<int16_t>(devices - 1);
  bool is_news = false;
  for (; sum < prices_->num_sums(); ++sum) {
    int16_t& learned = learned_[sum * sets_->count + downset];
    if (learned <= most) break;  // as for all larger sums
    learned = most;
    Level* level = levels_[sum].get();
    const bool is_filled = level && level->threshold_s == threshold_s_;
    is_news = is_news || !is_filled || level->devices[downset] > most;
    if (is_filled) level->devices[downset] = std::min<int32_t>(level->devices[downset], most);
  }
  return is_news;
}

// Downsets ascend by work: those where so many devices leave too few come first.
void CompletionCaps::find_most(Level& level) const {
  level.fine.resize(sets_->num_groups());
  level.most_up_to.resize(sets_->num_groups());
  int32_t most = -1;
  for (int32_t group = 0; group < sets_->num_groups(); ++group) {
    const auto first = level.devices.begin() + int64_t{group} * kMembers;
    level.fine[group] = *std::max_element(first, first + kMembers);
    level.most_up_to[group] = most = std::max(most, level.fine[group]);
  }
}

}  // namespace trainwright
