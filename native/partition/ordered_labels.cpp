#include "partition/ordered_labels.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Makes the least value 0; gives what it was.
double take_least(double* values, int32_t count) {
  const double least = *std::min_element(values, values + count);
  for (int32_t i = 0; i < count; ++i) values[i] -= least;
  return least;
}

}  // namespace

OrderedLabels::OrderedLabels(int32_t num_layers, int32_t num_labels,
                             std::vector<LabelledEdge> edges)
    : num_layers_(num_layers),
      num_labels_(num_labels),
      edges_(std::move(edges)),
      above_(num_layers),
      below_(num_layers),
      to_target_(edges_.size() * num_labels),
      to_source_(edges_.size() * num_labels),
      sum_(num_labels),
      labels_(num_layers) {
  for (int32_t e = 0; e < static_cast<int32_t>(edges_.size()); ++e) {
    above_[edges_[e].target].push_back(e);
    below_[edges_[e].source].push_back(e);
  }
}

void OrderedLabels::gather(int32_t layer, const std::vector<double>& cost) {
  const double* own = cost.data() + int64_t{layer} * num_labels_;
  std::copy(own, own + num_labels_, sum_.begin());
  const auto add = [&](const double* message) {
    for (int32_t i = 0; i < num_labels_; ++i) sum_[i] += message[i];
  };
  for (int32_t e : above_[layer]) add(to_target(e));
  for (int32_t e : below_[layer]) add(to_source(e));
}

// What part of a layer's cost each chain of edges through it may count.
double OrderedLabels::share(int32_t layer) const {
  const size_t chains = std::max(above_[layer].size(), below_[layer].size());
  return 1.0 / static_cast<double>(std::max<size_t>(1, chains));
}

// The target's label is the source's, or a smaller one for the price of the cut.
void OrderedLabels::send_down(int32_t edge, double share, const std::vector<double>& price) {
  const auto [source, target, send, receive] = edges_[edge];
  const double* back = to_source(edge);
  double* message = to_target(edge);
  double beyond = kInfinity;
  for (int32_t i = num_labels_ - 1; i >= 0; --i) {
    const double here = share * sum_[i] - back[i];
    message[i] = std::min(here, beyond + receive * price[i]);
    beyond = std::min(beyond, here + send * price[i]);
  }
  take_least(message, num_labels_);
}

double OrderedLabels::send_up(int32_t edge, double share, const std::vector<double>& price) {
  const auto [source, target, send, receive] = edges_[edge];
  const double* back = to_target(edge);
  double* message = to_source(edge);
  double before = kInfinity;
  for (int32_t i = 0; i < num_labels_; ++i) {
    const double here = share * sum_[i] - back[i];
    message[i] = std::min(here, before + send * price[i]);
    before = std::min(before, here + receive * price[i]);
  }
  return take_least(message, num_labels_);
}

double OrderedLabels::sweep(const std::vector<double>& cost, const std::vector<double>& price) {
  for (int32_t layer = num_layers_ - 1; layer >= 0; --layer) {
    gather(layer, cost);
    for (int32_t e : below_[layer]) send_down(e, share(layer), price);
  }
  double bound = 0;
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    gather(layer, cost);
    bound += take_least(sum_.data(), num_labels_);
    for (int32_t e : above_[layer]) bound += send_up(e, share(layer), price);
  }
  return bound;
}

const std::vector<int32_t>& OrderedLabels::cheap_labels(const std::vector<double>& cost,
                                                        const std::vector<double>& price) {
  for (int32_t layer = num_layers_ - 1; layer >= 0; --layer) {
    gather(layer, cost);
    int32_t highest = num_labels_ - 1;
    for (int32_t e : above_[layer]) {
      const auto [source, target, send, receive] = edges_[e];
      const int32_t label = labels_[source];
      const double* message = to_target(e);
      for (int32_t i = 0; i <= label; ++i) {
        const double cut = i < label ? send * price[label] + receive * price[i] : 0.0;
        sum_[i] += cut - message[i];
      }
      highest = std::min(highest, label);
    }
    const auto least = std::min_element(sum_.begin(), sum_.begin() + highest + 1);
    labels_[layer] = static_cast<int32_t>(least - sum_.begin());
  }
  return labels_;
}

}  // namespace trainwright
