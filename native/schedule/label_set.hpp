// Labels of a bound: times that some orders cannot beat, few enough to go on with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace trainwright {

using TimeLabel = std::vector<double>;

// Without those that are nowhere earlier than another; beyond `kept`, a label joins the one that
// loses least, weighed by component, and their componentwise minimum stands for both.
std::vector<TimeLabel> thinned(std::vector<TimeLabel> labels, std::span<const double> weight,
                               size_t kept);

// How many labels each state of a layer may keep, of so many for all layers. What states with few
// labels and earlier layers do not use is shared by the others.
class LabelAllowance {
 public:
  LabelAllowance(int64_t num_labels, int64_t num_layers) : left_(num_labels), layers_(num_layers) {}

  // The most for a state of the next layer, whose states have `num_labels` each.
  int64_t per_state(std::vector<int64_t> num_labels) const;
  // That layer kept so many; whether some state had more.
  void spend(int64_t num_kept, bool had_more);
  // Whether no state ever had more than it might keep.
  bool was_enough() const { return was_enough_; }

 private:
  int64_t left_, layers_;
  bool was_enough_ = true;
};

// Thins the labels of all states of a layer, `reduced(state, labels, kept)`, to at least `fewest`
// and at most `most` each.
template <typename Layer, typename Reduced>
void thin_layer(Layer& layer, LabelAllowance& allowance, int64_t fewest, int64_t most,
                const Reduced& reduced) {
  std::vector<int64_t> num_labels;
  for (const auto& [state, labels] : layer) num_labels.push_back(std::ssize(labels));
  const int64_t kept = std::clamp(allowance.per_state(std::move(num_labels)), fewest, most);
  int64_t num_kept = 0;
  bool had_more = false;
  for (auto& [state, labels] : layer) {
    const int64_t num_before = std::ssize(labels);
    labels = reduced(state, std::move(labels), static_cast<size_t>(kept));
    num_kept += std::ssize(labels);
    had_more |= num_before > kept && std::ssize(labels) == kept;
  }
  allowance.spend(num_kept, had_more);
}

}  // namespace trainwright
