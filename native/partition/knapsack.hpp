// Multiple-choice knapsack: one option per layer, least time with memory at most a capacity.
//
//     min sum_v time(v, o_v)   subject to   sum_v memory(v, o_v) <= capacity
//
// Cheapest answer first: all fastest; least memory; the linear relaxation along the layers' lower
// convex hulls (its greedy is a plan, its fractional last step a bound); then an exact merge of
// (saving, extra time) lists over the layers whose choice is still open within the slack between
// relaxation and limit ("strip", partitioning.md section 6, step 6; Lagrangian reduced costs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "partition/lower_hull.hpp"

namespace trainwright {

struct KnapsackAnswer {
  double lower_s = 0;      // proved: no choice is faster
  double upper_s = 0;      // a choice this fast exists (infinity: none known)
  bool is_capped = false;  // the state cap stopped the exact merge
};

class Knapsack {
 public:
  void clear();
  // Options of the current layer, in any order; finish_layer drops the dominated ones.
  void add_option(double time_s, double memory_bytes, int64_t row);
  void finish_layer();

  // Settles whether some choice takes at most limit_s; the exact merge runs only if needed.
  KnapsackAnswer decide(double capacity_bytes, double limit_s, int64_t max_states);
  // The least time itself, where it is at most limit_s: upper_s, and lower_s unless capped.
  KnapsackAnswer least(double capacity_bytes, double limit_s, int64_t max_states);
  // The rows chosen for upper_s, in the order the layers were added.
  const std::vector<int64_t>& chosen_rows() const { return chosen_rows_; }
  int64_t num_merges() const { return num_merges_; }

 private:
  struct Choice {
    double time_s, memory_bytes;
    int64_t row;
  };
  struct State {
    double saving_bytes, extra_s;
    int32_t previous, choice;
  };
  struct Open {  // layer with more than one choice left
    int32_t layer;
    double second_delta_s, least_reduced_s, most_saving_bytes;
  };

  // Whether the merge is still needed.
  bool bracket(double capacity_bytes, double limit_s, KnapsackAnswer& answer);
  bool relax(double need_bytes, double limit_s, KnapsackAnswer& answer);
  void merge(double need_bytes, double limit_s, int64_t max_states, KnapsackAnswer& answer);
  void find_open_layers(double slack_s);
  void extend(const Open& open, size_t begin, size_t end);
  void record_choice();

  std::vector<Choice> choices_;
  std::vector<int32_t> first_;  // per layer, into choices_
  std::vector<HullStep> steps_;
  std::vector<int32_t> picked_;  // per layer, index of its choice from first_
  std::vector<int64_t> chosen_rows_;
  std::vector<State> states_, merged_;
  std::vector<Open> open_;
  std::vector<uint8_t> is_out_;
  double multiplier_ = 0, fixed_saving_ = 0, fixed_extra_ = 0;  // of layers with one choice left
  double fastest_s_ = 0, fastest_bytes_ = 0, least_bytes_ = 0;
  int64_t num_merges_ = 0;
};

}  // namespace trainwright
