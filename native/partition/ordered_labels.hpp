// Layers labelled by ordered places, at the least sum of costs: a bound by message passing.
//
// Place 0 is the last of the pipeline. A layer's label is at most that of each layer it reads from;
// an edge whose ends differ costs send[label of its source] and receive[label of its target] times
// factors of its own. The bound is that of sequential tree-reweighted message passing (Kolmogorov,
// IEEE TPAMI 28(10), 2006): valid after every sweep, and by and by the linear relaxation's.
#pragma once

#include <cstdint>
#include <vector>

namespace trainwright {

struct LabelledEdge {
  int32_t source, target;  // target < source
  double send, receive;    // times the price of the label
};

class OrderedLabels {
 public:
  OrderedLabels(int32_t num_layers, int32_t num_labels, std::vector<LabelledEdge> edges);

  // A sweep there and back under `cost` [layers * labels] and `price` [labels]; the lower bound.
  double sweep(const std::vector<double>& cost, const std::vector<double>& price);
  // A labelling in order that is cheap under the messages of the last sweep.
  const std::vector<int32_t>& cheap_labels(const std::vector<double>& cost,
                                           const std::vector<double>& price);
  const std::vector<LabelledEdge>& edges() const { return edges_; }

 private:
  double* to_target(int32_t edge) { return to_target_.data() + int64_t{edge} * num_labels_; }
  double* to_source(int32_t edge) { return to_source_.data() + int64_t{edge} * num_labels_; }
  void gather(int32_t layer, const std::vector<double>& cost);
  double share(int32_t layer) const;
  void send_down(int32_t edge, double share, const std::vector<double>& price);
  double send_up(int32_t edge, double share, const std::vector<double>& price);

  int32_t num_layers_, num_labels_;
  std::vector<LabelledEdge> edges_;
  std::vector<std::vector<int32_t>> above_, below_;  // edges a layer is the target, the source of
  std::vector<double> to_target_, to_source_;        // messages, [edges * labels]
  std::vector<double> sum_;                          // of a layer's cost and messages
  std::vector<int32_t> labels_;
};

}  // namespace trainwright
