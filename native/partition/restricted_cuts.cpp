#include "partition/restricted_cuts.hpp"

#include <algorithm>
#include <limits>
#include <set>

namespace trainwright {
namespace {

// Takes the ready layer with the smallest priority (ties: smallest position), prefix by prefix.
void append_prefixes(const Instance& in, const std::vector<double>& priority,
                     std::vector<uint64_t>& rows) {
  std::vector<size_t> open(in.num_layers);
  std::set<std::pair<double, int32_t>> ready;
  for (int32_t v = 0; v < in.num_layers; ++v) {
    open[v] = in.out_edges[v].size();
    if (open[v] == 0) ready.insert({priority[v], v});
  }
  std::vector<uint64_t> set(in.num_words, 0);
  while (!ready.empty()) {
    const int32_t v = ready.begin()->second;
    ready.erase(ready.begin());
    set[v >> 6] |= uint64_t{1} << (v & 63);
    rows.insert(rows.end(), set.begin(), set.end());
    for (int32_t e : in.in_edges[v])
      if (--open[in.edges[e].source] == 0)
        ready.insert({priority[in.edges[e].source], in.edges[e].source});
  }
}

bool has(const std::vector<uint64_t>& set, int32_t v) { return set[v >> 6] >> (v & 63) & 1; }

// Sets one layer larger or smaller, by ascending position.
void append_neighbours(const Instance& in, const std::vector<uint64_t>& set,
                       std::vector<std::vector<uint64_t>>& out) {
  for (int32_t v = 0; v < in.num_layers; ++v) {
    const bool inside = has(set, v);
    bool can_flip = true;
    for (int32_t e : inside ? in.in_edges[v] : in.out_edges[v])
      can_flip = can_flip && has(set, inside ? in.edges[e].source : in.edges[e].target) != inside;
    if (!can_flip) continue;
    out.push_back(set);
    out.back()[v >> 6] ^= uint64_t{1} << (v & 63);
  }
}

}  // namespace

std::vector<uint64_t> linear_cuts(const Instance& in, size_t num_orders) {
  // Positions already are a depth-first order. Distances in layers and in time level the branches.
  std::vector<double> depth(in.num_layers), layers(in.num_layers, 0), time(in.num_layers, 0),
      reverse(in.num_layers);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    double own = std::numeric_limits<double>::infinity();
    for (int32_t t = 0; t < in.num_degrees; ++t)
      if (in.offers(v, t)) own = std::min(own, in.fastest_s(v, t));
    depth[v] = v;
    reverse[v] = -v;
    for (int32_t e : in.out_edges[v]) {
      layers[v] = std::max(layers[v], layers[in.edges[e].target] + 1);
      time[v] = std::max(time[v], time[in.edges[e].target]);
    }
    time[v] += own;
  }
  std::vector<uint64_t> rows;
  const std::vector<double> orders[] = {depth, time, reverse, layers};
  for (size_t i = 0; i < num_orders; ++i) append_prefixes(in, orders[i], rows);
  return rows;
}

std::vector<uint64_t> cuts_near(const Instance& in, const std::vector<uint64_t>& rows,
                                int64_t per_cut) {
  std::vector<uint64_t> near;
  for (size_t begin = 0; begin < rows.size(); begin += in.num_words) {
    std::vector<std::vector<uint64_t>> found{
        {rows.begin() + begin, rows.begin() + begin + in.num_words}};
    std::set<std::vector<uint64_t>> seen{found[0]};
    std::vector<std::vector<uint64_t>> next;
    for (size_t i = 0; i < found.size() && static_cast<int64_t>(found.size()) < per_cut; ++i) {
      next.clear();
      append_neighbours(in, found[i], next);
      for (auto& set : next)
        if (seen.insert(set).second) found.push_back(set);
    }
    for (const auto& set : found) near.insert(near.end(), set.begin(), set.end());
  }
  return near;
}

std::vector<uint64_t> cuts_of(const Instance& in, const std::vector<PartitionStage>& stages) {
  std::vector<int32_t> position(in.num_layers);
  for (int32_t v = 0; v < in.num_layers; ++v) position[in.layer_at[v]] = v;
  std::vector<uint64_t> rows, set(in.num_words, 0);
  for (size_t i = stages.size(); i-- > 1;) {
    for (int32_t layer : stages[i].layers)
      set[position[layer] >> 6] |= uint64_t{1} << (position[layer] & 63);
    rows.insert(rows.end(), set.begin(), set.end());
  }
  return rows;
}

}  // namespace trainwright
