// The stages of a layer graph that branches: one set of layers between two downward closed sets.
//
// Cuts are the sets of layers closed under predecessors. The layers of a stage run one after
// another in one linear extension, backward in the reverse of it; as in chain_stages, a layer waits
// for what enters it from outside. With F and G the ends of forward and backward, a stage costs the
// least F + G over all orders, or F + max(work, G) where it recomputes. An order that ends both as
// early as each alone could is found greedily nearly always; otherwise the Pareto minima of (F, G)
// are swept over the cuts inside the stage. O(arcs x layers), and rarely more.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "placement/chain_stages.hpp"

namespace trainwright {

constexpr int64_t kMostDagLayers = 512;

class DagStages {
 public:
  // Layers of `shape` are in a topological order.
  DagStages(const ChainShape& shape, std::span<const double> forward_s,
            std::span<const double> backward_s, int64_t max_arcs,
            const std::function<bool()>& poll);

  // False: more than max_arcs stages, or stopped by the poll; then there is no graph.
  bool complete() const { return complete_; }
  const StageGraph& graph() const { return graph_; }

  // Layers of the stage in an order that attains its load; `recomputed` says which load.
  std::vector<int32_t> order_of(int64_t arc, bool recomputed) const;

 private:
  using Set = std::bitset<kMostDagLayers>;

  struct Stage {
    Set before, members;
    std::vector<int32_t> layers;             // the members, ascending
    std::vector<double> enters_s, leaves_s;  // by layer: waits for outside, forward and backward
  };
  struct Ends {
    double forward_s = 0, backward_s = 0;
    std::vector<int32_t> order;
  };

  bool enumerate(int64_t max_arcs);
  bool connect(const std::function<bool()>& poll);
  Stage stage_between(const Set& before, const Set& after) const;
  StageArc priced(const Stage& stage) const;
  std::vector<Ends> pareto_orders(const Stage& stage) const;
  Ends greedy(const Stage& stage, bool backward) const;
  Ends ends_of(const Stage& stage, std::vector<int32_t> order) const;
  std::vector<Ends> sweep(const Stage& stage) const;
  double load_s(const Stage& stage, const Ends& ends, bool recomputed) const;

  const ChainShape& shape_;
  std::span<const double> forward_s_;
  std::span<const double> backward_s_;
  int64_t num_layers_;
  std::vector<Set> preceding_;
  std::vector<Set> following_;
  std::vector<Set> cuts_;
  std::unordered_map<Set, int32_t> cut_index_;
  std::vector<int32_t> source_of_;
  StageGraph graph_;
  bool complete_ = true;
};

}  // namespace trainwright
