#include "placement/dag_stages.hpp"

#include <algorithm>
#include <map>

namespace trainwright {

namespace {

constexpr size_t at(int64_t v) { return static_cast<size_t>(v); }

}  // namespace

DagStages::DagStages(const ChainShape& shape, std::span<const double> forward_s,
                     std::span<const double> backward_s, int64_t max_arcs,
                     const std::function<bool()>& poll)
    : shape_(shape),
      forward_s_(forward_s),
      backward_s_(backward_s),
      num_layers_(static_cast<int64_t>(forward_s.size())),
      preceding_(forward_s.size()),
      following_(forward_s.size()) {
  for (size_t e = 0; e < shape.edge_source.size(); ++e) {
    if (num_layers_ > kMostDagLayers) break;
    preceding_[at(shape.edge_target[e])].set(at(shape.edge_source[e]));
    following_[at(shape.edge_source[e])].set(at(shape.edge_target[e]));
  }
  complete_ = num_layers_ <= kMostDagLayers && enumerate(max_arcs) && connect(poll);
}

// All cuts by size, so that arcs lead to later ones; false where their pairs are too many.
bool DagStages::enumerate(int64_t max_arcs) {
  cuts_.push_back(Set());
  cut_index_[Set()] = 0;
  for (size_t c = 0; c < cuts_.size(); ++c) {
    const Set cut = cuts_[c];
    for (int64_t v = 0; v < num_layers_; ++v) {
      if (cut[at(v)] || (preceding_[at(v)] & ~cut).any()) continue;
      Set next = cut;
      next.set(at(v));
      if (cut_index_.emplace(next, static_cast<int32_t>(cuts_.size())).second) {
        cuts_.push_back(next);
      }
    }
    const auto found = static_cast<int64_t>(cuts_.size());
    if (found * (found - 1) / 2 > 8 * max_arcs) return false;
  }
  int64_t arcs = 0;
  for (size_t i = 0; i < cuts_.size(); ++i) {
    for (size_t j = i + 1; j < cuts_.size(); ++j) arcs += (cuts_[i] & ~cuts_[j]).none();
    if (arcs > max_arcs) return false;
  }
  return true;
}

bool DagStages::connect(const std::function<bool()>& poll) {
  graph_.arc_offset.push_back(0);
  for (size_t i = 0; i < cuts_.size(); ++i) {
    if (poll && poll()) return false;
    for (size_t j = i + 1; j < cuts_.size(); ++j) {
      if ((cuts_[i] & ~cuts_[j]).any()) continue;
      StageArc arc = priced(stage_between(cuts_[i], cuts_[j]));
      arc.target = static_cast<int32_t>(j);
      graph_.arcs.push_back(arc);
      source_of_.push_back(static_cast<int32_t>(i));
    }
    graph_.arc_offset.push_back(static_cast<int64_t>(graph_.arcs.size()));
  }
  return true;
}

DagStages::Stage DagStages::stage_between(const Set& before, const Set& after) const {
  Stage stage{before,
              after & ~before,
              {},
              std::vector<double>(at(num_layers_), 0.0),
              std::vector<double>(at(num_layers_), 0.0)};
  for (int64_t v = 0; v < num_layers_; ++v) {
    if (stage.members[at(v)]) stage.layers.push_back(static_cast<int32_t>(v));
  }
  for (size_t e = 0; e < shape_.edge_source.size(); ++e) {
    const size_t u = at(shape_.edge_source[e]), v = at(shape_.edge_target[e]);
    const double wait_s = shape_.edge_bytes[e] / shape_.bandwidth_bytes_per_s;
    if (stage.members[v] && before[u]) stage.enters_s[v] = std::max(stage.enters_s[v], wait_s);
    if (stage.members[u] && !after[v]) stage.leaves_s[u] = std::max(stage.leaves_s[u], wait_s);
  }
  return stage;
}

StageArc DagStages::priced(const Stage& stage) const {
  StageArc arc;
  arc.narrow = true;
  double base_bytes = 0, activation_bytes = 0, entering_bytes = 0;
  for (const int32_t v : stage.layers) {
    arc.parameter_bytes += shape_.parameter_bytes[at(v)];
    arc.narrow = arc.narrow && shape_.is_split[at(v)] == 0;
    base_bytes += shape_.static_bytes[at(v)] + shape_.activation_bytes[at(v)];
    activation_bytes += shape_.activation_bytes[at(v)];
  }
  for (size_t e = 0; e < shape_.edge_source.size(); ++e) {
    const bool enters = stage.before[at(shape_.edge_source[e])];
    if (enters && stage.members[at(shape_.edge_target[e])]) entering_bytes += shape_.edge_bytes[e];
  }
  const auto fits = [&](double kept_bytes) {
    return microbatches_that_fit(base_bytes, kept_bytes, shape_.memory_bytes,
                                 shape_.most_in_flight);
  };
  arc.plain_until = fits(activation_bytes);
  if (shape_.recompute != Recompute::never) arc.recomputed_until = fits(entering_bytes);
  if (shape_.recompute == Recompute::always)
    arc.plain_until = std::min<int64_t>(arc.plain_until, 1);
  if (std::max(arc.plain_until, arc.recomputed_until) == 0) return arc;
  arc.plain_s = arc.recomputed_s = std::numeric_limits<double>::infinity();
  for (const Ends& ends : pareto_orders(stage)) {
    arc.plain_s = std::min(arc.plain_s, load_s(stage, ends, false));
    arc.recomputed_s = std::min(arc.recomputed_s, load_s(stage, ends, true));
  }
  return arc;
}

double DagStages::load_s(const Stage& stage, const Ends& ends, bool recomputed) const {
  if (!recomputed) return ends.forward_s + ends.backward_s;
  double work_s = 0;
  for (const int32_t v : stage.layers) work_s += forward_s_[at(v)] + backward_s_[at(v)];
  return ends.forward_s + std::max(work_s, ends.backward_s);
}

std::vector<DagStages::Ends> DagStages::pareto_orders(const Stage& stage) const {
  Ends early = greedy(stage, false), late = greedy(stage, true);
  if (early.backward_s <= late.backward_s) return {early};
  if (late.forward_s <= early.forward_s) return {late};
  return sweep(stage);
}

// Never idle while a layer is ready: one direction ends as early as it can. Among the ready goes
// first the layer that the other direction is to wait for longest, so that it comes last there.
DagStages::Ends DagStages::greedy(const Stage& stage, bool backward) const {
  const auto& own_wait = backward ? stage.leaves_s : stage.enters_s;
  const auto& other_wait = backward ? stage.enters_s : stage.leaves_s;
  const auto& work = backward ? backward_s_ : forward_s_;
  const auto& awaited = backward ? following_ : preceding_;
  Set left = stage.members;
  std::vector<int32_t> order;
  double now_s = 0;
  while (left.any()) {
    int64_t chosen = -1;
    for (const int32_t v : stage.layers) {
      if (!left[at(v)] || (awaited[at(v)] & left).any()) continue;
      if (chosen < 0) {
        chosen = v;
        continue;
      }
      const double own_s = std::max(own_wait[at(v)], now_s);
      const double best_s = std::max(own_wait[at(chosen)], now_s);
      const bool sooner = own_s < best_s;
      const bool tie = own_s == best_s && other_wait[at(v)] > other_wait[at(chosen)];
      if (sooner || tie) chosen = v;
    }
    now_s = std::max(now_s, own_wait[at(chosen)]) + work[at(chosen)];
    left.reset(at(chosen));
    order.push_back(static_cast<int32_t>(chosen));
  }
  if (backward) std::reverse(order.begin(), order.end());
  return ends_of(stage, std::move(order));
}

DagStages::Ends DagStages::ends_of(const Stage& stage, std::vector<int32_t> order) const {
  Ends ends;
  for (const int32_t v : order) {
    ends.forward_s = std::max(ends.forward_s, stage.enters_s[at(v)]) + forward_s_[at(v)];
  }
  for (auto v = order.rbegin(); v != order.rend(); ++v) {
    ends.backward_s = std::max(ends.backward_s, stage.leaves_s[at(*v)]) + backward_s_[at(*v)];
  }
  ends.order = std::move(order);
  return ends;
}

// Pareto minima of (F, G) over the cuts inside the stage. Appending v to an order whose layers have
// backward work W makes F' = max(F, enters) + forward and G' = max(G, leaves + W + backward).
std::vector<DagStages::Ends> DagStages::sweep(const Stage& stage) const {
  std::map<int32_t, std::vector<Ends>> fronts;
  const auto first = cut_index_.at(stage.before);
  const auto last = cut_index_.at(stage.before | stage.members);
  fronts[first].push_back({});
  while (fronts.begin()->first != last) {
    const auto node = fronts.extract(fronts.begin());
    const Set& done = cuts_[at(node.key())];
    double work_s = 0;
    for (const int32_t v : stage.layers) {
      if (done[at(v)]) work_s += backward_s_[at(v)];
    }
    for (const int32_t v : stage.layers) {
      if (done[at(v)] || (preceding_[at(v)] & ~done).any()) continue;
      Set next = done;
      next.set(at(v));
      std::vector<Ends>& front = fronts[cut_index_.at(next)];
      for (const Ends& ends : node.mapped()) {
        Ends longer = ends;
        longer.forward_s = std::max(ends.forward_s, stage.enters_s[at(v)]) + forward_s_[at(v)];
        const double behind_s = stage.leaves_s[at(v)] + work_s + backward_s_[at(v)];
        longer.backward_s = std::max(ends.backward_s, behind_s);
        longer.order.push_back(static_cast<int32_t>(v));
        const bool beaten = std::any_of(front.begin(), front.end(), [&](const Ends& other) {
          return other.forward_s <= longer.forward_s && other.backward_s <= longer.backward_s;
        });
        if (beaten) continue;
        std::erase_if(front, [&](const Ends& other) {
          return longer.forward_s <= other.forward_s && longer.backward_s <= other.backward_s;
        });
        front.push_back(std::move(longer));
      }
    }
  }
  std::vector<Ends> exact;
  for (const Ends& ends : fronts.at(last)) exact.push_back(ends_of(stage, ends.order));
  return exact;
}

std::vector<int32_t> DagStages::order_of(int64_t arc, bool recomputed) const {
  const Set& before = cuts_[at(source_of_[at(arc)])];
  const Stage stage = stage_between(before, cuts_[at(graph_.arcs[at(arc)].target)]);
  std::vector<Ends> orders = pareto_orders(stage);
  return std::min_element(orders.begin(), orders.end(),
                          [&](const Ends& a, const Ends& b) {
                            return load_s(stage, a, recomputed) < load_s(stage, b, recomputed);
                          })
      ->order;
}

}  // namespace trainwright
