#include "partition/exchange_layers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/random_source.hpp"
#include "partition/layer_prices.hpp"

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The energy of a stage is exp(sharpness · relative time), so that a sum over stages means nearly
// the slowest one and yet feels the next. Sharpness, temperatures and the share of exchanges were
// varied two to five times up and down on graphs of 800 operators: all within 0.03%, the noise of
// four seeds.
constexpr double kSharpness = 400;
constexpr double kHot = 1.0, kCold = 0.05;  // first and last temperature, in energies of a stage
constexpr double kSwaps = 0.8;   // of all steps: two layers change places, else one moves
constexpr int64_t kCheck = 256;  // steps at one temperature, and between looks at the clock
// Options are whole: what fits is looked for among so many steps of the hull before and after the
// one that the linear relaxation would split. Annealed by the relaxation's time, stages of 25
// layers at data degree 1 came out 0.3% slower.
constexpr int32_t kNear = 6;
// A run still 1.5% from what it has to beat after a quarter of its steps is given up. That trades
// the late finds of a few data degrees for looks at more of them.
constexpr double kHopeless = 0.25;
constexpr double kFar = 1.015;

struct Place {  // a stage
  int32_t degree;
  double data_degree, in_flight;
  int32_t table;  // of prices
  std::vector<int32_t> layers;
  std::vector<HullStep> steps;                                  // ascending ratio
  double time_s = 0, bytes = 0, cut_s = 0, gradient_bytes = 0;  // fastest options
  double stage_s = 0;
  double ratio = 0, relaxed_s = 0;  // of the linear relaxation: its multiplier, d times its time
};

class Exchange {
 public:
  Exchange(const Instance& in, const std::vector<PartitionStage>& stages, uint64_t seed);
  ExchangedCuts run(int64_t num_steps, double beat_s, const Stop& stop);
  double slowest() const;

 private:
  const PricedLayer& priced(const Place& place, int32_t layer) const {
    return prices_[place.table][layer];
  }
  void range(int32_t layer, int32_t& low, int32_t& high) const;
  void update_range(int32_t layer);
  double cut_change_s(int32_t layer, int32_t from, int32_t to, int32_t at) const;
  double stage_s(const Place& place, int32_t without, int32_t with, double cut_s,
                 double most_s) const;
  double time_of(const Place& place, double energy) const {  // inverse of energy()
    return unit_s_ * (1 + std::log(energy / place.data_degree) / kSharpness);
  }
  double energy(const Place& place, double stage_s) const {
    return place.data_degree * std::exp(kSharpness * (stage_s / unit_s_ - 1));
  }
  void relax(Place& place) const;
  double relaxed_part_s(const Place& place, int32_t layer) const;
  void move(int32_t layer, int32_t to);
  bool try_swap(int32_t layer, int32_t to, double most, double source_cut, double target_cut);
  bool try_step(double temperature);

  const Instance& in_;
  const std::vector<PartitionStage>& stages_;
  RandomSource random_;
  std::vector<Place> places_;  // from the end of the pipeline
  std::vector<std::vector<PricedLayer>> prices_;
  std::vector<int32_t> low_, high_;               // per layer: the places its neighbours allow
  std::vector<int32_t> movable_, movable_index_;  // layers with several; -1: not among them
  std::vector<int32_t> at_, index_;    // per layer: its place, and where it is among its layers
  std::vector<double> most_cut_s_;     // per layer: of all its edges, at either end
  std::vector<int32_t> neighbour_of_;  // per layer: the last one whose neighbours were marked
  double unit_s_ = 1;
};

Exchange::Exchange(const Instance& in, const std::vector<PartitionStage>& stages, uint64_t seed)
    : in_(in),
      stages_(stages),
      random_(seed),
      low_(in.num_layers),
      high_(in.num_layers),
      movable_index_(in.num_layers, -1),
      at_(in.num_layers),
      index_(in.num_layers),
      most_cut_s_(in.num_layers, 0.0),
      neighbour_of_(in.num_layers, -1) {
  std::vector<int32_t> position(in.num_layers);
  for (int32_t v = 0; v < in.num_layers; ++v) position[in.layer_at[v]] = v;
  const auto& degrees = in.problem->tensor_degrees;
  int64_t behind = 0;
  for (size_t i = stages.size(); i-- > 0;) {
    const PartitionStage& stage = stages[i];
    Place place;
    place.degree = static_cast<int32_t>(
        std::find(degrees.begin(), degrees.end(), stage.tensor_degree) - degrees.begin());
    place.data_degree = static_cast<double>(stage.data_degree);
    behind += stage.data_degree;
    place.in_flight = static_cast<double>((behind + stage.data_degree - 1) / stage.data_degree);
    place.table = static_cast<int32_t>(prices_.size());
    prices_.emplace_back();
    for (int32_t v = 0; v < in.num_layers; ++v)
      prices_.back().push_back(priced_layer(in, v, place.degree, place.in_flight));
    for (int32_t layer : stage.layers) {
      const int32_t v = position[layer];
      at_[v] = static_cast<int32_t>(places_.size());
      index_[v] = static_cast<int32_t>(place.layers.size());
      place.layers.push_back(v);
      const PricedLayer& own = prices_.back()[v];
      place.time_s += own.fastest_s;
      place.bytes += own.fastest_bytes;
      place.gradient_bytes += in.least_gradient_bytes[in.slot(v, place.degree)];
      place.steps.insert(place.steps.end(), own.steps.begin(), own.steps.end());
    }
    std::sort(place.steps.begin(), place.steps.end(),
              [](const HullStep& x, const HullStep& y) { return x.ratio < y.ratio; });
    places_.push_back(std::move(place));
  }
  const size_t num_edges = in.edges.size();
  for (size_t e = 0; e < num_edges; ++e) {
    const int32_t from = at_[in.edges[e].source], to = at_[in.edges[e].target];
    if (from == to) continue;
    places_[from].cut_s +=
        in.cut_s_per_byte * in.cut_out_bytes[places_[from].degree * num_edges + e];
    places_[to].cut_s += in.cut_s_per_byte * in.cut_in_bytes[places_[to].degree * num_edges + e];
  }
  for (size_t i = 0; i < in.cut_in_bytes.size(); ++i) {
    const double most_s = in.cut_s_per_byte * std::max(in.cut_in_bytes[i], in.cut_out_bytes[i]);
    for (int32_t v : {in.edges[i % num_edges].source, in.edges[i % num_edges].target})
      most_cut_s_[v] += most_s;
  }
  for (Place& place : places_) {
    relax(place);
    place.stage_s = stage_s(place, -1, -1, place.cut_s, kInfinity);
  }
  for (int32_t v = 0; v < in.num_layers; ++v) update_range(v);
  unit_s_ = slowest();
}

double Exchange::slowest() const {
  double slowest = 0;
  for (const Place& place : places_) slowest = std::max(slowest, place.stage_s);
  return slowest;
}

void Exchange::range(int32_t layer, int32_t& low, int32_t& high) const {
  low = 0;
  high = static_cast<int32_t>(places_.size()) - 1;
  for (int32_t e : in_.out_edges[layer]) low = std::max(low, at_[in_.edges[e].target]);
  for (int32_t e : in_.in_edges[layer]) high = std::min(high, at_[in_.edges[e].source]);
}

void Exchange::update_range(int32_t layer) {
  range(layer, low_[layer], high_[layer]);
  int32_t& index = movable_index_[layer];
  if ((index >= 0) == (low_[layer] < high_[layer])) return;
  if (index < 0) {
    index = static_cast<int32_t>(movable_.size());
    movable_.push_back(layer);
    return;
  }
  movable_[index] = movable_.back();
  movable_index_[movable_.back()] = index;
  movable_.pop_back();
  index = -1;
}

// What place `at` (one of the two) pays more for cut edges when the layer moves.
double Exchange::cut_change_s(int32_t layer, int32_t from, int32_t to, int32_t at) const {
  const size_t row = places_[at].degree * in_.edges.size();
  double bytes = 0;
  // An edge between the layer and another: `own` is the layer's side, `other` the neighbour's.
  const auto count = [&](int32_t neighbour, double own, double other) {
    const int32_t there = at_[neighbour];
    if (at == from) {
      if (there == from)
        bytes += other;  // becomes cut
      else
        bytes -= own;
    } else {
      if (there == to)
        bytes -= other;
      else
        bytes += own;
    }
  };
  for (int32_t e : in_.in_edges[layer])
    count(in_.edges[e].source, in_.cut_in_bytes[row + e], in_.cut_out_bytes[row + e]);
  for (int32_t e : in_.out_edges[layer])
    count(in_.edges[e].target, in_.cut_out_bytes[row + e], in_.cut_in_bytes[row + e]);
  return in_.cut_s_per_byte * bytes;
}

// Time per microbatch of a place with one layer less and one more (-1: none), from a choice of
// options at most two steps off the linear relaxation's; the relaxation's own where that is beyond
// `most_s` already.
double Exchange::stage_s(const Place& place, int32_t without, int32_t with, double cut_s,
                         double most_s) const {
  double time = place.time_s, need = place.bytes - in_.memory_bytes;
  double gradient = place.gradient_bytes;
  const HullStep *more = nullptr, *more_end = nullptr;
  if (without >= 0) {
    const PricedLayer& gone = priced(place, without);
    time -= gone.fastest_s;
    need -= gone.fastest_bytes;
    gradient -= in_.least_gradient_bytes[in_.slot(without, place.degree)];
  }
  if (with >= 0) {
    const PricedLayer& come = priced(place, with);
    time += come.fastest_s;
    need += come.fastest_bytes;
    gradient += in_.least_gradient_bytes[in_.slot(with, place.degree)];
    more = come.steps.data();
    more_end = more + come.steps.size();
  }
  const HullStep *own = place.steps.data(), *own_end = own + place.steps.size();
  const auto next_step = [&]() -> const HullStep* {
    while (own != own_end && own->layer == without) ++own;
    if (own != own_end && (more == more_end || own->ratio <= more->ratio)) return own++;
    return more != more_end ? more++ : nullptr;
  };
  const double d = place.data_degree;
  const double fixed = cut_s + (d - 1) * in_.sync_s_per_byte * gradient;
  const HullStep *taken[kNear], *open[kNear];
  int32_t num_taken = 0, num_open = 0;
  const HullStep* step = nullptr;
  while (need > 0) {
    step = next_step();
    if (step == nullptr) return (time * (2 + need / in_.memory_bytes) + fixed) / d;  // never fits
    if (step->saving_bytes >= need) break;
    time += step->extra_s;
    need -= step->saving_bytes;
    taken[num_taken++ % kNear] = step;
  }
  if (need <= 0) return (time + fixed) / d;
  const double relaxed = (time + need * step->ratio + fixed) / d;
  if (relaxed > most_s) return relaxed;
  double extra = step->extra_s;  // fits
  for (; step != nullptr && num_open < kNear; step = next_step()) open[num_open++] = step;
  num_taken = std::min(num_taken, kNear);
  for (int32_t i = 0; i < num_open; ++i) {
    const double slack = open[i]->saving_bytes - need;
    if (slack >= 0) extra = std::min(extra, open[i]->extra_s);
    for (int32_t k = 0; k < num_taken; ++k)
      if (taken[k]->saving_bytes <= slack)
        extra = std::min(extra, open[i]->extra_s - taken[k]->extra_s);
  }
  return (time + extra + fixed) / d;
}

void Exchange::relax(Place& place) const {
  double need = place.bytes - in_.memory_bytes;
  place.relaxed_s = place.time_s;
  place.ratio = 0;
  for (const HullStep& step : place.steps) {
    if (need <= 0) break;
    place.ratio = step.ratio;
    place.relaxed_s += step.ratio * std::min(need, step.saving_bytes);
    need -= step.saving_bytes;
  }
}

// What a layer adds to the relaxed time of a place, at least: any multiplier bounds it.
double Exchange::relaxed_part_s(const Place& place, int32_t layer) const {
  const PricedLayer& own = priced(place, layer);
  double part = own.fastest_s + place.ratio * own.fastest_bytes;
  for (const HullStep& step : own.steps)
    part -= std::max(0.0, place.ratio * step.saving_bytes - step.extra_s);
  return part;
}

void Exchange::move(int32_t layer, int32_t to) {
  Place &from_place = places_[at_[layer]], &to_place = places_[to];
  from_place.cut_s += cut_change_s(layer, at_[layer], to, at_[layer]);
  to_place.cut_s += cut_change_s(layer, at_[layer], to, to);
  const PricedLayer &gone = priced(from_place, layer), &come = priced(to_place, layer);
  from_place.time_s -= gone.fastest_s;
  from_place.bytes -= gone.fastest_bytes;
  from_place.gradient_bytes -= in_.least_gradient_bytes[in_.slot(layer, from_place.degree)];
  to_place.time_s += come.fastest_s;
  to_place.bytes += come.fastest_bytes;
  to_place.gradient_bytes += in_.least_gradient_bytes[in_.slot(layer, to_place.degree)];
  std::erase_if(from_place.steps, [&](const HullStep& step) { return step.layer == layer; });
  for (const HullStep& step : come.steps)
    to_place.steps.insert(
        std::upper_bound(to_place.steps.begin(), to_place.steps.end(), step,
                         [](const HullStep& x, const HullStep& y) { return x.ratio < y.ratio; }),
        step);
  const int32_t last = from_place.layers.back();
  from_place.layers[index_[layer]] = last;
  index_[last] = index_[layer];
  from_place.layers.pop_back();
  index_[layer] = static_cast<int32_t>(to_place.layers.size());
  to_place.layers.push_back(layer);
  at_[layer] = to;
  for (int32_t e : in_.in_edges[layer]) update_range(in_.edges[e].source);
  for (int32_t e : in_.out_edges[layer]) update_range(in_.edges[e].target);
}

// Whether the step was taken.
bool Exchange::try_step(double temperature) {
  const int32_t layer = movable_[random_.below(static_cast<int64_t>(movable_.size()))];
  const int32_t from = at_[layer];
  int32_t low = low_[layer], high = high_[layer];
  if (places_[from].layers.size() < 2) return false;
  int32_t to;
  if (random_.chance(0.5) && (from > low || from < high)) {
    to = from == low ? from + 1 : from == high ? from - 1 : from + (random_.chance(0.5) ? 1 : -1);
  } else {
    to = low + random_.below(high - low);
    to += to >= from;
  }
  Place &source = places_[from], &target = places_[to];
  if (priced(target, layer).fastest_s == kInfinity) return false;
  const double before = energy(source, source.stage_s) + energy(target, target.stage_s);
  const double most = before + temperature * random_.exponential();
  const double source_cut = source.cut_s + cut_change_s(layer, from, to, from);
  const double target_cut = target.cut_s + cut_change_s(layer, from, to, to);
  if (random_.chance(kSwaps)) return try_swap(layer, to, most, source_cut, target_cut);
  const double target_most = time_of(target, most);
  const double target_least = target.relaxed_s + relaxed_part_s(target, layer) + target_cut;
  if (target_least > target_most * target.data_degree) return false;
  const double source_s = stage_s(source, layer, -1, source_cut, time_of(source, most));
  const double source_energy = energy(source, source_s);
  if (source_energy > most) return false;
  const double target_s =
      stage_s(target, -1, layer, target_cut, time_of(target, most - source_energy));
  if (source_energy + energy(target, target_s) > most) return false;
  move(layer, to);
  relax(source);
  relax(target);
  source.stage_s = source_s;
  target.stage_s = target_s;
  return true;
}

// Moves the layer to the place and back the first other one, from a random one on, with which the
// energy of both is at most `most`.
bool Exchange::try_swap(int32_t layer, int32_t to, double most, double source_cut,
                        double target_cut) {
  const int32_t from = at_[layer];
  Place &source = places_[from], &target = places_[to];
  const double source_most = time_of(source, most), target_most = time_of(target, most);
  const double source_rest = source_most * source.data_degree - source_cut - source.relaxed_s +
                             relaxed_part_s(source, layer);
  const double target_rest = target_most * target.data_degree - target_cut - target.relaxed_s -
                             relaxed_part_s(target, layer);
  for (int32_t e : in_.in_edges[layer]) neighbour_of_[in_.edges[e].source] = layer;
  for (int32_t e : in_.out_edges[layer]) neighbour_of_[in_.edges[e].target] = layer;
  const auto count = static_cast<int32_t>(target.layers.size());
  int32_t next = random_.below(count);
  at_[layer] = to;  // for the cuts of layers that may come back
  for (int32_t i = 0; i < count; ++i, ++next) {
    if (next == count) next = 0;
    const int32_t other = target.layers[next];
    if (from < low_[other] || from > high_[other] || neighbour_of_[other] == layer) continue;
    if (priced(source, other).fastest_s == kInfinity) continue;
    const double come = relaxed_part_s(source, other);
    if (come - most_cut_s_[other] > source_rest) continue;
    const double go = relaxed_part_s(target, other);
    if (-go - most_cut_s_[other] > target_rest) continue;
    const double source_change = cut_change_s(other, to, from, from);
    if (come + source_change > source_rest) continue;
    const double target_change = cut_change_s(other, to, from, to);
    if (target_change - go > target_rest) continue;
    const double source_s = stage_s(source, layer, other, source_cut + source_change, source_most);
    const double source_energy = energy(source, source_s);
    if (source_energy > most) continue;
    const double target_s = stage_s(target, other, layer, target_cut + target_change,
                                    time_of(target, most - source_energy));
    if (source_energy + energy(target, target_s) > most) continue;
    at_[layer] = from;
    move(layer, to);
    move(other, from);
    relax(source);
    relax(target);
    source.stage_s = source_s;
    target.stage_s = target_s;
    return true;
  }
  at_[layer] = from;
  return false;
}

ExchangedCuts Exchange::run(int64_t num_steps, double beat_s, const Stop& stop) {
  if (movable_.empty()) num_steps = 0;
  std::vector<int32_t> best = at_;
  double best_s = slowest();
  double temperature = kHot;
  for (int64_t step = 0; step < num_steps; ++step) {
    if (step % kCheck == 0) {
      if (stop()) break;
      const double share = static_cast<double>(step) / static_cast<double>(num_steps);
      if (share > kHopeless && best_s > kFar * beat_s) break;
      temperature = kHot * std::pow(kCold / kHot, share);
    }
    if (!try_step(temperature)) continue;
    const double now = slowest();
    if (now >= best_s) continue;
    best_s = unit_s_ = now;
    best = at_;
  }
  std::vector<PartitionStage> stages = stages_;
  for (PartitionStage& stage : stages) {
    stage.layers.clear();
    stage.option_rows.clear();
  }
  for (int32_t v = 0; v < in_.num_layers; ++v)
    stages[stages.size() - 1 - best[v]].layers.push_back(in_.layer_at[v]);
  for (PartitionStage& stage : stages) std::sort(stage.layers.begin(), stage.layers.end());
  return {best_s, std::move(stages)};
}

}  // namespace

ExchangedCuts exchange_layers(const Instance& instance, const std::vector<PartitionStage>& stages,
                              int64_t num_steps, uint64_t seed, double beat_s, const Stop& stop) {
  Exchange exchange(instance, stages, seed);
  return exchange.run(exchange.slowest() > 0 ? num_steps : 0, beat_s, stop);
}

}  // namespace trainwright
