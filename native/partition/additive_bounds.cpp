#include "partition/additive_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace trainwright {
namespace {

constexpr int32_t kLanes = BoundTable::kLanes;
constexpr double kUnits = 0x1p30;  // a lane's total
// Lanes up to this many times the fastest total share units, so that one floor of what a stage cuts
// serves all of them. It costs the fastest lane four of its thirty bits.
constexpr double kCutLanes = 16;
constexpr double kSlack = 1 + 1e-11;  // room for the rounding of limits; lanes round down

// One option as the bound sees it: time and memory at y, both times the weight of its degree.
struct Point {
  double time_s, memory_bytes;
};

using Points = std::span<const Point>;

void append_points(const Instance& in, BoundKind kind, int32_t degree, int32_t v, int64_t y,
                   std::vector<Point>& points) {
  for (int32_t t = 0; t < in.num_degrees; ++t) {
    if (kind == BoundKind::degree && t != degree) continue;
    const double weight = kind == BoundKind::devices ? in.problem->tensor_degrees[t] : 1;
    for (int64_t o = in.option_first[in.slot(v, t)]; o < in.option_first[in.slot(v, t) + 1]; ++o) {
      const Option& option = in.options[o];
      const double memory = option.saved_bytes * static_cast<double>(y) + option.static_bytes;
      points.push_back({weight * option.time_s, weight * memory});
    }
  }
}

double value_at(Points points, double multiplier) {
  double least = std::numeric_limits<double>::infinity();
  for (const Point& x : points) least = std::min(least, x.time_s + multiplier * x.memory_bytes);
  return least;
}

// Seconds per byte at which a layer would change from its fastest option to another.
void append_slopes(Points points, std::vector<double>& slopes) {
  if (points.empty()) return;
  const Point& fastest =
      *std::min_element(points.begin(), points.end(),
                        [](const Point& a, const Point& b) { return a.time_s < b.time_s; });
  for (const Point& x : points) {
    const double saving = fastest.memory_bytes - x.memory_bytes;
    const double extra = x.time_s - fastest.time_s;
    if (saving > 0 && extra > 0) slopes.push_back(extra / saving);
  }
}

void least_per_group(const std::vector<int32_t>& rows, int64_t count, int64_t group,
                     std::vector<int32_t>& out) {
  out.assign((count + group - 1) / group * kLanes, std::numeric_limits<int32_t>::max());
  for (int64_t i = 0; i < count; ++i)
    for (int32_t j = 0; j < kLanes; ++j) {
      int32_t& least = out[i / group * kLanes + j];
      least = std::min(least, rows[i * kLanes + j]);
    }
}

}  // namespace

double BoundTable::cut_scale(const Instance& in, int32_t degree) {
  double total = 0;
  for (int32_t v = 0; v < in.num_layers; ++v)
    if (in.offers(v, degree)) total += in.fastest_s(v, degree);
  return total > 0 && std::isfinite(total) ? kUnits / (kCutLanes * total) : 0;
}

void BoundTable::rooms(double limit_s, double memory_bytes, int32_t* out) const {
  for (int32_t i = 0; i < kLanes; ++i) {
    const double room = i == kMemoryLane ? memory_bytes : limit_s + multiplier[i] * memory_bytes;
    out[i] =
        static_cast<int32_t>(std::min<double>(room * kSlack * scale[i], kMost));  // rounds down
  }
}

double BoundTable::proved_s(int32_t below, int32_t above, double memory_bytes) const {
  double best = 0;
  for (int32_t i = 0; i < kMemoryLane; ++i) {
    if (scale[i] == 0) continue;
    const double units = sum(above, i) - sum(below, i);
    best = std::max(best, units / (scale[i] * kSlack) - multiplier[i] * memory_bytes);
  }
  return best;
}

AdditiveBounds::AdditiveBounds(const Instance& instance, const Downsets& sets, int64_t max_bytes)
    : instance_(&instance), sets_(&sets), tables_(instance.num_degrees + 2) {
  // Every y up to 16 if the budget allows, then geometric steps that fit it.
  const int64_t table_bytes = int64_t{sets.count} * kLanes * 4 + 1;
  const int64_t num_kinds = instance.num_degrees + (instance.num_degrees > 1 ? 2 : 0);
  const int64_t affordable = std::clamp<int64_t>(max_bytes / table_bytes / num_kinds, 2, 96);
  const int64_t most = instance.max_sum + 1;
  double step = 1.08;
  while (16 * std::pow(step, static_cast<double>(affordable) - 16) < static_cast<double>(most) &&
         step < 4)
    step *= 1.02;
  for (int64_t y = 1; y <= most;) {
    grid_.push_back(y);
    const int64_t next = static_cast<int64_t>(static_cast<double>(y) * step);
    y = std::max(y + 1, next);
    if (static_cast<int64_t>(grid_.size()) >= affordable) break;
  }
  slot_of_.assign(std::min<int64_t>(most, 4096) + 1, 0);
  for (size_t y = 1, at = 0; y < slot_of_.size(); ++y) {
    while (at + 1 < grid_.size() && grid_[at + 1] <= static_cast<int64_t>(y)) ++at;
    slot_of_[y] = static_cast<int32_t>(at);
  }
  for (auto& kind : tables_) kind.resize(grid_.size());
}

int64_t AdditiveBounds::slot(int64_t y) const {
  if (y < static_cast<int64_t>(slot_of_.size())) return slot_of_[y];
  return std::upper_bound(grid_.begin(), grid_.end(), y) - grid_.begin() - 1;
}

const BoundTable& AdditiveBounds::table(BoundKind kind, int32_t degree, int64_t y) {
  if (kind != BoundKind::degree && instance_->num_degrees == 1 &&
      instance_->problem->tensor_degrees[0] == 1)
    kind = BoundKind::degree, degree = 0;
  const int64_t at = slot(y);
  const int32_t row = kind == BoundKind::degree
                          ? degree
                          : instance_->num_degrees + (kind == BoundKind::devices ? 1 : 0);
  auto& entry = tables_[row][at];
  if (!entry) {
    entry = build(kind, degree, grid_[at]);
    ++num_built_;
  }
  return *entry;
}

int64_t AdditiveBounds::most_in_flight(int32_t below, int32_t above, int32_t degree) {
  constexpr int32_t lane = BoundTable::kMemoryLane;
  const auto too_large = [&](int64_t y) {
    const BoundTable& at = table(BoundKind::degree, degree, y);
    const double units = at.sum(above, lane) - at.sum(below, lane);
    return units > instance_->memory_bytes * kSlack * at.scale[lane];
  };
  const auto first =
      std::partition_point(grid_.begin(), grid_.end(), [&](int64_t y) { return !too_large(y); });
  return first == grid_.end() ? std::numeric_limits<int32_t>::max() : *first - 1;
}

std::unique_ptr<BoundTable> AdditiveBounds::build(BoundKind kind, int32_t degree, int64_t y) {
  const Instance& in = *instance_;
  auto table = std::make_unique<BoundTable>();
  std::vector<Point> all_points;
  std::vector<size_t> first{0};
  const auto points = [&](int32_t v) {
    return Points(all_points).subspan(first[v], first[v + 1] - first[v]);
  };
  std::vector<double> slopes;
  for (int32_t v = 0; v < in.num_layers; ++v) {
    append_points(in, kind, degree, v, y, all_points);
    first.push_back(all_points.size());
    append_slopes(points(v), slopes);
  }
  std::sort(slopes.begin(), slopes.end());
  for (int32_t i = 1; i < BoundTable::kMemoryLane && !slopes.empty(); ++i)
    table->multiplier[i] = slopes[slopes.size() * (2 * i - 1) / (2 * BoundTable::kMemoryLane - 2)];
  std::vector<double> phi(int64_t{in.num_layers} * kLanes, 0);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    double* lane = phi.data() + int64_t{v} * kLanes;
    // A layer without this degree never fits; more memory than 2 M says no more.
    lane[BoundTable::kMemoryLane] = 2 * in.memory_bytes;
    if (points(v).empty()) continue;
    for (int32_t i = 0; i < BoundTable::kMemoryLane; ++i)
      lane[i] = value_at(points(v), table->multiplier[i]);
    double least = lane[BoundTable::kMemoryLane];
    for (const Point& x : points(v)) least = std::min(least, x.memory_bytes);
    lane[BoundTable::kMemoryLane] = least;
  }
  const double cut_scale = kind == BoundKind::degree ? BoundTable::cut_scale(in, degree) : 0;
  std::vector<int32_t> units(phi.size());
  for (int32_t i = 0; i < kLanes; ++i) {
    double total = 0;
    for (int32_t v = 0; v < in.num_layers; ++v) total += phi[int64_t{v} * kLanes + i];
    const double scale = kUnits / total;  // infinite of next to nothing, 0 of memory without end
    table->scale[i] = total > 0 && std::isfinite(scale) ? scale : 0;
    if (i != BoundTable::kMemoryLane && cut_scale > 0 && total * cut_scale <= kUnits) {
      table->scale[i] = cut_scale;
      table->cut_mask[i] = -1;
    }
    if (table->scale[i] == 0) continue;  // this lane says nothing
    for (int32_t v = 0; v < in.num_layers; ++v) {
      units[int64_t{v} * kLanes + i] =
          static_cast<int32_t>(phi[int64_t{v} * kLanes + i] * table->scale[i]);
      table->total[i] += units[int64_t{v} * kLanes + i];
    }
  }
  const int64_t size = int64_t{sets_->num_groups()} * kMembers * kLanes;
  table->sums.reserve(size);
  sets_->add_up(units, kLanes, table->sums);
  table->sums.resize(size);
  least_per_group(table->sums, sets_->count, Downsets::kGroup, table->fine);
  table->from_fine = table->fine;
  for (size_t i = table->fine.size() - kLanes; i-- > 0;)
    table->from_fine[i] = std::min(table->from_fine[i], table->from_fine[i + kLanes]);
  return table;
}

}  // namespace trainwright
