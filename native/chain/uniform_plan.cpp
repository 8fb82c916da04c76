#include "chain/uniform_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "chain/fill.hpp"
#include "chain/pipeline_ends.hpp"

namespace trainwright {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Cutter {
 public:
  // A stage takes the quickest of `options` that fits it.
  Cutter(const UniformProblem& problem, const ChainTimes& times, std::vector<size_t> options)
      : p_(problem), options_(std::move(options)), num_layers_(problem.layer_class.size()) {
    const size_t classes = problem.num_classes();
    for (const int32_t index : problem.layer_class) {
      const auto c = static_cast<size_t>(index);
      forward_s_.push_back(times.forward_s[c]);
      update_s_.push_back(times.update_s[c]);
      sync_.push_back(problem.sync_bytes[c]);
      double least_s = kInfinity;
      for (const size_t option : options_) {
        backward_s_.push_back(times.backward_s[option * classes + c]);
        saved_.push_back(problem.saved_bytes[option * classes + c]);
        transient_.push_back(problem.transient_bytes[option * classes + c]);
        least_s = std::min(least_s, forward_s_.back() + backward_s_.back());
      }
      work_s_ += least_s;
      heaviest_s_ = std::max(heaviest_s_, least_s);
    }
  }

  void improve(UniformPlan& best) const {
    for (size_t degree = 0; degree < p_.data_degrees.size(); ++degree) {
      const zero::Replicas replicas = p_.replicas(degree);
      const int64_t d = p_.data_degrees[degree], m = p_.num_microbatches / d;
      const int64_t most = p_.num_devices / (p_.tensor_degree * d);
      const int64_t depth = std::min(static_cast<int64_t>(num_layers_), most);
      for (int64_t p = depth; p >= 1; --p)
        offer(best, replicas, d, p, m);  // the good ones are deep
    }
  }

 private:
  void offer(UniformPlan& best, const zero::Replicas& replicas, int64_t d, int64_t p,
             int64_t m) const {
    const double share = 1 - std::pow(1 - 1 / static_cast<double>(m), static_cast<double>(p));
    const double least_s = std::max(work_s_ / share, static_cast<double>(m) * heaviest_s_);
    if (least_s * (1 - kSameSum) >= best.step_s) return;
    const auto fill = [&](double limit_s) {
      return fill_chain(num_layers_, p, [&](int64_t rank, size_t from, int64_t step, size_t most) {
        const auto in_flight = static_cast<double>(std::min(p - rank, m));
        return grow(from, step, most, in_flight, limit_s, replicas);
      });
    };
    const Filling cut = shortest_filling(heaviest_s_, best.step_s / static_cast<double>(m), fill);
    if (!cut.whole) return;  // nothing fits, or a shallower plan is the same
    price(best, cut, replicas, d, m);
  }

  // A stage as it grows, under one option.
  struct Growing {
    double work_s = 0, saved = 0, transient = 0;
    bool fits = true;
  };

  // A stage as long as time and memory allow, from one layer on to the last or back to the first.
  FilledStage grow(size_t from, int64_t step, size_t most, double in_flight, double limit_s,
                   const zero::Replicas& replicas) const {
    FilledStage grown;
    const size_t count = options_.size();
    std::vector<Growing> growing(count);
    double held = replicas.beside_bytes();
    for (size_t layer = from; grown.count < most; layer += static_cast<size_t>(step)) {
      held += replicas.layer_bytes(static_cast<size_t>(p_.layer_class[layer]));
      double quickest_s = kInfinity;
      size_t quickest = 0;
      for (size_t o = 0; o < count; ++o) {
        const size_t at = layer * count + o;
        Growing& stage = growing[o];
        stage.work_s += forward_s_[layer] + backward_s_[at];
        stage.saved += in_flight * saved_[at];
        stage.transient = std::max(stage.transient, transient_[at]);
        stage.fits = stage.fits && held + stage.saved + stage.transient <= p_.memory_bytes;
        if (stage.fits && stage.work_s < quickest_s) {
          quickest_s = stage.work_s;
          quickest = o;
        }
      }
      if (quickest_s > limit_s || quickest_s == kInfinity) {
        grown.next_s = quickest_s;
        break;
      }
      grown.work_s = quickest_s;
      grown.option = quickest;
      ++grown.count;
    }
    return grown;
  }

  struct Stages {
    std::vector<double> forward_s, backward_s, transfer_s, after_s;
  };

  Stages stages_of(const Filling& cut, const zero::Replicas& replicas) const {
    Stages stages;
    const size_t count = cut.starts.size();
    for (size_t i = 0; i < count; ++i) {
      const auto first = static_cast<size_t>(cut.starts[i]);
      const size_t end = i + 1 < count ? static_cast<size_t>(cut.starts[i + 1]) : num_layers_;
      double forward_s = 0, backward_s = 0, update_s = 0, sync = 0;
      for (size_t layer = first; layer < end; ++layer) {
        forward_s += forward_s_[layer];
        backward_s += backward_s_[layer * options_.size() + cut.options[i]];
        update_s += update_s_[layer];
        sync += sync_[layer];
      }
      stages.forward_s.push_back(forward_s);
      stages.backward_s.push_back(backward_s);
      stages.after_s.push_back(replicas.after_s(sync, forward_s, backward_s, update_s));
      if (end < num_layers_) stages.transfer_s.push_back(p_.transfer_s[end - 1]);
    }
    return stages;
  }

  void price(UniformPlan& best, const Filling& cut, const zero::Replicas& replicas, int64_t d,
             int64_t m) const {
    const Stages stages = stages_of(cut, replicas);
    if (least_time_s(stages, m) * (1 - kSameSum) >= best.step_s) return;
    const std::vector<double> ends_s = run(stages, m);
    double step_s = 0;
    for (size_t i = 0; i < ends_s.size(); ++i)
      step_s = std::max(step_s, ends_s[i] + stages.after_s[i]);
    if (step_s >= best.step_s) return;
    best = {step_s, d, cut.starts, {}};
    for (const size_t place : cut.options)
      best.options.push_back(static_cast<int64_t>(options_[place]));
  }

  // A stage works for m microbatches between the first's way to it and the last's way back, and
  // waits for the way through later stages as far as the microbatches it holds do not fill it.
  static double least_time_s(const Stages& stages, int64_t m) {
    const size_t count = stages.forward_s.size();
    double beyond_s = 0, there_s = 0, back_s = 0, least_s = 0;
    for (size_t i = 1; i < count; ++i)
      beyond_s += stages.forward_s[i] + stages.backward_s[i] + 2 * stages.transfer_s[i - 1];
    for (size_t i = 0; i < count; ++i) {
      const int64_t held = std::min(static_cast<int64_t>(count - i), m);
      const auto others = static_cast<double>(held - 1);
      const double first_s = std::max(0.0, beyond_s - others * stages.forward_s[i]);
      const double last_s = std::max(0.0, beyond_s - others * stages.backward_s[i]);
      // The two waits are one where all microbatches are held at once.
      const double waits_s = m > held ? first_s + last_s : std::max(first_s, last_s);
      const double work_s = stages.forward_s[i] + stages.backward_s[i];
      const double end_s = there_s + static_cast<double>(m) * work_s + waits_s;
      least_s = std::max({least_s, end_s + stages.after_s[i], end_s + back_s + stages.after_s[0]});
      if (i + 1 == count) break;
      beyond_s -= stages.forward_s[i + 1] + stages.backward_s[i + 1] + 2 * stages.transfer_s[i];
      there_s += stages.forward_s[i] + stages.transfer_s[i];
      back_s += stages.backward_s[i] + stages.transfer_s[i];
    }
    return least_s;
  }

  static std::vector<double> run(const Stages& stages, int64_t m) {
    const size_t count = stages.forward_s.size();
    std::vector<int64_t> in_flight(count), replicas(count, 1), offset(count + 1);
    std::vector<int32_t> target(count - 1);
    for (size_t i = 0; i < count; ++i) {
      in_flight[i] = std::min(static_cast<int64_t>(count - i), m);
      offset[i + 1] = static_cast<int64_t>(std::min(i + 1, count - 1));
    }
    std::iota(target.begin(), target.end(), 1);
    return one_f_one_b_ends_s({stages.forward_s, stages.backward_s, in_flight, replicas, offset,
                               target, stages.transfer_s},
                              m);
  }

  const UniformProblem& p_;
  std::vector<size_t> options_;
  size_t num_layers_;
  std::vector<double> forward_s_, backward_s_, update_s_, saved_, transient_, sync_;
  double work_s_ = 0;
  double heaviest_s_ = 0;
};

}  // namespace

UniformPlan fastest_uniform_plan(const UniformProblem& problem, const ChainTimes& times,
                                 double cutoff_s) {
  UniformPlan best;
  best.step_s = cutoff_s;
  std::vector<size_t> all(problem.num_options());
  std::iota(all.begin(), all.end(), size_t{0});
  for (const size_t option : all) Cutter(problem, times, {option}).improve(best);
  if (all.size() > 1) Cutter(problem, times, all).improve(best);
  if (best.starts.empty()) best.step_s = kInfinity;
  return best;
}

}  // namespace trainwright
