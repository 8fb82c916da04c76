#include "partition/labels.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {
namespace {

constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

}  // namespace

Labels::Labels(const Instance& instance, const Downsets& sets, ReachLimits* limits)
    : in_(&instance),
      sets_(&sets),
      limits_(limits),
      lists_(sets.count),
      late_(sets.count),
      last_sum_(sets.count, kNone),
      last_devices_(sets.count, kNone),
      least_sum_(sets.count, kNone) {}

void Labels::clear() {
  labels_.clear();
  for (int32_t i : touched_) {
    lists_[i].clear();
    late_[i].clear();
    last_sum_[i] = last_devices_[i] = least_sum_[i] = kNone;
  }
  touched_.clear();
}

bool Labels::dominated_within(int32_t downset, int32_t sum, int32_t devices) const {
  const auto& list = lists_[downset];
  for (size_t i = list.size(); i-- > 0;)  // recent sums are at the back
    if (labels_[list[i]].sum <= sum) return labels_[list[i]].devices <= devices;
  return false;
}

void Labels::place(int32_t number) {
  const Label& label = labels_[number];
  auto& list = lists_[label.downset];
  if (list.empty()) touched_.push_back(label.downset);
  size_t at = list.size();
  while (at > 0 && labels_[list[at - 1]].sum >= label.sum) --at;
  size_t end = at;  // labels with no less s and no less k die
  while (end < list.size() && labels_[list[end]].devices >= label.devices)
    labels_[list[end++]].is_dead = true;
  if (end > at) {
    list[at] = number;
    list.erase(list.begin() + static_cast<int64_t>(at) + 1,
               list.begin() + static_cast<int64_t>(end));
  } else {
    list.insert(list.begin() + static_cast<int64_t>(at), number);
  }
  last_sum_[label.downset] = labels_[list.back()].sum;
  last_devices_[label.downset] = labels_[list.back()].devices;
  least_sum_[label.downset] = labels_[list.front()].sum;
  if (limits_) limits_->add(label.downset, label.sum, label.devices);
}

bool Labels::late_dominated(int32_t downset, int32_t sum, int32_t devices, double late_s) const {
  for (int32_t i : late_[downset]) {
    const Label& label = labels_[i];
    if (label.sum <= sum && label.devices <= devices && label.late_s <= late_s) return true;
  }
  return false;
}

void Labels::place_late(int32_t number) {
  const Label& label = labels_[number];
  auto& list = late_[label.downset];
  if (list.empty()) touched_.push_back(label.downset);
  std::erase_if(list, [&](int32_t i) {
    Label& other = labels_[i];
    const bool covered =
        other.sum >= label.sum && other.devices >= label.devices && other.late_s >= label.late_s;
    other.is_dead = other.is_dead || covered;
    return covered;
  });
  list.push_back(number);
}

int32_t Labels::add(const Label& label) {
  const int32_t number = static_cast<int32_t>(labels_.size());
  labels_.push_back(label);
  if (label.late_s > 0) {
    place_late(number);
  } else {
    place(number);
  }
  spread(number);
  return number;
}

// A real label equal to one that spreads dies: its extensions are covered from the larger downset.
void Labels::kill_equal(const std::vector<int32_t>& list, const Label& label) {
  for (int32_t i : list) {
    Label& other = labels_[i];
    if (other.sum == label.sum && other.devices == label.devices && other.late_s == label.late_s)
      other.is_dead = true;
  }
}

void Labels::spread(int32_t number) {
  if (!sets_->complete) return;  // a restricted family may lack the completion with v moved
  // Where it cannot be completed a label has nobody to dominate, and no smaller downset has.
  const CompletionCaps::Level* caps = limits_ ? &limits_->caps(labels_[number].sum) : nullptr;
  stack_.assign(1, number);
  while (!stack_.empty()) {
    Label label = labels_[stack_.back()];
    stack_.pop_back();
    const bool is_late = label.late_s > 0;
    label.is_real = false;
    label.is_dead = false;
    const int32_t from = label.downset;
    for (int32_t i = sets_->down.offset[from]; i < sets_->down.offset[from + 1]; ++i) {
      if (!in_->is_good[sets_->down.layer[i]]) continue;
      label.downset = sets_->down.target[i];
      if (label.downset == 0) continue;
      if (caps && !caps->own(label.downset).allows(label.sum, label.devices)) continue;
      if (dominated(label.downset, label.sum, label.devices)) {
        if (!is_late) kill_equal(lists_[label.downset], label);
        continue;
      }
      if (is_late && late_dominated(label.downset, label.sum, label.devices, label.late_s)) {
        kill_equal(late_[label.downset], label);
        continue;
      }
      labels_.push_back(label);
      const int32_t added = static_cast<int32_t>(labels_.size()) - 1;
      if (is_late) {
        place_late(added);
      } else {
        place(added);
      }
      stack_.push_back(added);
    }
  }
}

int64_t Labels::bytes() const {
  return static_cast<int64_t>(labels_.capacity() * sizeof(Label) +
                              lists_.size() * (sizeof(lists_[0]) + 3 * sizeof(int32_t)) +
                              labels_.size() * sizeof(int32_t)) +
         (limits_ ? limits_->bytes() : 0);
}

}  // namespace trainwright
