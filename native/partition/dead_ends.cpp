// After a pass: which of its labels cannot be completed within a threshold?
//
// Downsets are taken from large to small. A label is a dead end when no stage in front of it fits
// and ends where labels may still be completed; then no label of the downset with as much s and k
// can be completed either, nor one on the downset without some good layers. That is a proof by
// itself, whatever the pass left out, and lowers the caps of passes with smaller thresholds: near
// the best plan half of all labels to three quarters are never made again.
#include <algorithm>

#include "partition/level_sweep.hpp"

namespace trainwright {
namespace {

// Where labels with one sum may still be completed, for a scan.
struct OpenEnds {
  CompletionCaps::Level& level;

  int32_t first_group(int32_t devices) const { return level.first_group(devices); }
  bool is_closed(int32_t group, int32_t devices) const { return level.fine[group] < devices; }
  bool is_open(int32_t downset, int32_t devices) const { return level.devices[downset] >= devices; }
  uint64_t open_members(int32_t group, int32_t devices) {
    const int32_t* own = level.devices.data() + int64_t{group} * kMembers;
    const uint64_t open = ~at_most(own, devices - 1);
    if (open == 0) level.fine[group] = *std::max_element(own, own + kMembers);
    return open;
  }
};

}  // namespace

bool LevelSweep::find_dead_ends(double threshold_s, const Stop& stop) {
  threshold_s_ = threshold_s;
  caps_.learn(threshold_s);
  std::vector<int32_t> order;  // of the labels that were extended
  for (int32_t i = 0; i < labels_.size(); ++i)
    if (labels_[i].is_real && !labels_[i].is_dead) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const Label &x = labels_[a], &y = labels_[b];
    if (x.downset != y.downset) return x.downset > y.downset;
    return x.sum != y.sum ? x.sum < y.sum : a < b;
  });
  if (scans_.empty()) scans_.resize(1);
  std::vector<uint8_t> is_alive(labels_.size(), 0);
  int32_t below = -1;
  for (const int32_t i : order) {
    if (stop()) return false;
    const Label& label = labels_[i];
    if (!is_alive[i]) {
      if (label.downset != below) start_scan(below = label.downset, scans_[0]);
      if (!can_complete(label, scans_[0])) {
        ++counters_.dead_ends;
        bury(label);
        continue;
      }
    }
    if (label.parent < 0) return false;
    is_alive[label.parent] = is_alive[label.parent] || is_within(label);
  }
  return true;
}

// The stage in front of its parent fits the threshold also now.
bool LevelSweep::is_within(const Label& label) {
  const Label& behind = labels_[label.parent];
  const int64_t d = label.data_degree;
  return test_.settle(
             {behind.downset, label.downset, label.degree, d, 1 + (behind.sum + d - 1) / d},
             threshold_s_) != Verdict::no;
}

// Whether some stage in front of the label fits and ends where a label may be completed.
bool LevelSweep::can_complete(const Label& label, SupersetScan& scan) {
  if (label.devices > caps_.at_sum(label.sum).devices[label.downset]) return false;
  for (const int64_t d : in_->data_degrees) {
    if (label.sum + d > in_->max_sum) return false;
    OpenEnds open{caps_.at_sum(label.sum + d)};
    for (int32_t t = 0; t < in_->num_degrees; ++t) {
      const int64_t devices = label.devices + d * in_->problem->tensor_degrees[t];
      if (devices > in_->max_devices) continue;
      StageKey stage{label.downset, 0, t, d, 1 + (label.sum + d - 1) / d};
      const BoundTable& table = bounds_.table(BoundKind::degree, t, stage.in_flight);
      alignas(64) int32_t room[BoundTable::kLanes];
      table.rooms(threshold_s_ * static_cast<double>(d), in_->memory_bytes, room);
      scan.cuts[t].data_degree_less_1 = d - 1;
      bool is_found = false;
      const auto visit = [&](int32_t above) {
        stage.above = above;
        const Verdict verdict = test_.settle(stage, threshold_s_);
        if (verdict == Verdict::no && audit_->is_on()) audit_->offer(*sets_, stage, threshold_s_);
        is_found = verdict != Verdict::no;
        return !is_found;
      };
      const SupersetScan::Bounds<OpenEnds> bounds{
          {table, room, open}, scan.cuts[t], static_cast<int32_t>(devices)};
      if (audit_->is_on()) {
        scan.for_each(bounds, visit, RejectionAudit::Watch{*audit_, *sets_, stage, threshold_s_});
      } else {
        scan.for_each(bounds, visit, SupersetScan::Unwatched{});
      }
      if (is_found) return true;
    }
  }
  return false;
}

void LevelSweep::bury(const Label& label) {
  std::vector<int32_t> news{label.downset};
  caps_.lower(label.downset, label.sum, label.devices);
  while (!news.empty()) {
    const int32_t from = news.back();
    news.pop_back();
    for (int32_t i = sets_->down.offset[from]; i < sets_->down.offset[from + 1]; ++i) {
      const int32_t target = sets_->down.target[i];
      if (in_->is_good[sets_->down.layer[i]] && target != 0 &&
          caps_.lower(target, label.sum, label.devices))
        news.push_back(target);
    }
  }
}

}  // namespace trainwright
