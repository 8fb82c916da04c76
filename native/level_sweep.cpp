#include "level_sweep.hpp"

#include <algorithm>
#include <cmath>

namespace trainwright {
namespace {

constexpr double kSlack = 1 + 1e-11;
constexpr int32_t kLanes = BoundTable::kLanes;

// Data degrees (or devices) without which the layers outside a downset cannot be placed.
int64_t units_needed(const BoundTable& table, int32_t downset, double threshold_s,
                     double memory_bytes) {
  double most = 0;
  for (int32_t i = 0; i < kLanes; ++i) {
    const double left = table.total[i] - table.lanes(downset)[i];
    const double room = i == BoundTable::kMemoryLane
                            ? memory_bytes
                            : threshold_s + table.multiplier[i] * memory_bytes;
    const double capacity = room * kSlack * table.scale[i];  // of one device
    if (left > 0 && capacity <= 0) return int64_t{1} << 40;
    if (left > 0) most = std::max(most, left / capacity);
  }
  return static_cast<int64_t>(std::ceil(std::min(most, 0x1p40)));
}

}  // namespace

LevelSweep::LevelSweep(const Instance& instance, const Downsets& sets,
                       const PartitionLimits& limits)
    : in_(&instance),
      sets_(&sets),
      bounds_(instance, sets, limits.max_table_bytes),
      test_(instance, sets, bounds_, limits),
      labels_(instance, sets) {
  if (PairCursors::affordable(sets, instance.num_degrees))
    cursors_ = std::make_unique<PairCursors>(instance, sets, test_);
}

bool LevelSweep::Queued::operator<(const Queued& other) const {
  if (sum != other.sum) return sum > other.sum;
  if (devices != other.devices) return devices > other.devices;
  if (downset != other.downset) return downset < other.downset;  // larger downsets first
  return label > other.label;
}

double LevelSweep::root_bound_s() {
  // Largest threshold at which the empty downset is not completable, by bisection in closed form:
  // Phi_mu(V) <= (lambda + mu M) R gives lambda >= Phi_mu(V) / R - mu M.
  double best = 0;
  for (const auto& [kind, room] : {std::pair{BoundKind::data_degrees, in_->max_sum},
                                   std::pair{BoundKind::devices, in_->max_devices}}) {
    const BoundTable& table = bounds_.table(kind, 0, 1);
    for (int32_t i = 0; i < BoundTable::kMemoryLane; ++i)
      if (table.scale[i] > 0)
        best = std::max(best, table.total[i] / (table.scale[i] * kSlack) /
                                      static_cast<double>(room) -
                                  table.multiplier[i] * in_->memory_bytes * kSlack);
  }
  return best;
}

// Every stage in front of a non-empty downset keeps y >= 2.
void LevelSweep::find_caps() {
  sum_cap_.resize(sets_->count);
  devices_cap_.resize(sets_->count);
  const BoundTable& sums = bounds_.table(BoundKind::data_degrees, 0, 2);
  const BoundTable& devices = bounds_.table(BoundKind::devices, 0, 2);
  for (int32_t i = 0; i < sets_->count; ++i) {
    const double memory = in_->memory_bytes;
    const int64_t sum = units_needed(sums, i, threshold_s_, memory);
    const int64_t device = &sums == &devices ? sum : units_needed(devices, i, threshold_s_, memory);
    sum_cap_[i] = static_cast<int32_t>(std::max<int64_t>(-1, in_->max_sum - sum));
    devices_cap_[i] = static_cast<int32_t>(std::max<int64_t>(-1, in_->max_devices - device));
  }
}

bool LevelSweep::completable(const Label& label) {
  const int64_t y = 1 + label.sum;
  const BoundTable& sums = bounds_.table(BoundKind::data_degrees, 0, y);
  if (label.sum + units_needed(sums, label.downset, threshold_s_, in_->memory_bytes) >
      in_->max_sum)
    return false;
  const BoundTable& devices = bounds_.table(BoundKind::devices, 0, y);
  return &sums == &devices ? label.devices + units_needed(sums, label.downset, threshold_s_,
                                                          in_->memory_bytes) <= in_->max_devices
                           : label.devices + units_needed(devices, label.downset, threshold_s_,
                                                          in_->memory_bytes) <= in_->max_devices;
}

PassAnswer LevelSweep::run(double threshold_s, const Stop& stop) {
  threshold_s_ = threshold_s;
  is_unresolved_ = false;
  goal_ = -1;
  labels_.clear();
  queue_.clear();
  find_caps();
  if (cursors_) cursors_->restart(threshold_s);
  const int32_t root = labels_.add({0, 0, 0, -1, 0, 0, true, false});
  queue_.push_back({0, 0, 0, root});
  ++counters_.passes;
  while (!queue_.empty() && goal_ < 0) {
    std::pop_heap(queue_.begin(), queue_.end());
    const int32_t from = queue_.back().label;
    queue_.pop_back();
    if (labels_[from].is_dead || !completable(labels_[from])) continue;
    if (stop()) return PassAnswer::stopped;
    if (cursors_) {
      expand_by_pairs(from);
    } else {
      expand_by_scan(from);
    }
  }
  counters_.labels += labels_.size();
  counters_.peak_label_bytes = std::max(counters_.peak_label_bytes, labels_.bytes());
  const PartitionCounters& tests = test_.counters();
  counters_.candidates = tests.candidates;
  counters_.relaxations = tests.relaxations;
  counters_.knapsacks = tests.knapsacks;
  counters_.capped_knapsacks = tests.capped_knapsacks;
  counters_.bound_tables = bounds_.num_built();
  if (goal_ >= 0) return PassAnswer::yes;
  return is_unresolved_ ? PassAnswer::unresolved : PassAnswer::no;
}

void LevelSweep::reach(int32_t from, const StageKey& stage) {
  const Label& behind = labels_[from];
  const int32_t d = static_cast<int32_t>(stage.data_degree);
  const Label label{stage.above,
                    behind.sum + d,
                    behind.devices + d * in_->problem->tensor_degrees[stage.degree],
                    from,
                    stage.degree,
                    d,
                    true,
                    false};
  const int32_t number = labels_.add(label);
  if (stage.above == sets_->count - 1) {
    goal_ = number;
    return;
  }
  queue_.push_back({label.sum, label.devices, label.downset, number});
  std::push_heap(queue_.begin(), queue_.end());
}

void LevelSweep::expand_by_pairs(int32_t from) {
  const Label start = labels_[from];
  const int32_t num_data = static_cast<int32_t>(in_->data_degrees.size());
  for (const PairCursors::Pair& pair : cursors_->pairs_above(start.downset)) {
    for (int32_t t = 0; t < in_->num_degrees; ++t) {
      PairCursors::Cursor& cursor = cursors_->cursor(pair, t);
      if (cursor.at < 0) cursors_->advance(cursor, t);
      for (; cursor.at < num_data; cursors_->advance(cursor, t)) {
        const int64_t d = in_->data_degrees[cursor.at];
        const int64_t sum = start.sum + d;
        const int64_t devices = start.devices + d * in_->problem->tensor_degrees[t];
        if (sum > sum_cap_[pair.above] || devices > devices_cap_[pair.above]) break;
        if (labels_.dominated(pair.above, static_cast<int32_t>(sum), static_cast<int32_t>(devices)))
          break;
        const int64_t y = 1 + (start.sum + d - 1) / d;
        const StageKey stage{start.downset, pair.above, t, d, y};
        Verdict verdict = Verdict::yes;
        if (start.sum > cursor.fits_to) verdict = test_.fits(stage, threshold_s_);
        if (verdict == Verdict::unknown) is_unresolved_ = true;
        if (verdict != Verdict::yes) continue;
        cursor.fits_to = std::max<int32_t>(cursor.fits_to, static_cast<int32_t>(d * (y - 1)));
        reach(from, stage);
        if (goal_ >= 0) return;
        break;
      }
    }
  }
}

void LevelSweep::expand_by_scan(int32_t from) {
  const Label start = labels_[from];
  test_.start_at(start.downset);
  for (int64_t d : in_->data_degrees) {
    if (start.sum + d > in_->max_sum) return;
    for (int32_t t = 0; t < in_->num_degrees; ++t) {
      if (start.devices + d * in_->problem->tensor_degrees[t] > in_->max_devices) break;
      scan_degree(from, t, d);
      if (goal_ >= 0) return;
    }
  }
}

void LevelSweep::scan_degree(int32_t from, int32_t degree, int64_t d) {
  const Label start = labels_[from];
  const StageKey stage{start.downset, 0, degree, d, 1 + (start.sum + d - 1) / d};
  const BoundTable& table = bounds_.table(BoundKind::degree, degree, stage.in_flight);
  alignas(64) int32_t thresholds[kLanes];
  const double limit_s = threshold_s_ * static_cast<double>(d);
  table.thresholds(start.downset, limit_s, in_->memory_bytes, thresholds);
  const double reach_key = static_cast<double>(sets_->order_key[start.downset]) +
                           limit_s * kSlack * sets_->order_scale + in_->num_layers;
  const auto end = std::upper_bound(sets_->order_key.begin(), sets_->order_key.end(), reach_key,
                                    [](double x, int64_t key) { return x < static_cast<double>(key); });
  const int32_t last = static_cast<int32_t>(end - sets_->order_key.begin()) - 1;
  if (last <= start.downset) return;
  const int32_t sum = start.sum + static_cast<int32_t>(d);
  const int32_t devices =
      start.devices + static_cast<int32_t>(d) * in_->problem->tensor_degrees[degree];
  const int32_t first_group = (start.downset + 1) / Downsets::kGroup;
  for (int32_t group = last / Downsets::kGroup; group >= first_group && goal_ < 0; --group) {
    if (BoundTable::exceeds(table.coarse.data() + int64_t{group / BoundTable::kSuper} * kLanes,
                            thresholds)) {
      group = group / BoundTable::kSuper * BoundTable::kSuper;  // skip the coarse group
      continue;
    }
    if (BoundTable::exceeds(table.fine.data() + int64_t{group} * kLanes, thresholds)) continue;
    if (labels_.group_dominated(group, sum, devices)) continue;
    scan_group(from, stage, group, table, thresholds);
  }
}

void LevelSweep::scan_group(int32_t from, const StageKey& wanted, int32_t group,
                            const BoundTable& table, const int32_t* thresholds) {
  // Words in which some member may miss a layer of D'.
  const uint64_t* below = sets_->row(wanted.below);
  const uint64_t* all = sets_->group_and.data() + int64_t{group} * sets_->num_words;
  const uint64_t* any = sets_->group_or.data() + int64_t{group} * sets_->num_words;
  int32_t first_word = sets_->num_words, last_word = -1;
  for (int32_t w = 0; w < sets_->num_words; ++w) {
    if (below[w] & ~any[w]) return;
    if ((below[w] & ~all[w]) == 0) continue;
    first_word = std::min(first_word, w);
    last_word = w;
  }
  const int32_t sum = labels_[from].sum + static_cast<int32_t>(wanted.data_degree);
  const int32_t devices = labels_[from].devices +
                          static_cast<int32_t>(wanted.data_degree) *
                              in_->problem->tensor_degrees[wanted.degree];
  const int32_t begin = std::max(group * Downsets::kGroup, wanted.below + 1);
  const int32_t end = std::min((group + 1) * Downsets::kGroup, sets_->count);
  for (int32_t above = end; above-- > begin;) {
    if (sum > sum_cap_[above] || devices > devices_cap_[above]) continue;
    if (labels_.dominated(above, sum, devices)) continue;
    const uint64_t* set = sets_->row(above);
    bool is_superset = true;
    for (int32_t w = first_word; w <= last_word; ++w) is_superset &= (below[w] & ~set[w]) == 0;
    if (!is_superset || BoundTable::exceeds(table.lanes(above), thresholds)) continue;
    StageKey stage = wanted;
    stage.above = above;
    const Verdict verdict = test_.fits(stage, threshold_s_);
    if (verdict == Verdict::unknown) is_unresolved_ = true;
    if (verdict == Verdict::yes) reach(from, stage);
    if (goal_ >= 0) return;
  }
}

std::vector<PartitionStage> LevelSweep::plan() {
  std::vector<PartitionStage> stages;
  for (int32_t at = goal_; labels_[at].parent >= 0; at = labels_[at].parent) {
    const Label& label = labels_[at];
    const Label& behind = labels_[label.parent];
    const int64_t d = label.data_degree;
    stages.push_back(test_.best(
        {behind.downset, label.downset, label.degree, d, 1 + (behind.sum + d - 1) / d}));
  }
  return stages;
}

}  // namespace trainwright
