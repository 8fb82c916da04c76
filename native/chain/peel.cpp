#include "chain/peel.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/zero.hpp"

namespace trainwright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kBelowOne = 1 - 1e-12;  // sums of floats may round
// Microbatches for each rank up to which paths through it are looked at: of more its work counts.
constexpr int64_t kPathsWithin = 4;

struct Points {
  double time_s = kInfinite;
  int64_t near = -1;
  int64_t far = -1;
};

// One rank with its two kinds at some points of their fronts: what it takes by itself in a step.
struct RankTime {
  double step_s = kInfinite;
  int64_t rank = 0;
  int64_t near = 0;
  int64_t far = 0;
  Points points;
};

// Seconds of the points of both chunks count so much when the best two are chosen.
struct Weights {
  double near = 1;
  double far = 1;
};

// What a rank waits for whatever it holds: see `wait_s`.
struct Waits {
  double head_s = 0, first_back_s = 0, turn_s = 0, through_s = 0, reached_end_s = 0;
  double slowest_far_s = 0;
  double near_forward_s = 0, forward_s = 0, near_back_s = 0, backward_s = 0;
  double near_weight_s = 0, far_weight_s = 0, tail_s = 0, optimizer_s = 0;
  double far_head_s = 0, over_s = 0;  // until the first far forward; between both of a microbatch
  // The longest stages, at least: forwards and back on near chunks before, either way on the far
  // chunks behind, forwards and back on those of the ranks within.
  double outer_pace_s = 0, outer_back_s = 0, behind_pace_s = 0;
  double inner_forward_s = 0, inner_back_s = 0;
  double near_freed = 0, far_freed = 0;  // bytes, by an input gradient at most
  double most_far = kInfinite;  // forwards of the far chunk that can start before any goes back
};

// How both chunks run: the bytes that their activations keep, and those there are for them; no
// bytes where only their number is limited.
struct Kept {
  double near = 0, far = 0, room = 0;
  double far_s = 0;   // a microbatch of the far chunk
  double tail_s = 0;  // exchanged at last
};

struct Pick {
  int32_t near = 0;
  int32_t far = 0;
};

// Which ranks are looked for: where time alone counts, such as are no longer than `most_s` and
// shorter than `below_s`, the shortest or any.
struct Wanted {
  double most_s = kInfinite;
  double below_s = kInfinite;
  bool is_any = false;
};

// The longest of so many stages that a chain's first layers are cut into, at least; seconds before
// each layer.
class LongestOfFirst {
 public:
  LongestOfFirst() = default;
  LongestOfFirst(std::span<const double> before_s, int64_t num_stages, bool is_from_end)
      : size_(static_cast<int64_t>(before_s.size())) {
    const auto length_s = [&](int64_t first, int64_t after) {
      const int64_t last = size_ - 1;
      return is_from_end ? before_s[last - first] - before_s[last - after]
                         : before_s[after] - before_s[first];
    };
    least_.assign(num_stages + 1, std::vector<double>(size_, kInfinite));
    least_[0][0] = 0;
    for (int64_t k = 0; k < num_stages; ++k) {
      for (int64_t after = k + 1; after < size_; ++after) {
        double& least_s = least_[k + 1][after];
        for (int64_t first = after - 1; first >= k; --first) {
          const double own_s = length_s(first, after);
          if (own_s >= least_s) break;
          least_s = std::min(least_s, std::max(least_[k][first], own_s));
        }
      }
    }
  }
  double least_s(int64_t stages, int64_t layers) const { return least_[stages][layers]; }

 private:
  int64_t size_ = 0;
  std::vector<std::vector<double>> least_;
};

// The longest of so many stages that any layers in a row are cut into, at least: one has no fewer
// layers than the mean.
class LongestOfSome {
 public:
  LongestOfSome() = default;
  explicit LongestOfSome(std::span<const double> before_s) : before_s_(before_s) {}
  double least_s(int64_t first, int64_t after, int64_t stages) {
    if (stages <= 0) return 0;
    const int64_t layers = (after - first + stages - 1) / stages;
    const int64_t size = static_cast<int64_t>(before_s_.size());
    while (static_cast<int64_t>(of_length_.size()) <= layers) {
      const int64_t length = static_cast<int64_t>(of_length_.size());
      std::vector<double> least(static_cast<size_t>(size * size), kInfinite);
      for (int64_t a = size - 1 - length; a >= 0; --a) {
        double own_s = kInfinite;
        for (int64_t b = a + length; b < size; ++b) {
          own_s = std::min(own_s, before_s_[b] - before_s_[b - length]);
          least[static_cast<size_t>(a * size + b)] = own_s;
        }
      }
      of_length_.push_back(std::move(least));
    }
    return of_length_[layers][static_cast<size_t>(first * size + after)];
  }

 private:
  std::span<const double> before_s_;
  std::vector<std::vector<double>> of_length_;
};

// The longest rank counts.
struct Shortest {
  static constexpr bool kTimeAlone = true;
  Weights weights(int64_t) const { return {}; }
  double own(const PeelProblem&, const RankTime& rank) const { return rank.step_s; }
  double with(double own, double later) const { return std::max(own, later); }
  Wanted wanted(double least, double limit_s) const {
    return {std::min(least, limit_s), std::min(least, std::nextafter(limit_s, kInfinite))};
  }
  bool settled(double least, double floor_s) const { return least <= floor_s; }
  bool within(const RankTime& rank, double limit_s) const { return rank.step_s <= limit_s; }
};

// How far chunks are from one length counts, in squares.
struct Even {
  static constexpr bool kTimeAlone = false;
  double chunk_s;
  Weights weights(int64_t) const { return {}; }
  double own(const PeelProblem& x, const RankTime& rank) const {
    return square(x.fronts.time_s[rank.points.near] / chunk_s - 1) +
           square(x.fronts.time_s[rank.points.far] / chunk_s - 1);
  }
  double with(double own, double later) const { return own + later; }
  Wanted wanted(double, double limit_s) const { return {limit_s}; }
  bool settled(double, double) const { return false; }
  bool within(const RankTime& rank, double limit_s) const { return rank.step_s <= limit_s; }
  static double square(double x) { return x * x; }
};

double ends_s(const PeelProblem& x, int64_t near, int64_t far) {
  const double places =
      std::min(static_cast<double>(x.max_activations), 2 * static_cast<double>(x.num_microbatches));
  const double between_s = std::min(x.kinds.forward_s[near], x.kinds.forward_s[far]) +
                           std::min(x.kinds.weight_grad_s[near], x.kinds.weight_grad_s[far]);
  return (places - 1) / 2 * between_s + x.kinds.tail_s[near] + x.kinds.tail_s[far] +
         x.kinds.optimizer_s[near] + x.kinds.optimizer_s[far];
}

// A weighted sum counts. What a front's point takes but for forward and weight gradient is its
// input gradient with all that it recomputes.
struct Weighted {
  static constexpr bool kTimeAlone = false;
  PeelWeights w;
  double num_microbatches;
  int64_t far_stage(int64_t r) const { return 2 * static_cast<int64_t>(w.ranks.size()) - 1 - r; }
  Weights weights(int64_t r) const {
    const double whole = num_microbatches * w.ranks[r];
    return {whole + w.input_grads[r], whole + w.input_grads[far_stage(r)]};
  }
  double own(const PeelProblem& x, const RankTime& rank) const {
    const int64_t r = rank.rank, far = far_stage(r);
    const auto chunk = [&](int64_t stage, int64_t kind, int64_t point) {
      const double forward_s = x.kinds.forward_s[kind], weight_s = x.kinds.weight_grad_s[kind];
      return w.forwards[stage] * forward_s + w.weight_grads[stage] * weight_s +
             w.input_grads[stage] * (x.fronts.time_s[point] - forward_s - weight_s);
    };
    return chunk(r, rank.near, rank.points.near) + chunk(far, rank.far, rank.points.far) +
           w.ranks[r] * rank.step_s + w.ends[r] * ends_s(x, rank.near, rank.far);
  }
  double with(double own, double later) const { return own + later; }
  Wanted wanted(double, double limit_s) const { return {limit_s}; }
  bool settled(double, double) const { return false; }
  // Other points of the same kinds may be faster.
  bool within(const RankTime&, double) const { return true; }
};

template <typename Aim>
class Peeler {
 public:
  Peeler(const PeelProblem& problem, Aim aim)
      : x_(problem), aim_(aim), p_(problem.num_ranks), size_(problem.num_layers()) {
    for (int64_t r = 0; r < p_; ++r) {
      const auto known = std::ranges::find(offsets_, x_.offset_of(r));
      place_of_.push_back(known - offsets_.begin());
      if (known == offsets_.end()) offsets_.push_back(x_.offset_of(r));
    }
    reached_.assign(p_, 0.0);
    for (int64_t r = 1; r < p_; ++r) reached_[r] = reached_[r - 1] + x_.transfer_s[r - 1];
    measure_lengths();
    weighs_paths_ = x_.weighs_ends && x_.num_microbatches <= kPathsWithin * p_;
    if (weighs_paths_) {
      near_forwards_ = {x_.forward_before_s, p_, false};
      near_backs_ = {x_.input_grad_before_s, p_, false};
      far_forwards_ = {x_.forward_before_s, p_, true};
      far_backs_ = {x_.input_grad_before_s, p_, true};
      forwards_ = LongestOfSome(x_.forward_before_s);
      backs_ = LongestOfSome(x_.input_grad_before_s);
    }
  }

  bool reaches() {
    if (!prepare()) return false;
    const int64_t r = p_ - 1, place = place_of_[r];
    for (int64_t a = r; a < size_; ++a) {
      for (int64_t b = a + 2; b <= std::min(a + most_, size_ - r); ++b) {
        if (left_[r][at(a, b)] == kInfinite) continue;
        for (const int64_t near : near_lengths_[place][a]) {
          if (near < b - a && runs_[place][at(a + near, b)] && can_be(r, a, a + near, a + near, b))
            return true;
        }
      }
    }
    return false;
  }

  PeelResult run() {
    PeelResult result;
    result.cost = kInfinite;
    if (!prepare()) return result;
    const size_t states = static_cast<size_t>((size_ + 1) * (size_ + 1));
    std::vector<double> later(states, kInfinite), best(states, kInfinite);
    for (int64_t a = 0; a <= size_; ++a) later[at(a, a)] = 0.0;
    picks_.assign(p_, {});
    for (int64_t r = p_ - 1; r >= 0; --r) {
      picks_[r].assign(states, Pick{});
      if (r < p_ - 1) std::fill(best.begin(), best.end(), kInfinite);
      fill_rank(r, later, best);
      std::swap(later, best);
    }
    result.cost = later[at(0, size_)];
    if (std::isfinite(result.cost)) decode(result);
    return result;
  }

 private:
  bool prepare() {
    if (most_ * p_ < size_) return false;
    list_stages();
    return list_left();
  }

  // Whether some way of a rank's chunks stays within the limit.
  bool can_be(int64_t r, int64_t a, int64_t a2, int64_t b2, int64_t b) const {
    const Wanted any{x_.limit_s, std::nextafter(x_.limit_s, kInfinite), true};
    const RankTime own = rank(r, a, a2, b2, b, any);
    return own.points.near >= 0 && aim_.within(own, x_.limit_s);
  }

  size_t at(int64_t a, int64_t b) const { return static_cast<size_t>(a * (size_ + 1) + b); }

  int64_t kind(int64_t first, int64_t after, int64_t place) const {
    return x_.kind_of[static_cast<size_t>(first * (size_ + 1) + after)] + offsets_[place];
  }

  bool can_run(int64_t kind) const {
    return x_.fronts.level_offset[kind] < x_.fronts.level_offset[kind + 1];
  }

  int64_t last_level(int64_t kind) const { return x_.fronts.level_offset[kind + 1] - 1; }

  double fastest_s(int64_t kind) const {
    return x_.fronts.time_s[x_.fronts.point_offset[last_level(kind) + 1] - 1];
  }

  // What a rank within the limit exchanges at last: slower ways hide more of it, by no more than
  // they take longer.
  double least_tail_s(int64_t near, int64_t far) const {
    const auto fastest_tail_s = [&](int64_t kind) {
      return x_.fronts.tail_s[x_.fronts.point_offset[last_level(kind) + 1] - 1];
    };
    const double spare_s =
        x_.limit_s / static_cast<double>(x_.num_microbatches) - fastest_s(near) - fastest_s(far);
    return std::max(x_.kinds.tail_s[near] + x_.kinds.tail_s[far],
                    fastest_tail_s(near) + fastest_tail_s(far) - std::max(0.0, spare_s));
  }

  double leanest_bytes(int64_t kind) const {
    return x_.fronts.kept_bytes[x_.fronts.point_offset[last_level(kind)]];
  }

  // The most layers of a chunk and of a rank by their least time and memory.
  void measure_lengths() {
    std::vector<double> time_s(size_ + 1, kInfinite), bytes(size_ + 1, kInfinite);
    for (int64_t first = 0; first < size_; ++first) {
      for (int64_t after = first + 1; after <= size_; ++after) {
        for (size_t place = 0; place < offsets_.size(); ++place) {
          const int64_t k = kind(first, after, place);
          if (!can_run(k)) continue;
          const double least_s = x_.num_microbatches * fastest_s(k);
          const double held = x_.kinds.static_bytes[k] + leanest_bytes(k);
          time_s[after - first] = std::min(time_s[after - first], least_s);
          bytes[after - first] = std::min(bytes[after - first], held);
        }
      }
    }
    for (int64_t total = 2; total <= size_; ++total) {
      for (int64_t near = 1; near < total; ++near) {
        const int64_t far = total - near;
        if (time_s[near] + time_s[far] <= x_.limit_s &&
            bytes[near] + bytes[far] <= x_.usable_bytes) {
          most_ = total;
          break;
        }
      }
    }
  }

  // Which stages can run.
  void list_stages() {
    const size_t places = offsets_.size();
    runs_.assign(places, std::vector<char>(static_cast<size_t>((size_ + 1) * (size_ + 1)), 0));
    near_lengths_.assign(places, std::vector<std::vector<int64_t>>(size_ + 1));
    for (size_t place = 0; place < places; ++place) {
      for (int64_t first = 0; first < size_; ++first) {
        for (int64_t after = first + 1; after <= std::min(size_, first + most_); ++after) {
          if (!can_run(kind(first, after, place))) continue;
          runs_[place][at(first, after)] = 1;
          near_lengths_[place][first].push_back(after - first);
        }
      }
    }
  }

  // The most forward of ranks that take no longer for a microbatch; 0 where there are none.
  double most_forward_s(double time_s) const {
    const auto after = std::ranges::upper_bound(x_.rank_time_s, time_s) - x_.rank_time_s.begin();
    return after == 0 ? 0.0 : x_.rank_forward_s[static_cast<size_t>(after - 1)];
  }

  // How many microbatches can reach the far chunk of rank r before the first goes back through it:
  // each rank between must have run both of its forwards of all of them, and the last is then still
  // on its way back to r. With D from the end of the first near forward of r,
  //
  //   n F_i <= D - (the forwards of r+1 to i-1),   sum of F_i = F(a', b'),   F_i <= the most of any
  //
  // so that n is largest where every rank takes as much as it may, the first of them first.
  double most_far(int64_t r, int64_t a2, int64_t b2, double first_back_s) const {
    const double most = static_cast<double>(std::min(x_.max_activations / 2, x_.num_microbatches));
    if (r + 1 == p_ || x_.rank_time_s.empty()) return most;
    const double begin_s = x_.forward_before_s[a2] + reached_[r + 1];
    const double within_s = first_back_s - begin_s - (reached_[r + 1] - reached_[r]);
    const double between_s = x_.forward_before_s[b2] - x_.forward_before_s[a2];
    const double each_s = most_forward_s((x_.limit_s - begin_s) / x_.num_microbatches);
    const auto can_pass = [&](double count) {
      double passed_s = 0;
      for (int64_t i = r + 1; i < p_ && passed_s < between_s; ++i) {
        const double left_s = within_s - passed_s - 2 * (reached_[i] - reached_[r + 1]);
        if (left_s <= 0) return false;
        passed_s += std::min(each_s, left_s / count);
      }
      return passed_s >= between_s * kBelowOne;
    };
    double low = std::min(1.0, most), high = most;  // one can always pass
    if (can_pass(high)) return high;
    while (high - low > 1) {
      const double middle = std::floor((low + high) / 2);
      (can_pass(middle) ? low : high) = middle;
    }
    return low;
  }

  // What can be left to each rank and those after it if every rank before it stays within the
  // limit: mostly a few of all pairs, and often none. False where nothing is left to some rank.
  //
  // Beside it, the least of all splits that leave it, of how long the step goes on from when the
  // chain back is at layer 0: on rank u it is over by the input gradients before u sooner, and then
  // the last weight gradient of the near chunk and what the rank exchanges at last are still due.
  //
  //   H_r(a, b) = min over splits, max over u < r, of W_u + tail_u - (input gradients before u)
  bool list_left() {
    const size_t states = static_cast<size_t>((size_ + 1) * (size_ + 1));
    left_.assign(p_, std::vector<double>(states, kInfinite));
    left_[0][at(0, size_)] = 0;
    for (int64_t r = 0; r + 1 < p_; ++r) {
      bool is_any = false;
      const int64_t inner = p_ - 1 - r, place = place_of_[r];
      for (int64_t a = r; a <= size_; ++a) {
        for (int64_t b = a + 2 * (p_ - r); b <= size_ - r; ++b) {
          const double after_s = left_[r][at(a, b)];
          if (after_s == kInfinite) continue;
          const double before_s = x_.input_grad_before_s[a] + reached_[r];
          const int64_t fewest = std::max<int64_t>(2, b - a - inner * most_);
          const int64_t most = std::min(most_, b - a - 2 * inner);
          for (const int64_t near : near_lengths_[place][a]) {
            for (int64_t far = std::max<int64_t>(1, fewest - near); near + far <= most; ++far) {
              if (!runs_[place][at(b - far, b)]) continue;
              double& left_s = left_[r + 1][at(a + near, b - far)];
              const int64_t k = kind(a, a + near, place), l = kind(b - far, b, place);
              const double own_s =
                  x_.weighs_ends ? x_.kinds.weight_grad_s[k] + least_tail_s(k, l) - before_s : 0.0;
              const double both_s = std::max(after_s, own_s);
              if (both_s >= left_s) continue;
              if (!can_be(r, a, a + near, b - far, b)) continue;
              left_s = both_s;
              is_any = true;
            }
          }
        }
      }
      if (!is_any) return false;
    }
    return true;
  }

  void fill_rank(int64_t r, const std::vector<double>& later, std::vector<double>& best) {
    const int64_t inner = p_ - 1 - r;
    const int64_t least_left = std::max(2 * (p_ - r), size_ - r * most_);
    const int64_t most_left = std::min((p_ - r) * most_, size_ - 2 * r);
    for (int64_t left = least_left; left <= most_left; ++left) {
      const int64_t fewest = std::max<int64_t>(2, left - inner * most_);
      const int64_t most = std::min(most_, left - 2 * inner);
      for (int64_t a = r; a + left <= size_ - r; ++a) {
        if (left_[r][at(a, a + left)] < kInfinite)
          fill_state(r, a, a + left, fewest, most, later, best);
      }
    }
  }

  void fill_state(int64_t r, int64_t a, int64_t b, int64_t fewest, int64_t most,
                  const std::vector<double>& later, std::vector<double>& best) {
    double least = kInfinite;
    Pick pick;
    const std::vector<char>& runs = runs_[place_of_[r]];
    for (int64_t taken = fewest; taken <= most; ++taken) {
      for (const int64_t near : near_lengths_[place_of_[r]][a]) {
        if (near >= taken) break;
        const int64_t a2 = a + near, b2 = b - (taken - near);
        if (!runs[at(b2, b)]) continue;
        const double later_cost = later[at(a2, b2)];
        if (!(later_cost < least)) continue;
        const RankTime own = rank(r, a, a2, b2, b, aim_.wanted(least, x_.limit_s));
        if (own.points.near < 0 || !aim_.within(own, x_.limit_s)) continue;
        const double cost = aim_.with(aim_.own(x_, own), later_cost);
        if (cost < least) {
          least = cost;
          pick = {static_cast<int32_t>(near), static_cast<int32_t>(taken - near)};
          if (aim_.settled(least, x_.floor_s)) {
            best[at(a, b)] = least;
            picks_[r][at(a, b)] = pick;
            return;
          }
        }
      }
    }
    best[at(a, b)] = least;
    picks_[r][at(a, b)] = pick;
  }

  // A lower bound on the step from rank r alone; infinite where it cannot run or is not `wanted`.
  RankTime rank(int64_t r, int64_t a, int64_t a2, int64_t b2, int64_t b,
                const Wanted& wanted) const {
    const double enough_s = wanted.most_s;
    const int64_t place = place_of_[r], near = kind(a, a2, place), far = kind(b2, b, place);
    const double m = static_cast<double>(x_.num_microbatches);
    const double least_s = fastest_s(near) + fastest_s(far);
    if (m * least_s > enough_s) return {};
    Waits waits = waits_of(r, a, a2, b2, b, near, far);
    double idle_s = wait_s(waits, {});
    if (m * least_s + idle_s > enough_s) return {};
    if (weighs_paths_ && path_s(waits, fastest_s(near), fastest_s(far), waits.tail_s) > enough_s)
      return {};
    if (waits.forward_s > 2 * waits.near_forward_s) {
      waits.most_far = most_far(r, a2, b2, waits.first_back_s);
      idle_s = wait_s(waits, {});
      if (m * least_s + idle_s > enough_s) return {};
    }
    if constexpr (Aim::kTimeAlone) {
      const Lives lives = lives_of(r, a, a2, b2, b, near, far);
      const Points points = fastest(r, a, b2, near, far, lives, waits, idle_s, wanted);
      if (points.near < 0) return {};
      return {points.time_s, r, near, far, points};
    } else {
      const Points points = fastest(r, a, b2, near, far, {}, waits, 0, {});
      if (points.near < 0) return {};
      const double time_s = x_.fronts.time_s[points.near] + x_.fronts.time_s[points.far];
      return {m * time_s + idle_s, r, near, far, points};
    }
  }

  // How long one activation of each chunk is kept at least, from its forward to the end of its
  // input gradient, by m over the bytes of the rank: whatever the order, the bytes it keeps over
  // all of the step are no more than those it has.
  struct Lives {
    double near = 0, far = 0;  // seconds of the step for each byte of an activation
    double after_s = 0;        // beside them
  };

  // Of unlike ranks: what lies before the near chunk of rank r, behind its far one and between both
  // takes at least, wherever those ranks are.
  struct Around {
    double head = 0, behind_forward = 0, behind_input = 0, inner_forward = 0, inner_input = 0;
  };

  Around around(int64_t r, int64_t a, int64_t a2, int64_t b2, int64_t b) const {
    const auto between = [&](std::span<const double> before_s, int64_t first, int64_t after) {
      const size_t row = static_cast<size_t>(r * (size_ + 1));
      return before_s[row + static_cast<size_t>(after)] -
             before_s[row + static_cast<size_t>(first)];
    };
    return {between(x_.outer_forward_s, 0, a), between(x_.outer_forward_s, b, size_),
            between(x_.outer_input_grad_s, b, size_), between(x_.inner_forward_s, a2, b2),
            between(x_.inner_input_grad_s, a2, b2)};
  }

  Lives lives_of(int64_t r, int64_t a, int64_t a2, int64_t b2, int64_t b, int64_t near,
                 int64_t far) const {
    const double m = static_cast<double>(x_.num_microbatches);
    const double across_s = reached_[p_ - 1];
    const double room = room_bytes(near, far);
    if (room <= 0) return {};
    const auto from = [&](int64_t layer) {
      return x_.forward_before_s[size_] - x_.forward_before_s[layer] +
             x_.input_grad_before_s[size_] - x_.input_grad_before_s[layer];
    };
    double near_s = from(a), far_s = from(b2), head_s = x_.forward_before_s[a];
    if (!x_.outer_forward_s.empty()) {
      const Around s = around(r, a, a2, b2, b);
      far_s =
          x_.kinds.forward_s[far] + x_.kinds.input_grad_s[far] + s.behind_forward + s.behind_input;
      near_s = x_.kinds.forward_s[near] + x_.kinds.input_grad_s[near] + s.inner_forward +
               s.inner_input + far_s;
      head_s = s.head;
    }
    return {m / room * (near_s + 4 * across_s - 2 * reached_[r]),
            m / room * (far_s + 2 * reached_[r]),
            head_s + reached_[r] + x_.kinds.tail_s[near] + x_.kinds.tail_s[far] +
                x_.kinds.optimizer_s[near] + x_.kinds.optimizer_s[far]};
  }

  // What the state of both chunks and the weights that are gathered leave of a device.
  double room_bytes(int64_t near, int64_t far) const {
    const double whole = x_.kinds.weight_bytes[near] + x_.kinds.weight_bytes[far];
    const double heaviest =
        std::max(x_.kinds.largest_weight_bytes[near], x_.kinds.largest_weight_bytes[far]);
    return x_.usable_bytes - x_.kinds.static_bytes[near] - x_.kinds.static_bytes[far] -
           zero::gathered_bytes(x_.gathered_share, heaviest, whole);
  }

  // Points count from the first of all kinds. Where time alone counts, `time_s` of those found is
  // what the rank takes in a step, else their weighted seconds.
  Points fastest(int64_t r, int64_t a, int64_t b2, int64_t near, int64_t far, const Lives& lives,
                 const Waits& waits, double idle_s, const Wanted& wanted) const {
    Points found{wanted.below_s};
    const double room = room_bytes(near, far);
    const Weights weights = aim_.weights(r);
    for (int64_t u = last_level(near); u >= x_.fronts.level_offset[near]; --u) {
      for (int64_t v = last_level(far); v >= x_.fronts.level_offset[far]; --v) {
        const Points own = fastest_of_levels(r, a, b2, u, v, room, weights, lives, waits, idle_s,
                                             {wanted.most_s, found.time_s, wanted.is_any});
        if (own.near < 0 || !(own.time_s < found.time_s)) continue;
        found = own;
        if (wanted.is_any) return found;
      }
    }
    return found;
  }

  Points fastest_of_levels(int64_t r, int64_t a, int64_t b2, int64_t near, int64_t far, double room,
                           const Weights& weights, const Lives& lives, const Waits& waits,
                           double idle_s, const Wanted& wanted) const {
    Points found{wanted.below_s};
    const double once = room - x_.fronts.transient_bytes[far];
    const double many =
        room -
        std::max({x_.fronts.beside_bytes[near], x_.fronts.beside_bytes[far],
                  std::min(x_.fronts.transient_bytes[near], x_.fronts.transient_bytes[far])});
    const auto row = [&](std::span<const double> held, int64_t instant, int64_t layer) {
      return held[static_cast<size_t>((instant * p_ + r) * (size_ + 1) + layer)];
    };
    const int64_t instants = static_cast<int64_t>(x_.near_in_flight.size()) / (p_ * (size_ + 1));
    const auto fits = [&](int64_t i, int64_t j) {
      const double own = x_.fronts.kept_bytes[i], other = x_.fronts.kept_bytes[j];
      if (own + x_.fronts.transient_bytes[near] > room || own + other > once) return false;
      for (int64_t k = 0; k < instants; ++k) {
        const double near_held = row(x_.near_in_flight, k, a);
        const double far_held = row(x_.far_in_flight, k, b2);
        if (near_held * own + far_held * other > many) return false;
      }
      return true;
    };
    int64_t j = x_.fronts.point_offset[far + 1] - 1;
    const int64_t first = x_.fronts.point_offset[far], last = x_.fronts.point_offset[near + 1] - 1;
    if constexpr (Aim::kTimeAlone) {
      const double m = static_cast<double>(x_.num_microbatches);
      const auto lives_s = [&](int64_t i, int64_t k) {
        return lives.near * x_.fronts.kept_bytes[i] + lives.far * x_.fronts.kept_bytes[k] +
               lives.after_s;
      };
      // What keeps no more than a pair that goes goes, too: points up to `fitting` do.
      const auto goes = [&](int64_t i, int64_t k) {
        return lives_s(i, k) < wanted.below_s && fits(i, k);
      };
      int64_t fitting = first - 1;
      for (int64_t beyond = j + 1; beyond - fitting > 1;) {
        const int64_t middle = (fitting + beyond) / 2;
        (goes(last, middle) ? fitting : beyond) = middle;
      }
      for (int64_t i = last; i >= x_.fronts.point_offset[near]; --i) {
        while (fitting < j && goes(i, fitting + 1)) ++fitting;
        for (int64_t k = fitting; k >= first; --k) {
          const double work_s = m * (x_.fronts.time_s[i] + x_.fronts.time_s[k]) + idle_s;
          if (work_s >= found.time_s) break;
          const double kept_s = lives_s(i, k);
          if (kept_s >= found.time_s) continue;
          const Kept kept{x_.fronts.kept_bytes[i], x_.fronts.kept_bytes[k], room,
                          x_.fronts.time_s[k], x_.fronts.tail_s[i] + x_.fronts.tail_s[k]};
          const double waited_s = work_s - idle_s + wait_s(waits, kept);
          double at_least_s = work_s;
          if (weighs_paths_ && waited_s < found.time_s) {
            const double near_s = x_.fronts.time_s[i], far_s = x_.fronts.time_s[k];
            at_least_s = std::max(work_s, path_s(waits, near_s, far_s, kept.tail_s));
          }
          const double step_s = std::max({at_least_s, waited_s, kept_s});
          if (step_s < found.time_s) {
            found = {step_s, i, k};
            if (wanted.is_any) return found;
          }
          if (step_s == at_least_s) break;
        }
        // A leaner near chunk takes longer with any other.
        if (found.time_s <= m * (x_.fronts.time_s[i] + x_.fronts.time_s[j]) + idle_s) break;
      }
      return found;
    }
    const auto time_s = [&](int64_t i, int64_t j) {
      return weights.near * x_.fronts.time_s[i] + weights.far * x_.fronts.time_s[j];
    };
    if (fits(last, j)) return {time_s(last, j), last, j};
    for (int64_t i = x_.fronts.point_offset[near]; i <= last; ++i) {
      while (j >= first && !fits(i, j)) --j;
      if (j < first) break;
      if (time_s(i, j) < found.time_s) found = {time_s(i, j), i, j};
    }
    return found;
  }

  Waits waits_of(int64_t r, int64_t a, int64_t a2, int64_t b2, int64_t b, int64_t near,
                 int64_t far) const {
    const double across_s = reached_[p_ - 1];
    const double behind_forward_s = x_.forward_before_s[size_] - x_.forward_before_s[b];
    const double behind_input_s = x_.input_grad_before_s[size_] - x_.input_grad_before_s[b];
    Waits w;
    w.head_s = x_.forward_before_s[a] + reached_[r];
    w.turn_s = behind_forward_s + behind_input_s + 2 * reached_[r];
    w.first_back_s = x_.forward_before_s[size_] + across_s * 2 + behind_input_s + reached_[r];
    w.far_head_s = x_.forward_before_s[b2] + 2 * across_s - reached_[r];
    w.over_s = x_.forward_before_s[b2] - x_.forward_before_s[a2] + 2 * (across_s - reached_[r]);
    if (weighs_paths_) {
      w.outer_pace_s = near_forwards_.least_s(r, a);
      w.outer_back_s = near_backs_.least_s(r, a);
      w.behind_pace_s =
          std::max(far_forwards_.least_s(r, size_ - b), far_backs_.least_s(r, size_ - b));
      w.inner_forward_s = forwards_.least_s(a2, b2, 2 * (p_ - 1 - r));
      w.inner_back_s = backs_.least_s(a2, b2, 2 * (p_ - 1 - r));
    }
    w.through_s =
        x_.input_grad_before_s[b] - x_.input_grad_before_s[a2] + 2 * (across_s - reached_[r]);
    w.reached_end_s = x_.input_grad_before_s[a] + reached_[r] + left_[r][at(a, b)];
    if (!x_.outer_forward_s.empty()) {
      const Around s = around(r, a, a2, b2, b);
      const double over_s = 2 * (across_s - reached_[r]);
      w.head_s = s.head + reached_[r];
      w.turn_s = s.behind_forward + s.behind_input + 2 * reached_[r];
      w.far_head_s = w.head_s + x_.kinds.forward_s[near] + s.inner_forward + over_s;
      w.first_back_s = w.far_head_s + x_.kinds.forward_s[far] + w.turn_s;
      w.over_s = s.inner_forward + over_s;
      w.through_s = s.inner_input + x_.kinds.input_grad_s[far] + over_s;
    }
    w.slowest_far_s = x_.fronts.time_s[x_.fronts.point_offset[last_level(far)]];
    w.near_forward_s = x_.kinds.forward_s[near];
    w.forward_s = w.near_forward_s + x_.kinds.forward_s[far];
    w.near_weight_s = x_.kinds.weight_grad_s[near];
    w.far_weight_s = x_.kinds.weight_grad_s[far];
    w.near_back_s = x_.kinds.input_grad_s[near] + w.near_weight_s;
    w.backward_s = w.near_back_s + x_.kinds.input_grad_s[far] + w.far_weight_s;
    w.tail_s = x_.kinds.tail_s[near] + x_.kinds.tail_s[far];
    w.optimizer_s = x_.kinds.optimizer_s[near] + x_.kinds.optimizer_s[far];
    w.near_freed = x_.kinds.freed_bytes[near];
    w.far_freed = x_.kinds.freed_bytes[far];
    return w;
  }

  // How long the step takes by paths through the rank, whatever it holds. The n-th action of a kind
  // starts no sooner than its first can and n times the longest stage on its way there, and what
  // follows the n-th but last grows alike. So of the actions that start no sooner than one time and
  // are followed no shorter than another, all of them run one after the other in between
  // (`scheduling.bounds`, memory path).
  double path_s(const Waits& w, double near_s, double far_s, double tail_s) const {
    const double m = static_cast<double>(x_.num_microbatches);
    const double near_forward_s = w.near_forward_s, far_forward_s = w.forward_s - w.near_forward_s;
    const double near_input_s = near_s - near_forward_s - w.near_weight_s;
    const double far_input_s = far_s - far_forward_s - w.far_weight_s;
    const double least_far_s = w.backward_s - w.near_back_s - w.far_weight_s;
    const double back_s = w.first_back_s + w.through_s + (far_input_s - least_far_s);
    const double turned_s = std::max({w.outer_pace_s, near_forward_s, w.inner_forward_s});
    const double behind_s = std::max(far_forward_s, w.behind_pace_s);
    const double home_s = std::max({w.outer_back_s, near_input_s, w.inner_back_s});
    const double near_end_s = std::max(w.near_weight_s + tail_s, w.reached_end_s);
    const double far_end_s = w.through_s - least_far_s + near_input_s + near_end_s;
    const double far_forward_end_s = w.turn_s + far_input_s + far_end_s;
    const double back_pace_s = std::max({turned_s, behind_s, far_input_s, w.inner_back_s});
    struct Kind {
      double work_s, head_s, pace_s, end_s, end_pace_s;
    };
    const Kind kinds[] = {
        {near_forward_s, w.head_s, w.outer_pace_s, w.over_s + far_forward_s + far_forward_end_s,
         std::max({w.inner_forward_s, behind_s, far_input_s, home_s})},
        {far_forward_s, w.far_head_s, turned_s, far_forward_end_s,
         std::max({w.behind_pace_s, far_input_s, home_s})},
        {far_input_s, w.first_back_s, std::max(turned_s, behind_s), far_end_s, home_s},
        {near_input_s, back_s, back_pace_s, near_end_s, 0},
        {w.far_weight_s, w.first_back_s + far_input_s, std::max({turned_s, behind_s, far_input_s}),
         tail_s, 0},
        {w.near_weight_s, back_s + near_input_s, std::max(back_pace_s, near_input_s), tail_s, 0}};
    // How many of each kind, in columns, come before the first of each, or after its last, in rows.
    constexpr int kKinds = 6;
    const auto beyond = [](double time_s, double first_s, double pace_s) {
      if (time_s <= first_s) return 0.0;
      return pace_s > 0 ? std::ceil((time_s - first_s) / pace_s * kBelowOne) : kInfinite;
    };
    double early[kKinds][kKinds], late[kKinds][kKinds];
    for (int row = 0; row < kKinds; ++row) {
      for (int one = 0; one < kKinds; ++one) {
        early[row][one] = m - beyond(kinds[row].head_s, kinds[one].head_s, kinds[one].pace_s);
        late[row][one] = beyond(kinds[row].end_s, kinds[one].end_s, kinds[one].end_pace_s);
      }
    }
    double most_s = 0;
    for (int first = 0; first < kKinds; ++first) {
      for (int last = 0; last < kKinds; ++last) {
        double work_s = 0;
        for (int one = 0; one < kKinds; ++one) {
          work_s += std::max(0.0, early[first][one] - late[last][one]) * kinds[one].work_s;
        }
        if (work_s > 0) most_s = std::max(most_s, kinds[first].head_s + work_s + kinds[last].end_s);
      }
    }
    return most_s + w.optimizer_s;
  }

  // Idle time of the rank, and what follows its work in the step (`scheduling.bounds`, window).
  // Places are limited in number and, where `kept` says what they take, in bytes. The far chunk of
  // a microbatch is held beside its near one. So with K and K' bytes in U all forwards that fit at
  // once take at most U · max(F / K, (F + F') / (K + K')). What is left to do of activations is
  // bounded alike beside any w for each place, where one that waits for its weight gradient alone
  // keeps what the input gradient cannot have freed: with w = 0 by the ratios of all, and with the
  // longest weight gradient for w, where it may keep nothing, by those that wait for both.
  double wait_s(const Waits& w, const Kept& kept) const {
    const double m = static_cast<double>(x_.num_microbatches);
    const double places = static_cast<double>(x_.max_activations);
    const bool in_bytes = kept.near > 0;
    const double both = kept.near + kept.far;
    const double per_place_s = std::max(w.near_forward_s, w.forward_s / 2);
    const double weight_s = std::max(w.near_weight_s, w.far_weight_s);
    const double back_per_place_s = std::max({w.near_back_s, w.backward_s / 2, weight_s});
    const auto forwards_s = [&](double count, double room) {
      double most_s = count * per_place_s;
      if (in_bytes) {
        const double per_byte_s = std::max(w.near_forward_s / kept.near, w.forward_s / both);
        most_s = std::min(most_s, room * per_byte_s);
      }
      return most_s;
    };
    const auto backwards_s = [&](double count, double room) {
      double most_s = count * back_per_place_s;
      if (in_bytes) {
        const double per_byte_s = std::max(
            {0.0, (w.near_back_s - weight_s) / kept.near, (w.backward_s - 2 * weight_s) / both});
        most_s = std::min(most_s, count * weight_s + room * per_byte_s);
        const double near_late = kept.near - w.near_freed, far_late = kept.far - w.far_freed;
        if (x_.weighs_ends && near_late > 0 && far_late > 0) {
          most_s = std::min(
              most_s, room * std::max({w.near_back_s / kept.near, w.backward_s / both,
                                       w.near_weight_s / near_late, w.far_weight_s / far_late}));
        }
      }
      return most_s;
    };
    const double far_more_s = std::max(0.0, w.forward_s - 2 * w.near_forward_s);
    double filled_s = std::min(forwards_s(places, kept.room), m * w.forward_s);
    if (far_more_s > 0 && std::isfinite(w.most_far)) {
      filled_s = std::min(filled_s, places * w.near_forward_s + w.most_far * far_more_s);
    }
    const double left_s = std::min(backwards_s(places, kept.room), m * w.backward_s);

    double at_once = std::floor(places / 2);
    if (in_bytes) at_once = std::min(at_once, std::max(1.0, std::floor(kept.room / both)));
    const double spare = std::max(0.0, kept.room - both);
    const double trip_s =
        std::max(0.0, w.turn_s - forwards_s(places - 2, spare) - backwards_s(places - 2, spare));
    const double trips = std::floor((m - 1) / at_once);

    const double own_end_s = w.turn_s - left_s + w.through_s + w.near_back_s;
    const double step_end_s = own_end_s - w.near_weight_s + w.reached_end_s;
    const double tail_s = in_bytes && x_.weighs_ends ? kept.tail_s : w.tail_s;
    const double after_s = std::max(std::max(0.0, own_end_s) + tail_s, step_end_s);
    const double late_start_s = w.first_back_s - filled_s + std::max(trips - 1, 0.0) * trip_s;
    const bool all_at_once = 2 * m <= places && (!in_bytes || m * both <= kept.room);
    double waited_s = w.head_s + trips * trip_s + after_s;
    waited_s = std::max(waited_s, late_start_s + (all_at_once ? tail_s : after_s));

    // Until the first near input gradient no near place is free again, so few microbatches pass.
    const double far_s = in_bytes ? kept.far_s : w.slowest_far_s;
    double started = places, passed = places - 1;
    if (in_bytes) {
      started = std::min(started, std::floor(kept.room / kept.near));
      passed = std::min(passed, std::floor((kept.room - kept.far) / kept.near));
    }
    if (passed < m) {
      const double near_start_s = w.first_back_s + w.through_s -
                                  std::min(started, m) * w.near_forward_s -
                                  std::max(passed, 0.0) * far_s;
      waited_s = std::max(waited_s, near_start_s + after_s);
    }
    return waited_s + w.optimizer_s;
  }

  void decode(PeelResult& result) const {
    int64_t a = 0, b = size_;
    for (int64_t r = 0; r < p_; ++r) {
      const Pick pick = picks_[r][at(a, b)];
      const int64_t a2 = a + pick.near, b2 = b - pick.far;
      const RankTime own = rank(r, a, a2, b2, b, {});
      result.near.push_back(pick.near);
      result.far.push_back(pick.far);
      result.near_point.push_back(own.points.near);
      result.far_point.push_back(own.points.far);
      const double time_s = x_.fronts.time_s[own.points.near] + x_.fronts.time_s[own.points.far];
      Waits waits = waits_of(r, a, a2, b2, b, own.near, own.far);
      waits.most_far = most_far(r, a2, b2, waits.first_back_s);
      result.rank_s.push_back(static_cast<double>(x_.num_microbatches) * time_s +
                              wait_s(waits, {}));
      result.ends_s.push_back(ends_s(x_, own.near, own.far));
      a = a2;
      b = b2;
    }
  }

  const PeelProblem& x_;
  LongestOfFirst near_forwards_, near_backs_, far_forwards_, far_backs_;
  mutable LongestOfSome forwards_, backs_;
  Aim aim_;
  int64_t p_, size_, most_ = 0;
  bool weighs_paths_ = false;
  std::vector<double> reached_;              // transfers from rank 0 to each
  std::vector<int64_t> offsets_, place_of_;  // of kinds by place, and the place of each rank
  // By place: stages by first layer and layer after the last, and lengths by first layer.
  std::vector<std::vector<char>> runs_;
  std::vector<std::vector<std::vector<int64_t>>> near_lengths_;
  // Infinite where layers [a, b) cannot be left to rank r and those after it.
  std::vector<std::vector<double>> left_;
  std::vector<std::vector<Pick>> picks_;
};

}  // namespace

PeelResult peel(const PeelProblem& problem) { return Peeler(problem, Shortest{}).run(); }

bool peel_reaches(const PeelProblem& problem) { return Peeler(problem, Shortest{}).reaches(); }

PeelResult peel_evenly(const PeelProblem& problem, double chunk_s) {
  return Peeler(problem, Even{chunk_s}).run();
}

PeelResult peel_weighted(const PeelProblem& problem, const PeelWeights& weights) {
  return Peeler(problem, Weighted{weights, static_cast<double>(problem.num_microbatches)}).run();
}

}  // namespace trainwright
