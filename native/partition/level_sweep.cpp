#include "partition/level_sweep.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "partition/restricted_cuts.hpp"

namespace trainwright {
namespace {

constexpr double kSlack = 1 + 1e-11;
constexpr size_t kBatch = 512;  // labels scanned together; each keeps its list of groups
constexpr size_t kAhead = 8;    // labels in a batch whose sums are fetched ahead

}  // namespace

LevelSweep::LevelSweep(const Instance& instance, const Downsets& sets,
                       const PartitionLimits& limits, RejectionAudit& audit)
    : in_(&instance),
      sets_(&sets),
      bounds_(instance, sets, limits.max_table_bytes),
      caps_(instance, sets, bounds_,
            !PairCursors::affordable(sets, instance.num_degrees, limits.max_pairs) &&
                DepthPrices::pays(instance, sets, limits)),
      test_(instance, sets, bounds_, limits),
      cursors_(PairCursors::affordable(sets, instance.num_degrees, limits.max_pairs)
                   ? std::make_unique<PairCursors>(instance, sets, test_, bounds_)
                   : nullptr),
      scanning_(cursors_ ? nullptr : std::make_unique<Scanning>(instance, sets, test_, caps_)),
      labels_(instance, sets, scanning_ ? &scanning_->reach : nullptr),
      audit_(&audit) {}

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
        best =
            std::max(best, table.total[i] / (table.scale[i] * kSlack) / static_cast<double>(room) -
                               table.multiplier[i] * in_->memory_bytes * kSlack);
  }
  return best;
}

PassAnswer LevelSweep::run(double threshold_s, const Stop& stop) {
  threshold_s_ = floor_s_ = threshold_s;
  found_ = nullptr;
  has_window_ = false;
  return sweep(stop);
}

PassAnswer LevelSweep::run_through(double threshold_s, const Found& found, const Stop& stop) {
  threshold_s_ = floor_s_ = threshold_s;
  found_ = &found;
  has_window_ = false;
  return sweep(stop);
}

PassAnswer LevelSweep::run_window(double floor_s, double ceiling_s, int64_t most_labels,
                                  const Found& found, const Stop& stop) {
  most_labels_ = most_labels;
  threshold_s_ = ceiling_s;
  floor_s_ = floor_s;
  found_ = &found;
  has_window_ = true;
  return sweep(stop);
}

void LevelSweep::follow(const std::vector<PartitionStage>& stages, double time_s, int32_t slack) {
  if (stages.empty()) return caps_.set_least_left({});
  caps_.restart(time_s);
  const auto most = static_cast<int32_t>(in_->max_devices);
  const std::vector<uint64_t> rows = cuts_of(*in_, stages);
  std::vector<int32_t> least_left(most + 1);
  std::iota(least_left.begin(), least_left.end(), 0);
  int32_t sum = 0, left = most, needed = most - caps_.cap(0, 0).devices;
  for (size_t i = 0; i < stages.size(); ++i) {  // from the last stage on
    const PartitionStage& stage = stages[stages.size() - 1 - i];
    sum += static_cast<int32_t>(stage.data_degree);
    const int32_t left_now = left - static_cast<int32_t>(stage.data_degree) * stage.tensor_degree;
    const bool is_cut = i + 1 < stages.size();
    const int32_t at = is_cut ? sets_->find(rows.data() + i * in_->num_words) : sets_->count - 1;
    if (at < 0) return caps_.set_least_left({});  // not a plan of this family
    const int32_t needed_now = most - caps_.cap(at, sum).devices;
    for (int32_t n = needed_now; n <= std::min(needed, most); ++n) {
      const double share = static_cast<double>(n - needed_now) / std::max(1, needed - needed_now);
      const double there = left_now + share * (left - left_now);
      least_left[n] = std::max(n, static_cast<int32_t>(there) - slack);
    }
    left = left_now;
    needed = needed_now;
  }
  caps_.set_least_left(std::move(least_left));
}

PassAnswer LevelSweep::sweep(const Stop& stop) {
  is_unresolved_ = has_found_ = false;
  goal_ = -1;
  labels_.clear();
  queue_.clear();
  caps_.restart(threshold_s_);
  if (cursors_) cursors_->restart(threshold_s_);
  if (scanning_) scanning_->reach.restart();
  const int32_t root = labels_.add({0, 0, 0, -1, 0, 0, true, false});
  queue_.push_back({0, 0, 0, root});
  ++counters_.passes;
  PassAnswer answer = PassAnswer::no;
  while (goal_ < 0) {
    if (has_window_ &&
        threshold_s_ <= floor_s_) {  // a plan below the window, also of the last batch
      answer = PassAnswer::yes;
      break;
    }
    if (!next_batch()) break;
    if (has_window_ && labels_.size() > most_labels_) {
      answer = PassAnswer::too_wide;
      break;
    }
    if (stop()) {
      answer = PassAnswer::stopped;
      break;
    }
    if (cursors_) {
      expand_by_pairs(batch_[0]);
    } else {
      expand_by_scan(batch_, stop);
    }
  }
  if (goal_ < 0 && stop()) answer = PassAnswer::stopped;
  if (goal_ < 0 && answer == PassAnswer::no && is_unresolved_) answer = PassAnswer::unresolved;
  count();
  if (!has_window_ && has_found_ && answer == PassAnswer::no) return PassAnswer::yes;
  return goal_ >= 0 ? PassAnswer::yes : answer;
}

// Takes labels with the least s that may lead to a plan: one, or for a scan up to kBatch.
bool LevelSweep::next_batch() {
  batch_.clear();
  const size_t most = cursors_ ? 1 : kBatch;
  while (!queue_.empty() && batch_.size() < most) {
    const int32_t from = queue_.front().label;
    if (!batch_.empty() && labels_[from].sum != labels_[batch_[0]].sum) break;
    std::pop_heap(queue_.begin(), queue_.end());
    queue_.pop_back();
    if (is_alive(labels_[from])) batch_.push_back(from);
  }
  counters_.starts += static_cast<int64_t>(batch_.size());
  return !batch_.empty();
}

bool LevelSweep::is_alive(const Label& label) {
  if (label.is_dead) return false;
  if (label.late_s > 0)  // both may have changed since it was made
    return label.late_s <= threshold_s_ &&
           !labels_.dominated(label.downset, label.sum, label.devices);
  // A scan has asked the same before it made the label.
  return !cursors_ || caps_.cap(label.downset, label.sum).allows(label.sum, label.devices);
}

void LevelSweep::count() {
  counters_.labels += labels_.size();
  counters_.peak_label_bytes = std::max(counters_.peak_label_bytes, labels_.bytes());
  const PartitionCounters& tests = test_.counters();
  counters_.candidates = tests.candidates;
  counters_.relaxations = tests.relaxations;
  counters_.knapsacks = tests.knapsacks;
  counters_.capped_knapsacks = tests.capped_knapsacks;
  counters_.bound_tables = bounds_.num_built();
}

bool LevelSweep::fits(const StageKey& stage, double threshold_s) {
  const Verdict verdict =
      cursors_ ? test_.fits(stage, threshold_s) : test_.settle(stage, threshold_s);
  if (verdict == Verdict::unknown) is_unresolved_ = true;
  if (verdict == Verdict::no && audit_->is_on()) audit_->offer(*sets_, stage, threshold_s);
  return verdict == Verdict::yes;
}

double LevelSweep::late_s(const Label& behind, const StageKey& stage) {
  constexpr double kBeyond = std::numeric_limits<double>::infinity();
  if (!has_window_) return fits(stage, threshold_s_) ? 0 : kBeyond;
  if (test_.settle(stage, floor_s_) == Verdict::yes) return behind.late_s;
  if (!fits(stage, threshold_s_)) return kBeyond;
  const int64_t num_capped = test_.counters().capped_knapsacks;
  const double least_s = test_.least_s(stage, threshold_s_);
  if (test_.counters().capped_knapsacks > num_capped) is_unresolved_ = true;
  return std::max(behind.late_s, least_s);
}

// One of the data degrees [first, end) that a cursor left out behind `sum`.
void LevelSweep::audit_skipped(StageKey stage, int32_t first, int32_t end, int32_t sum) {
  if (!audit_->is_on() || first >= end) return;
  stage.data_degree = in_->data_degrees[first + static_cast<int32_t>(audit_->draw(end - first))];
  stage.in_flight = 1 + (sum + stage.data_degree - 1) / stage.data_degree;
  audit_->offer(*sets_, stage, threshold_s_);
}

void LevelSweep::reach(int32_t from, const StageKey& stage, double late_s) {
  const Label& behind = labels_[from];
  const int32_t d = static_cast<int32_t>(stage.data_degree);
  const Label label{
      stage.above, behind.sum + d, behind.devices + d * in_->problem->tensor_degrees[stage.degree],
      from,        stage.degree,   d,
      true,        false,          late_s};
  if (stage.above == sets_->count - 1) return reach_goal(label);
  const int32_t number = labels_.add(label);
  queue_.push_back({label.sum, label.devices, label.downset, number});
  std::push_heap(queue_.begin(), queue_.end());
}

// Without a window the pass ends here. In a window the plan lowers the threshold.
void LevelSweep::reach_goal(const Label& label) {
  if (!found_) {
    goal_ = labels_.add(label);
    return;
  }
  const double threshold_s = (*found_)(plan_from(label));
  has_found_ = true;
  if (threshold_s >= threshold_s_ && has_window_)
    is_unresolved_ = true;  // rounding: no better than known
  threshold_s_ = std::min(threshold_s_, threshold_s);
}

void LevelSweep::expand_by_pairs(int32_t from) {
  for (const PairCursors::Pair& pair : cursors_->pairs_above(labels_[from].downset))
    for (int32_t t = 0; t < in_->num_degrees; ++t) {
      extend_pair(from, pair, t);
      if (goal_ >= 0) return;
    }
}

// Reaches D with the smallest data degree that fits, unless a label there dominates.
void LevelSweep::extend_pair(int32_t from, const PairCursors::Pair& pair, int32_t t) {
  const Label& start = labels_[from];
  const int32_t num_data = static_cast<int32_t>(in_->data_degrees.size());
  const Cap cap = caps_.at_sum(1).own(pair.above);  // of some stage behind
  PairCursors::Cursor& cursor = cursors_->cursor(pair, t);
  StageKey stage{start.downset, pair.above, t, 0, 0};
  if (cursor.at < 0) {
    cursors_->begin(cursor, t);
    audit_skipped(stage, 0, cursor.at, start.sum);
  }
  while (cursor.at < num_data) {
    const int64_t d = in_->data_degrees[cursor.at];
    const int64_t sum = start.sum + d;
    const int64_t devices = start.devices + d * in_->problem->tensor_degrees[t];
    if (!cap.allows(static_cast<int32_t>(sum), static_cast<int32_t>(devices))) return;
    if (labels_.dominated(pair.above, static_cast<int32_t>(sum), static_cast<int32_t>(devices)))
      return;
    stage.data_degree = d;
    if (start.sum > cursor.fits_to) {
      stage.in_flight = 1 + (start.sum + d - 1) / d;
      const int32_t before = cursor.at;
      if (cursors_->skip_memory(cursor, pair, start.downset, t, start.sum)) {
        audit_skipped(stage, before, cursor.at, start.sum);
        continue;
      }
      if (!fits(stage, threshold_s_)) {
        cursors_->advance(cursor, t);
        continue;
      }
      cursor.fits_to = static_cast<int32_t>(d * (stage.in_flight - 1));
    }
    return reach(from, stage, 0);
  }
}

// All labels of the batch have the same s': one (t, d) after the other for all of them, so that
// one table stays in the cache and small data degrees dominate first.
void LevelSweep::expand_by_scan(const std::vector<int32_t>& batch, const Stop& stop) {
  if (scans_.size() < batch.size()) scans_.resize(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) start_scan(labels_[batch[i]].downset, scans_[i]);
  const int32_t sum = labels_[batch[0]].sum;
  for (size_t slot = 0; slot < in_->data_degrees.size(); ++slot) {
    const int64_t d = in_->data_degrees[slot];
    if (sum + d > in_->max_sum) return;
    ReachLimits::Row& reach = scanning_->reach.row(slot, sum);
    for (int32_t t = 0; t < in_->num_degrees; ++t) {
      const int64_t devices = d * in_->problem->tensor_degrees[t];
      const BoundTable& table = bounds_.table(BoundKind::degree, t, 1 + (sum + d - 1) / d);
      alignas(64) int32_t room[BoundTable::kLanes];
      table.rooms(threshold_s_ * static_cast<double>(d), in_->memory_bytes, room);
      for (size_t i = 0; i < batch.size() && goal_ < 0; ++i) {
        if (i + kAhead < batch.size()) table.fetch(labels_[batch[i + kAhead]].downset);
        if (labels_[batch[i]].devices + devices > in_->max_devices) continue;
        scan_degree(batch[i], t, d, {table, room, reach}, scans_[i]);
        if (stop()) return;
      }
    }
  }
}

void LevelSweep::start_scan(int32_t below, SupersetScan& scan) {
  scan.start(*sets_, scanning_->members, below);
  scan.cuts.resize(in_->num_degrees);
  const StageTest::Boundary& boundary = test_.start_at(below);
  for (int32_t t = 0; t < in_->num_degrees; ++t) scanning_->cuts.start(boundary, t, scan.cuts[t]);
}

void LevelSweep::scan_degree(int32_t from, int32_t degree, int64_t d,
                             const SupersetScan::Limits<ReachLimits::Row>& limits,
                             SupersetScan& scan) {
  const Label start = labels_[from];
  StageKey stage{start.downset, 0, degree, d, 1 + (start.sum + d - 1) / d};
  scan.cuts[degree].data_degree_less_1 = d - 1;
  const int32_t sum = limits.reach.target;
  const int32_t devices =
      start.devices + static_cast<int32_t>(d) * in_->problem->tensor_degrees[degree];
  const auto visit = [&](int32_t above) {
    if (start.late_s > 0 && labels_.late_dominated(above, sum, devices, start.late_s)) return true;
    stage.above = above;
    const double late = late_s(start, stage);
    if (late <= threshold_s_ && (late == 0 || !labels_.late_dominated(above, sum, devices, late)))
      this->reach(from, stage, late);
    return goal_ < 0;
  };
  const SupersetScan::Bounds<ReachLimits::Row> bounds{limits, scan.cuts[degree], devices};
  if (audit_->is_on()) {
    scan.for_each(bounds, visit, RejectionAudit::Watch{*audit_, *sets_, stage, threshold_s_});
  } else {
    scan.for_each(bounds, visit, SupersetScan::Unwatched{});
  }
}

std::vector<PartitionStage> LevelSweep::plan() { return plan_from(labels_[goal_]); }

std::vector<PartitionStage> LevelSweep::plan_from(const Label& first) {
  std::vector<PartitionStage> stages;
  for (const Label* label = &first; label->parent >= 0; label = &labels_[label->parent]) {
    const Label& behind = labels_[label->parent];
    const int64_t d = label->data_degree;
    stages.push_back(test_.best(
        {behind.downset, label->downset, label->degree, d, 1 + (behind.sum + d - 1) / d}));
  }
  return stages;
}

}  // namespace trainwright
