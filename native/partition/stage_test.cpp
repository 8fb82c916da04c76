#include "partition/stage_test.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-12;  // times this close above a threshold count as within
// Remembered between tests, to save work and not for the answer: cut edges of this many downsets,
// and verdicts on stages of 32 bytes each, at most 64 MB.
constexpr int32_t kBoundaries = 8192;
constexpr size_t kMaxKnown = size_t{1} << 21;

}  // namespace

StageTest::StageTest(const Instance& instance, const Downsets& sets, AdditiveBounds& bounds,
                     const PartitionLimits& limits)
    : in_(&instance),
      sets_(&sets),
      bounds_(&bounds),
      max_states_(limits.max_knapsack_states),
      prefix_(instance.num_degrees),
      boundaries_(std::min(sets.count, kBoundaries)),
      known_(1 << 12) {
  for (int32_t t = 0; t < instance.num_degrees; ++t) {
    sum_prefixes(t);
    bool plain = true;
    for (int32_t v = 0; v < instance.num_layers; ++v)
      plain = plain && instance.is_plain[instance.slot(v, t)];
    is_plain_.push_back(plain);
  }
}

void StageTest::sum_prefixes(int32_t t) {
  const Instance& in = *in_;
  Prefix& prefix = prefix_[t];
  std::vector<double> time(in.num_layers, 0), gradient(in.num_layers, 0);
  std::vector<int32_t> missing(in.num_layers, 0);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    missing[v] = !in.offers(v, t);
    if (missing[v]) continue;
    time[v] = in.options[in.option_first[in.slot(v, t)]].time_s;
    gradient[v] = in.least_gradient_bytes[in.slot(v, t)];
  }
  sets_->add_up(time, prefix.time_s);
  sets_->add_up(gradient, prefix.gradient_bytes);
  sets_->add_up(missing, 1, prefix.missing);
  // An edge is in the boundary sum of D when its target is inside and its source is not: adding
  // v to D takes v's out-edges away and brings v's in-edges.
  const double* in_cost =
      in.cut_in_bytes.data() + int64_t{t} * static_cast<int64_t>(in.edges.size());
  const double* out_cost =
      in.cut_out_bytes.data() + int64_t{t} * static_cast<int64_t>(in.edges.size());
  std::vector<double> inner(in.num_layers, 0), outer(in.num_layers, 0);
  double all_bytes = 0;
  for (size_t e = 0; e < in.edges.size(); ++e) {
    inner[in.edges[e].target] += in_cost[e];
    inner[in.edges[e].source] -= in_cost[e];
    outer[in.edges[e].target] += out_cost[e];
    outer[in.edges[e].source] -= out_cost[e];
    all_bytes += in_cost[e] + out_cost[e];
  }
  sets_->add_up(inner, prefix.in_bytes);
  sets_->add_up(outer, prefix.out_bytes);
  const double gradient_s =
      in.sync_s_per_byte * prefix.gradient_bytes[sets_->count - 1] *
      static_cast<double>(in.data_degrees.empty() ? 0 : in.data_degrees.back());
  const double total_s =
      prefix.time_s[sets_->count - 1] + in.cut_s_per_byte * all_bytes + gradient_s;
  prefix.rounding_s = total_s * 4e-16 * (in.num_layers + static_cast<double>(in.edges.size()) + 16);
}

const StageTest::Boundary& StageTest::start_at(int32_t below) {
  Boundary& own = boundaries_[below % static_cast<int32_t>(boundaries_.size())];
  boundary_ = &own;
  if (own.below == below) return own;
  own.below = below;
  own.sources.clear();
  own.bytes.clear();
  const Instance& in = *in_;
  const int64_t num_edges = static_cast<int64_t>(in.edges.size());
  std::vector<int32_t> edges;
  for (int64_t e = 0; e < num_edges; ++e)
    if (sets_->contains(below, in.edges[e].target) && !sets_->contains(below, in.edges[e].source))
      edges.push_back(static_cast<int32_t>(e));
  std::sort(edges.begin(), edges.end(), [&](int32_t a, int32_t b) {
    return std::pair(in.edges[a].source, a) < std::pair(in.edges[b].source, b);
  });
  for (int32_t e : edges) {
    if (own.sources.empty() || own.sources.back().layer != in.edges[e].source) {
      own.sources.push_back({in.edges[e].source, static_cast<int32_t>(own.bytes.size())});
      own.bytes.resize(own.bytes.size() + in.num_degrees, 0);
    }
    for (int32_t t = 0; t < in.num_degrees; ++t)
      own.bytes[own.sources.back().first + t] +=
          in.cut_in_bytes[t * num_edges + e] + in.cut_out_bytes[t * num_edges + e];
  }
  return own;
}

double StageTest::cut_bytes(int32_t above, int32_t t) const {
  // Edges that jump over the stage, from outside D into D', are in both boundary sums.
  double bytes = prefix_[t].in_bytes[above] + prefix_[t].out_bytes[boundary_->below];
  for (const Source& source : boundary_->sources)
    if (!sets_->contains(above, source.layer)) bytes -= boundary_->bytes[source.first + t];
  return bytes;
}

// The edges of layer v that the stage cuts.
void StageTest::find_cut_edges(const StageKey& stage, int32_t v) {
  const Instance& in = *in_;
  const int64_t num_edges = static_cast<int64_t>(in.edges.size());
  const double* in_cost = in.cut_in_bytes.data() + stage.degree * num_edges;
  const double* out_cost = in.cut_out_bytes.data() + stage.degree * num_edges;
  cut_edges_.clear();
  int32_t sync = 0;  // place among the layer's sync values
  for (int32_t e : in.in_edges[v]) {
    if (!sets_->contains(stage.above, in.edges[e].source))
      cut_edges_.push_back({sync, in.edges[e].bytes, in_cost[e]});
    ++sync;
  }
  for (int32_t e : in.out_edges[v]) {
    if (sets_->contains(stage.below, in.edges[e].target))
      cut_edges_.push_back({sync, in.edges[e].bytes, out_cost[e]});
    ++sync;
  }
}

// What the option costs beyond its time and the least of the layer's options, at the cut edges.
double StageTest::option_extra_s(const StageKey& stage, int32_t v, const Option& option) const {
  const double* sync =
      in_->problem->option_boundary_bytes.data() + in_->problem->option_boundary_offset[option.row];
  double bytes = 0;
  for (const CutEdge& edge : cut_edges_) bytes += edge.bytes + sync[edge.sync] - edge.least_bytes;
  const double dearer =
      option.gradient_bytes - in_->least_gradient_bytes[in_->slot(v, stage.degree)];
  return in_->cut_s_per_byte * std::max(0.0, bytes) +
         in_->sync_s_per_byte * static_cast<double>(stage.data_degree - 1) * dearer;
}

void StageTest::gather(const StageKey& stage) {
  const Instance& in = *in_;
  knapsack_.clear();
  for_each_between(*sets_, stage.below, stage.above, [&](int32_t v) {
    const int64_t slot = in.slot(v, stage.degree);
    if (!in.is_plain[slot]) find_cut_edges(stage, v);
    for (int64_t o = in.option_first[slot]; o < in.option_first[slot + 1]; ++o) {
      const Option& option = in.options[o];
      const double extra = in.is_plain[slot] ? 0 : option_extra_s(stage, v, option);
      knapsack_.add_option(
          option.time_s + extra,
          option.saved_bytes * static_cast<double>(stage.in_flight) + option.static_bytes,
          option.row);
    }
    knapsack_.finish_layer();
  });
}

// Communication and gradient time * d that no choice of options avoids, from direct sums.
double StageTest::fixed_s(const StageKey& stage) const {
  const Instance& in = *in_;
  const int64_t num_edges = static_cast<int64_t>(in.edges.size());
  const double* in_cost = in.cut_in_bytes.data() + stage.degree * num_edges;
  const double* out_cost = in.cut_out_bytes.data() + stage.degree * num_edges;
  double cut = 0, gradient = 0;
  for_each_between(*sets_, stage.below, stage.above, [&](int32_t v) {
    gradient += in.least_gradient_bytes[in.slot(v, stage.degree)];
    for (int32_t e : in.in_edges[v])
      if (!sets_->contains(stage.above, in.edges[e].source)) cut += in_cost[e];
    for (int32_t e : in.out_edges[v])
      if (sets_->contains(stage.below, in.edges[e].target)) cut += out_cost[e];
  });
  return in.cut_s_per_byte * cut +
         in.sync_s_per_byte * static_cast<double>(stage.data_degree - 1) * gradient;
}

StageTest::Known& StageTest::recall(const StageKey& stage) {
  if (num_known_ * 2 > static_cast<int64_t>(known_.size())) {
    // Grow up to the cap, then forget: the memory never holds more than kMaxKnown stages.
    std::vector<Known> old(std::min(known_.size() * 4, kMaxKnown));
    const bool keep = old.size() > known_.size();
    std::swap(old, known_);
    num_known_ = 0;
    for (const Known& entry : old) {
      if (!keep || entry.pair == ~uint64_t{0}) continue;
      size_t at =
          (entry.pair * 0x9e3779b97f4a7c15 ^
           (uint64_t{entry.y} << 20 | entry.degree << 12 | entry.data_slot) * 0xbf58476d1ce4e5b9) >>
          20;
      while (known_[at & (known_.size() - 1)].pair != ~uint64_t{0}) ++at;
      known_[at & (known_.size() - 1)] = entry;
      ++num_known_;
    }
  }
  bool plain = true;
  if (!is_plain_[stage.degree])
    for_each_between(*sets_, stage.below, stage.above, [&](int32_t v) {
      plain = plain && in_->is_plain[in_->slot(v, stage.degree)];
    });
  const auto slot =
      std::lower_bound(in_->data_degrees.begin(), in_->data_degrees.end(), stage.data_degree) -
      in_->data_degrees.begin();
  Known wanted;
  wanted.pair = static_cast<uint64_t>(stage.below) << 32 | static_cast<uint32_t>(stage.above);
  wanted.y = static_cast<uint32_t>(stage.in_flight);
  wanted.degree = static_cast<uint16_t>(stage.degree);
  wanted.data_slot = plain ? 0 : static_cast<uint16_t>(slot + 1);
  wanted.upper_s = kInfinity;
  size_t at =
      (wanted.pair * 0x9e3779b97f4a7c15 ^
       (uint64_t{wanted.y} << 20 | wanted.degree << 12 | wanted.data_slot) * 0xbf58476d1ce4e5b9) >>
      20;
  while (true) {
    Known& entry = known_[at & (known_.size() - 1)];
    if (entry.pair == ~uint64_t{0}) {
      ++num_known_;
      return entry = wanted;
    }
    if (entry.pair == wanted.pair && entry.y == wanted.y && entry.degree == wanted.degree &&
        entry.data_slot == wanted.data_slot)
      return entry;
    ++at;
  }
}

Verdict StageTest::fits(const StageKey& stage, double threshold_s) {
  const double d = static_cast<double>(stage.data_degree);
  start_at(stage.below);
  const double fixed =
      in_->cut_s_per_byte * cut_bytes(stage.above, stage.degree) +
      in_->sync_s_per_byte * (d - 1) * gradient_bytes(stage.below, stage.above, stage.degree);
  const BoundTable& table = bounds_->table(BoundKind::degree, stage.degree, stage.in_flight);
  const int32_t memory = BoundTable::kMemoryLane;
  const double units = table.sum(stage.above, memory) - table.sum(stage.below, memory);
  const double room = in_->memory_bytes * (1 + 1e-11) * table.scale[memory];
  const double proved_s = table.proved_s(stage.below, stage.above, in_->memory_bytes);
  if (units > room ||
      proved_s + fixed > threshold_s * d * (1 + kTolerance) + rounding_s(stage.degree)) {
    ++counters_.candidates;
    return Verdict::no;
  }
  return settle(stage, threshold_s);
}

Verdict StageTest::settle(const StageKey& stage, double threshold_s) {
  ++counters_.candidates;
  if (!offers(stage.below, stage.above, stage.degree)) return Verdict::no;
  start_at(stage.below);
  const double d = static_cast<double>(stage.data_degree);
  const double budget = threshold_s * d * (1 + kTolerance);
  const double quick_s =
      fastest_s(stage.below, stage.above, stage.degree) +
      in_->cut_s_per_byte * cut_bytes(stage.above, stage.degree) +
      in_->sync_s_per_byte * (d - 1) * gradient_bytes(stage.below, stage.above, stage.degree);
  if (quick_s > budget + rounding_s(stage.degree)) return Verdict::no;
  Known& known = recall(stage);
  const double limit = budget - fixed_s(stage);
  if (known.upper_s <= limit) return Verdict::yes;
  if (known.lower_s > limit) return Verdict::no;
  ++counters_.relaxations;
  gather(stage);
  const KnapsackAnswer answer = knapsack_.decide(in_->memory_bytes, limit, max_states_);
  counters_.knapsacks = knapsack_.num_merges();
  known.lower_s = std::max(known.lower_s, answer.lower_s);
  known.upper_s = std::min(known.upper_s, answer.upper_s);
  if (answer.upper_s <= limit) return Verdict::yes;
  if (!answer.is_capped) return Verdict::no;
  ++counters_.capped_knapsacks;
  return Verdict::unknown;
}

double StageTest::least_s(const StageKey& stage, double threshold_s) {
  const double d = static_cast<double>(stage.data_degree), fixed = fixed_s(stage);
  Known& known = recall(stage);
  if (known.lower_s < known.upper_s) {
    gather(stage);
    const KnapsackAnswer answer =
        knapsack_.least(in_->memory_bytes, threshold_s * d * (1 + kTolerance) - fixed, max_states_);
    counters_.knapsacks = knapsack_.num_merges();
    if (answer.is_capped) ++counters_.capped_knapsacks;
    known.lower_s = answer.is_capped ? known.lower_s : answer.upper_s;
    known.upper_s = std::min(known.upper_s, answer.upper_s);
  }
  return (known.upper_s + fixed) / d;
}

PartitionStage StageTest::best(const StageKey& stage) {
  gather(stage);
  knapsack_.least(in_->memory_bytes, kInfinity, max_states_);
  PartitionStage chosen;
  chosen.data_degree = stage.data_degree;
  chosen.tensor_degree = in_->problem->tensor_degrees[stage.degree];
  std::vector<std::pair<int32_t, int64_t>> rows;
  size_t i = 0;
  for_each_between(*sets_, stage.below, stage.above, [&](int32_t v) {
    rows.push_back({in_->layer_at[v], knapsack_.chosen_rows()[i++]});
  });
  std::sort(rows.begin(), rows.end());
  for (const auto& [layer, row] : rows) {
    chosen.layers.push_back(layer);
    chosen.option_rows.push_back(row);
  }
  return chosen;
}

}  // namespace trainwright
