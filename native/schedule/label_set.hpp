// Labels of a bound: times that some orders cannot beat, few enough to go on with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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

// Asks whether to stop, at first and then a few times a second: a label takes some microseconds,
// and so do a hundred comparisons of two.
class Stopping {
 public:
  explicit Stopping(const std::function<bool()>& poll) : poll_(poll) {}

  // Whether to stop, when so many labels were extended.
  bool after(int64_t num_labels) {
    work_ += num_labels;
    if (!told_ && poll_ && work_ >= kBetween) {
      work_ = 0;
      told_ = poll_();
    }
    return told_;
  }
  bool told() const { return told_; }

 private:
  static constexpr int64_t kBetween = 5'000;
  const std::function<bool()>& poll_;
  int64_t work_ = kBetween;
  bool told_ = false;
};

// Thins the labels of all states of a layer, `reduced(state, labels, kept)`, to at least `fewest`
// and at most `most` each; told to stop, it leaves the layer as it is.
template <typename Layer, typename Reduced>
void thin_layer(Layer& layer, LabelAllowance& allowance, int64_t fewest, int64_t most,
                Stopping& stopping, const Reduced& reduced) {
  std::vector<int64_t> num_labels;
  for (const auto& [state, labels] : layer) num_labels.push_back(std::ssize(labels));
  const int64_t kept = std::clamp(allowance.per_state(std::move(num_labels)), fewest, most);
  int64_t num_kept = 0;
  bool had_more = false;
  for (auto& [state, labels] : layer) {
    const int64_t num_before = std::ssize(labels);
    if (stopping.after(num_before + num_before * std::min(num_before, kept) / 100)) return;
    labels = reduced(state, std::move(labels), static_cast<size_t>(kept));
    num_kept += std::ssize(labels);
    had_more |= num_before > kept && std::ssize(labels) == kept;
  }
  allowance.spend(num_kept, had_more);
}

}  // namespace trainwright
