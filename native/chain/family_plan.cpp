#include "chain/family_plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "chain/fill.hpp"

namespace trainwright {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Layer {
  double forward_s, input_grad_s, weight_grad_s, update_s;
  double held, saved, pending, running, sync;  // bytes; `held` whatever is in flight

  double work_s() const { return forward_s + input_grad_s + weight_grad_s; }
};

// Layers of one stage, summed.
struct Chunk {
  int64_t count = 0;
  double work_s = 0, held = 0, saved = 0, pending = 0, restored = 0, transient = 0;

  double running() const { return transient + restored; }
};

class Planner {
 public:
  Planner(const UniformProblem& problem, const ChainTimes& times, const SplitBackward& split,
          const FamilyOrder& order, size_t option, size_t degree)
      : p_(problem), order_(order), replicas_(problem.replicas(degree)) {
    const size_t classes = problem.num_classes();
    for (const int32_t index : problem.layer_class) {
      const auto c = static_cast<size_t>(index);
      const size_t at = option * classes + c;
      const double weight_s = split.weight_grad_s[c];
      layers_.push_back({.forward_s = times.forward_s[c],
                         .input_grad_s = times.backward_s[at] - weight_s,
                         .weight_grad_s = weight_s,
                         .update_s = times.update_s[c],
                         .held = replicas_.layer_bytes(c),
                         .saved = problem.saved_bytes[at],
                         .pending = split.pending_bytes[c],
                         .running = problem.transient_bytes[at],
                         .sync = problem.sync_bytes[c]});
      restored_.push_back(split.restored_bytes[at]);
      work_s_ += layers_.back().work_s();
      heaviest_s_ = std::max(heaviest_s_, layers_.back().work_s());
    }
  }

  FamilyPlan fastest(double cutoff_s) const {
    const auto m = static_cast<double>(order_.orders.num_microbatches);
    const auto ranks = static_cast<double>(order_.orders.num_ranks());
    const double least_s = m * std::max(work_s_ / ranks, heaviest_s_);
    FamilyPlan none{kInfinity, {}};
    if (least_s * (1 - kSameSum) >= cutoff_s || !fill(kInfinity).fits) return none;
    const Filling cut =
        shortest_filling(heaviest_s_, cutoff_s / m, [&](double limit_s) { return fill(limit_s); });
    if (!cut.whole) return none;  // fewer ranks hold all layers: another order's plan
    const double step_s = run(cut, cutoff_s);
    if (step_s >= cutoff_s) return none;
    return {step_s, cut.starts};
  }

 private:
  int64_t num_stages() const { return order_.orders.num_stages(); }

  // Whether a rank with these chunks fits into memory at its fullest instant.
  bool fits(int64_t rank, const std::array<Chunk, 2>& chunks) const {
    const auto width = static_cast<size_t>(3 * order_.num_chunks);
    double held = 0;
    for (const Chunk& chunk : chunks) held += chunk.held;
    const auto begin = static_cast<size_t>(order_.count_offset[static_cast<size_t>(rank)]);
    const auto end = static_cast<size_t>(order_.count_offset[static_cast<size_t>(rank) + 1]);
    for (size_t row = begin; row < end; ++row) {
      double bytes = held;
      for (size_t c = 0; c < static_cast<size_t>(order_.num_chunks); ++c) {
        const int32_t* count = &order_.counts[row * width + 3 * c];
        bytes += count[0] * chunks[c].saved + count[1] * chunks[c].pending +
                 count[2] * chunks[c].running();
      }
      if (bytes > p_.memory_bytes) return false;
    }
    return true;
  }

  Chunk with(const Chunk& chunk, size_t at) const {
    const Layer& layer = layers_[at];
    return {.count = chunk.count + 1,
            .work_s = chunk.work_s + layer.work_s(),
            .held = (chunk.count == 0 ? replicas_.beside_bytes() : chunk.held) + layer.held,
            .saved = chunk.saved + layer.saved,
            .pending = chunk.pending + layer.pending,
            .restored = chunk.restored + restored_[at],
            .transient = std::max(chunk.transient, layer.running)};
  }

  Filling fill(double limit_s) const {
    if (order_.num_chunks == 2) return fill_from_both_ends(limit_s);
    return fill_chain(layers_.size(), order_.orders.num_ranks(),
                      [&](int64_t rank, size_t from, int64_t step, size_t most) {
                        return grow(rank, from, step, most, limit_s);
                      });
  }

  // The one chunk of a rank, as long as time and memory allow.
  FilledStage grow(int64_t rank, size_t from, int64_t step, size_t most, double limit_s) const {
    FilledStage stage;
    std::array<Chunk, 2> chunks{};
    for (size_t at = from; stage.count < most; at += static_cast<size_t>(step)) {
      chunks[0] = with(chunks[0], at);
      if (!fits(rank, chunks)) break;
      if (chunks[0].work_s > limit_s) {
        stage.next_s = chunks[0].work_s;
        break;
      }
      stage.work_s = chunks[0].work_s;
      ++stage.count;
    }
    return stage;
  }

  // Rank after rank takes layers off both ends of what is left, from the end it has fewer of.
  Filling fill_from_both_ends(double limit_s) const {
    Filling filling;
    bool every_stage = true;
    const int64_t ranks = order_.orders.num_ranks();
    std::vector<int64_t> near, far;
    int64_t first = 0, last = static_cast<int64_t>(layers_.size());  // what is left: [first, last)
    for (int64_t rank = 0; rank < ranks && first < last; ++rank) {
      std::array<Chunk, 2> chunks{};
      near.push_back(first);
      std::array<bool, 2> open{true, true};
      while (first < last && (open[0] || open[1])) {
        size_t side = open[0] ? 0 : 1;
        if (open[0] && open[1] && chunks[1].count < chunks[0].count) side = 1;
        std::array<Chunk, 2> grown = chunks;
        grown[side] = with(chunks[side], static_cast<size_t>(side == 0 ? first : last - 1));
        const double work_s = grown[0].work_s + grown[1].work_s;
        if (!fits(rank, grown)) {
          open[side] = false;
        } else if (work_s > limit_s) {
          filling.next_s = std::min(filling.next_s, work_s);
          open[side] = false;
        } else {
          chunks = grown;
          if (side == 0) {
            ++first;
          } else {
            --last;
          }
        }
      }
      if (chunks[0].count == 0) return filling;
      far.push_back(last);
      filling.longest_s = std::max(filling.longest_s, chunks[0].work_s + chunks[1].work_s);
      every_stage &= chunks[1].count > 0;
    }
    filling.fits = first == last;
    filling.whole = filling.fits && every_stage && static_cast<int64_t>(near.size()) == ranks;
    filling.starts = near;
    filling.starts.insert(filling.starts.end(), far.rbegin(), far.rend());
    return filling;
  }

  // Seconds of the step, or more than the cutoff where it cannot be met.
  double run(const Filling& cut, double cutoff_s) const {
    const auto stages = static_cast<size_t>(num_stages());
    const auto ranks = static_cast<size_t>(order_.orders.num_ranks());
    std::vector<double> duration_s(kNumActionKinds * stages, 0.0), transfer_s(stages - 1);
    std::vector<double> work_s(ranks, 0.0), after_s(ranks, 0.0), way_s(stages, 0.0);
    for (size_t s = 0; s < stages; ++s) {
      const auto rank = static_cast<size_t>(order_.orders.rank_of_stage[s]);
      const auto first = static_cast<size_t>(cut.starts[s]);
      const size_t end = s + 1 < stages ? static_cast<size_t>(cut.starts[s + 1]) : layers_.size();
      double sync = 0, update_s = 0;
      for (size_t at = first; at < end; ++at) {
        const Layer& layer = layers_[at];
        duration_s[kForward * stages + s] += layer.forward_s;
        duration_s[kInputGrad * stages + s] += layer.input_grad_s;
        duration_s[kWeightGrad * stages + s] += layer.weight_grad_s;
        work_s[rank] += layer.work_s();
        sync += layer.sync;
        update_s += layer.update_s;
      }
      after_s[rank] += replicas_.after_s(
          sync, duration_s[kForward * stages + s],
          duration_s[kInputGrad * stages + s] + duration_s[kWeightGrad * stages + s], update_s);
      if (s + 1 < stages) {
        transfer_s[s] = p_.transfer_s[end - 1];
        way_s[s + 1] = way_s[s] + duration_s[s] + transfer_s[s];
      }
    }
    const auto m = static_cast<double>(order_.orders.num_microbatches);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double least_s = way_s[rank] + m * work_s[rank] + after_s[rank];
      if (least_s * (1 - kSameSum) >= cutoff_s) return kInfinity;
    }
    const std::vector<double> pair_s(stages, kInfinity);
    const Simulation found = simulate(order_.orders, {.duration_s = duration_s,
                                                      .forward_transfer_s = transfer_s,
                                                      .backward_transfer_s = transfer_s,
                                                      .pair_s = pair_s});
    if (!found.complete) return kInfinity;
    double step_s = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto last = static_cast<size_t>(order_.orders.rank_offsets[rank + 1] - 1);
      step_s = std::max(step_s, found.end_s[last] + after_s[rank]);
    }
    return step_s;
  }

  const UniformProblem& p_;
  const FamilyOrder& order_;
  zero::Replicas replicas_;
  std::vector<Layer> layers_;
  std::vector<double> restored_;
  double work_s_ = 0, heaviest_s_ = 0;
};

}  // namespace

FamilyPlan fastest_family_plan(const UniformProblem& problem, const ChainTimes& times,
                               const SplitBackward& split, const FamilyOrder& order, size_t option,
                               size_t degree, double cutoff_s) {
  return Planner(problem, times, split, order, option, degree).fastest(cutoff_s);
}

}  // namespace trainwright
