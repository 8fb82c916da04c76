#include "partition/knapsack.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Room for the rounding of sums along the merge; far below every tolerance in use.
constexpr double kRounding = 1e-13;

}  // namespace

void Knapsack::clear() {
  choices_.clear();
  first_.assign(1, 0);
  steps_.clear();
  fastest_s_ = fastest_bytes_ = least_bytes_ = 0;
}

void Knapsack::add_option(double time_s, double memory_bytes, int64_t row) {
  // Insertion sort by (time, memory): options come nearly sorted.
  choices_.push_back({time_s, memory_bytes, row});
  for (size_t i = choices_.size() - 1; i > static_cast<size_t>(first_.back()); --i) {
    const Choice &a = choices_[i - 1], &b = choices_[i];
    if (a.time_s < b.time_s || (a.time_s == b.time_s && a.memory_bytes <= b.memory_bytes)) break;
    std::swap(choices_[i - 1], choices_[i]);
  }
}

void Knapsack::finish_layer() {
  const int32_t begin = first_.back(), layer = static_cast<int32_t>(first_.size()) - 1;
  int32_t end = begin + 1;
  for (size_t i = begin + 1; i < choices_.size(); ++i)
    if (choices_[i].memory_bytes < choices_[end - 1].memory_bytes) choices_[end++] = choices_[i];
  choices_.resize(end);
  first_.push_back(end);
  fastest_s_ += choices_[begin].time_s;
  fastest_bytes_ += choices_[begin].memory_bytes;
  least_bytes_ += choices_[end - 1].memory_bytes;
  append_hull_steps<Choice>(std::span(choices_).subspan(begin), layer, steps_);
}

KnapsackAnswer Knapsack::decide(double capacity_bytes, double limit_s, int64_t max_states) {
  KnapsackAnswer answer;
  if (bracket(capacity_bytes, limit_s, answer) && answer.upper_s > limit_s)
    merge(fastest_bytes_ - capacity_bytes, limit_s, max_states, answer);
  return answer;
}

KnapsackAnswer Knapsack::least(double capacity_bytes, double limit_s, int64_t max_states) {
  KnapsackAnswer answer;
  if (bracket(capacity_bytes, limit_s, answer))
    merge(fastest_bytes_ - capacity_bytes, std::min(limit_s, answer.upper_s), max_states, answer);
  return answer;
}

bool Knapsack::bracket(double capacity_bytes, double limit_s, KnapsackAnswer& answer) {
  answer = {fastest_s_, kInfinity, false};
  if (least_bytes_ > capacity_bytes) {
    answer.lower_s = kInfinity;
    return false;
  }
  picked_.assign(first_.size() - 1, 0);
  const double need = fastest_bytes_ - capacity_bytes;
  if (need <= 0) {
    answer.upper_s = fastest_s_;
    record_choice();
    return false;
  }
  if (fastest_s_ > limit_s) return false;
  return relax(need, limit_s, answer);  // false: bound above the limit
}

// Walks the hull steps by ratio. False when the bound exceeds the limit.
bool Knapsack::relax(double need, double limit_s, KnapsackAnswer& answer) {
  std::sort(steps_.begin(), steps_.end(), [](const HullStep& a, const HullStep& b) {
    if (a.ratio != b.ratio) return a.ratio < b.ratio;
    return a.layer != b.layer ? a.layer < b.layer : a.choice < b.choice;
  });
  double saved = 0, extra = 0;
  size_t i = 0;
  for (; i + 1 < steps_.size() && saved + steps_[i].saving_bytes < need; ++i) {
    saved += steps_[i].saving_bytes;
    extra += steps_[i].extra_s;
    picked_[steps_[i].layer] = steps_[i].choice;
  }
  const HullStep& last = steps_[i];
  multiplier_ = last.ratio;
  answer.lower_s = fastest_s_ + extra + last.ratio * std::min(need - saved, last.saving_bytes);
  if (answer.lower_s > limit_s) return false;
  saved += last.saving_bytes;
  extra += last.extra_s;
  picked_[last.layer] = last.choice;
  // The last step often saves more than is needed: undo what fits, dearest first.
  for (size_t back = i; back-- > 0 && saved > need;) {
    const HullStep& step = steps_[back];
    if (picked_[step.layer] != step.choice || saved - step.saving_bytes < need) continue;
    size_t before = back;  // the layer's previous hull step, or its fastest choice
    while (before-- > 0 && steps_[before].layer != step.layer) {
    }
    picked_[step.layer] = before < back ? steps_[before].choice : 0;
    saved -= step.saving_bytes;
    extra -= step.extra_s;
  }
  if (saved < need * (1 - kRounding) - kRounding * fastest_bytes_) return true;  // rounding only
  answer.upper_s = fastest_s_ + extra;
  record_choice();
  return true;
}

// Drops choices whose reduced cost exceeds the slack and sums the layers left with one.
void Knapsack::find_open_layers(double slack_s) {
  open_.clear();
  is_out_.assign(choices_.size(), 0);
  fixed_saving_ = fixed_extra_ = 0;
  for (size_t v = 0; v + 1 < first_.size(); ++v) {
    const Choice& fastest = choices_[first_[v]];
    const auto reduced = [&](int32_t i) {
      return choices_[i].time_s - fastest.time_s -
             multiplier_ * (fastest.memory_bytes - choices_[i].memory_bytes);
    };
    Open open{static_cast<int32_t>(v), kInfinity, kInfinity, 0};
    for (int32_t i = first_[v]; i < first_[v + 1]; ++i)
      open.least_reduced_s = std::min(open.least_reduced_s, reduced(i));
    int32_t left = 0, only = 0;
    bool seen_least = false;
    for (int32_t i = first_[v]; i < first_[v + 1]; ++i) {
      const double delta = reduced(i) - open.least_reduced_s;
      is_out_[i] = delta > slack_s;
      if (is_out_[i]) continue;
      ++left;
      only = i;
      open.most_saving_bytes = fastest.memory_bytes - choices_[i].memory_bytes;
      if (delta == 0 && !seen_least) {
        seen_least = true;
      } else {
        open.second_delta_s = std::min(open.second_delta_s, delta);
      }
    }
    picked_[v] = only - first_[v];
    if (left > 1) {
      open_.push_back(open);
    } else {
      fixed_saving_ += open.most_saving_bytes;
      fixed_extra_ += choices_[only].time_s - fastest.time_s;
    }
  }
  std::sort(open_.begin(), open_.end(), [](const Open& a, const Open& b) {
    return a.second_delta_s != b.second_delta_s ? a.second_delta_s > b.second_delta_s
                                                : a.layer < b.layer;
  });
}

// Appends to merged_ all states of states_[begin, end) extended by the layer, Pareto-minimal.
void Knapsack::extend(const Open& open, size_t begin, size_t end) {
  merged_.clear();
  const Choice& fastest = choices_[first_[open.layer]];
  for (int32_t i = first_[open.layer]; i < first_[open.layer + 1]; ++i) {
    if (is_out_[i]) continue;
    const double saving = fastest.memory_bytes - choices_[i].memory_bytes;
    const double extra = choices_[i].time_s - fastest.time_s;
    const size_t middle = merged_.size();
    for (size_t s = begin; s < end; ++s)
      merged_.push_back({states_[s].saving_bytes + saving, states_[s].extra_s + extra,
                         static_cast<int32_t>(s), i - first_[open.layer]});
    // Each run is sorted by extra time: merging keeps the whole sorted.
    std::inplace_merge(merged_.begin(), merged_.begin() + middle, merged_.end(),
                       [](const State& a, const State& b) {
                         return a.extra_s != b.extra_s ? a.extra_s < b.extra_s
                                                       : a.saving_bytes > b.saving_bytes;
                       });
  }
}

void Knapsack::merge(double need, double limit_s, int64_t max_states, KnapsackAnswer& answer) {
  ++num_merges_;
  const double limit_extra = (limit_s - fastest_s_) + kRounding * limit_s;
  const double slack = std::max(0.0, limit_s - answer.lower_s) + kRounding * limit_s;
  const double enough = need - kRounding * fastest_bytes_ * 0.1;
  find_open_layers(slack);
  // What the layers after position i can still save, and their least reduced cost.
  std::vector<double> rest_saving(open_.size() + 1, 0), rest_reduced(open_.size() + 1, 0);
  for (size_t i = open_.size(); i-- > 0;) {
    rest_saving[i] = rest_saving[i + 1] + open_[i].most_saving_bytes;
    rest_reduced[i] = rest_reduced[i + 1] + open_[i].least_reduced_s;
  }
  states_.assign(1, {fixed_saving_, fixed_extra_, -1, 0});
  std::vector<size_t> begins{0};
  for (size_t i = 0; i < open_.size(); ++i) {
    const size_t begin = begins.back(), end = states_.size();
    extend(open_[i], begin, end);
    double best_saving = -kInfinity;
    for (const State& state : merged_) {
      if (state.saving_bytes <= best_saving) continue;  // no slower state may save less
      const double missing = need - state.saving_bytes;
      if (state.saving_bytes + rest_saving[i + 1] < enough) continue;
      if (state.extra_s + rest_reduced[i + 1] + multiplier_ * missing > limit_extra) continue;
      best_saving = state.saving_bytes;
      states_.push_back(state);
    }
    if (static_cast<int64_t>(states_.size() - end) > max_states) {
      answer.is_capped = true;
      return;
    }
    begins.push_back(end);
  }
  // The first final state that saves enough is the fastest.
  for (size_t s = begins.back(); s < states_.size(); ++s) {
    if (states_[s].saving_bytes < enough || states_[s].extra_s > limit_extra) continue;
    const double time_s = fastest_s_ + states_[s].extra_s;
    if (time_s < answer.upper_s) {
      answer.upper_s = time_s;
      int32_t at = static_cast<int32_t>(s);
      for (size_t i = open_.size(); i-- > 0; at = states_[at].previous)
        picked_[open_[i].layer] = states_[at].choice;
      record_choice();
    }
    answer.lower_s = answer.upper_s;
    return;
  }
  answer.lower_s = answer.upper_s <= limit_s ? answer.upper_s : limit_s * (1 + kRounding);
}

void Knapsack::record_choice() {
  chosen_rows_.clear();
  for (size_t v = 0; v + 1 < first_.size(); ++v)
    chosen_rows_.push_back(choices_[first_[v] + picked_[v]].row);
}

}  // namespace trainwright
