#include "schedule/two_ranks.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "schedule/label_set.hpp"
#include "schedule/way_beyond.hpp"

namespace trainwright {

namespace {

constexpr double kRounding = 1e-12;
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr size_t kLast = 2, kFirst = 3;  // a label begins with both free times and the last end

// What a microbatch does on both ranks, in order; a way follows the even ones, but for the fourth,
// which goes beyond a.
enum Step : size_t { kFa, kFb, kFbUp, kFaUp, kIa, kIb, kIbUp, kIaUp, kNumSteps };
constexpr std::array<size_t, kNumSteps> kRankOf = {0, 1, 1, 0, 0, 1, 1, 0};
constexpr size_t kNumWays = 4, kBeyond = 4;
constexpr bool goes_down(size_t way) { return way % 2 == 0; }

using Counts = std::vector<int64_t>;  // of every step, then of every kind of W

class TwoRanks {
 public:
  TwoRanks(const Fold& fold, size_t rank, int64_t num_microbatches, bool makespan, double enough_s,
           int64_t num_labels)
      : fold_(fold),
        a_(rank),
        num_stages_(fold.forward_s.size()),
        b_(num_stages_ / 2 - 1),
        num_between_(b_ - a_ - 1),
        m_(num_microbatches),
        makespan_(makespan),
        enough_s_(enough_s),
        num_labels_(num_labels) {
    double all_s = 0;
    for (const auto* times_s : {&fold.forward_s, &fold.input_grad_s, &fold.weight_grad_s,
                                &fold.forward_transfer_s, &fold.backward_transfer_s})
      all_s = std::accumulate(times_s->begin(), times_s->end(), all_s);
    rounding_s_ = kRounding * all_s * static_cast<double>(m_);
    const size_t far = num_stages_ - 1;
    for (size_t s = 0; s < a_; ++s) {
      head_s_ += fold.forward_s[s] + fold.forward_transfer_s[s];
      tail_s_ += fold.input_grad_s[s] + fold.backward_transfer_s[s];
    }
    tail_s_ += fold.weight_grad_s[0];
    stage_of_ = {a_, b_, b_ + 1, far - a_, far - a_, b_ + 1, b_, a_};
    std::array<std::vector<double>, kNumWays> stays_s, hops_s;  // by rank; hops from each, outwards
    for (size_t r = a_; r < b_; ++r) {
      hops_s[0].push_back(fold.forward_transfer_s[r]);
      hops_s[1].push_back(fold.forward_transfer_s[far - 1 - r]);
      hops_s[2].push_back(fold.backward_transfer_s[far - 1 - r]);
      hops_s[3].push_back(fold.backward_transfer_s[r]);
      if (r == a_) continue;
      stays_s[0].push_back(fold.forward_s[r]);
      stays_s[1].push_back(fold.forward_s[far - r]);
      stays_s[2].push_back(fold.input_grad_s[far - r]);
      stays_s[3].push_back(fold.input_grad_s[r]);
    }
    for (size_t way = 0; way < kNumWays; ++way)
      takes_s_[way] = std::accumulate(stays_s[way].begin(), stays_s[way].end(), 0.0) +
                      std::accumulate(hops_s[way].begin(), hops_s[way].end(), 0.0);
    for (const size_t down : {0, 2})
      for (const size_t up : {1, 3}) {
        std::vector<double> out_s{0.0}, in_s{0.0};
        for (size_t q = 0; q < num_between_; ++q) {
          out_s.push_back(out_s.back() + stays_s[down][q] + stays_s[up][q] + hops_s[down][q] +
                          hops_s[up][q]);
          const size_t x = num_between_ - 1 - q;
          in_s.push_back(in_s.back() + stays_s[down][x] + stays_s[up][x] + hops_s[down][x + 1] +
                         hops_s[up][x + 1]);
        }
        out_s_[down][up] = std::move(out_s);
        in_s_[down][up] = std::move(in_s);
      }
    for (size_t way = 0; way < kNumWays; ++way)
      for (const size_t other : met_by(way))
        for (size_t n = 0; n < num_between_; ++n) {
          const double both_s = back_s(way, other, n + 1) + back_s(other, way, num_between_ - n);
          met_all_s_[way] = std::max(met_all_s_[way], both_s - takes_s_[other]);
        }
    const auto beyond = static_cast<std::ptrdiff_t>(num_stages_ - a_);
    beyond_ = WayBeyond(
        {.forward_s = {fold.forward_s.begin() + beyond, fold.forward_s.end()},
         .input_grad_s = {fold.input_grad_s.begin() + beyond, fold.input_grad_s.end()},
         .down_s = {fold.forward_transfer_s.begin() + beyond - 1, fold.forward_transfer_s.end()},
         .up_s = {fold.backward_transfer_s.begin() + beyond - 1, fold.backward_transfer_s.end()}},
        rounding_s_);
    for (const size_t rank_index : {0, 1}) {
      const size_t near = rank_index == 0 ? a_ : b_;
      const size_t first = rank_index == 0 ? kIa : kIb, second = rank_index == 0 ? kIaUp : kIbUp;
      if (released_alike(near, far - near)) {
        kinds_.push_back({rank_index, near, {first, second}});
      } else {
        kinds_.push_back({rank_index, far - near, {first}});
        kinds_.push_back({rank_index, near, {second}});
      }
    }
  }

  TwoRanksTime least_s(Stopping stopping) {
    std::map<Counts, std::vector<TimeLabel>> now, next;
    now[Counts(kNumSteps + kinds_.size())].push_back(TimeLabel(kFirst));
    const int64_t layers = 12 * m_;
    LabelAllowance allowance(num_labels_, layers);
    for (int64_t layer = 0; layer < layers; ++layer) {
      next.clear();
      for (const auto& [counts, labels] : now) {
        if (stopping.after(std::ssize(labels))) return {0.0, false};
        const std::array<double, 2> left_s = work_left_s(counts);
        for (const TimeLabel& label : labels) {
          const double ends_s =
              own_head_s() + std::max(label[0] + left_s[0], makespan_ ? label[1] + left_s[1] : 0.0);
          if (ends_s < enough_s_) extend(counts, label, next);
        }
        if (std::ssize(next) > num_labels_ / layers) return {0.0, false};  // not even one of each
      }
      thin_layer(next, allowance, 1, 500, stopping, [&](auto& counts, auto&& labels, size_t kept) {
        return reduced(counts, std::move(labels), kept);
      });
      if (stopping.told()) return {0.0, false};
      std::swap(now, next);
    }
    double least_s = enough_s_;
    for (const auto& [counts, labels] : now)
      for (const TimeLabel& label : labels) {
        const double own_s = makespan_ ? std::max(label[0], label[1]) : label[0];
        least_s = std::min(least_s, std::max(own_head_s() + own_s, label[kLast]));
      }
    return {least_s, allowance.was_enough()};
  }

 private:
  // W of stages of a rank that take and release the same: which I make them ready.
  struct Kind {
    size_t rank, stage;
    std::vector<size_t> after;
  };
  // Where the ways of each kind, then the pairs beyond, start in a label; one more for the end.
  using Layout = std::array<size_t, kNumWays + 2>;

  double own_head_s() const { return makespan_ ? head_s_ : 0.0; }

  bool released_alike(size_t one, size_t two) const {
    return fold_.weight_grad_s[one] == fold_.weight_grad_s[two] &&
           std::ranges::all_of(fold_.held, [&](const Fold::Held& held) {
             return held.late[one] == held.late[two];
           });
  }

  int64_t waiting(const Counts& counts, size_t kind) const {
    int64_t num = -counts[kNumSteps + kind];
    for (const size_t step : kinds_[kind].after) num += counts[step];
    return num;
  }

  double duration_s(size_t step) const {
    return step < kIa ? fold_.forward_s[stage_of_[step]] : fold_.input_grad_s[stage_of_[step]];
  }

  std::array<double, 2> work_left_s(const Counts& counts) const {
    std::array<double, 2> left_s = {0.0, 0.0};
    for (size_t step = 0; step < kNumSteps; ++step)
      left_s[kRankOf[step]] += duration_s(step) * static_cast<double>(m_ - counts[step]);
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const int64_t num = m_ * std::ssize(kinds_[kind].after) - counts[kNumSteps + kind];
      left_s[kinds_[kind].rank] +=
          fold_.weight_grad_s[kinds_[kind].stage] * static_cast<double>(num);
    }
    return left_s;
  }

  bool fits(const Counts& counts, size_t step) const {
    const size_t rank = kRankOf[step];
    for (const Fold::Held& held : fold_.held) {
      double now = held.pending[stage_of_[step]];
      for (size_t f = kFa; f < kIa; ++f)
        if (kRankOf[f] == rank)
          now += held.pending[stage_of_[f]] *
                 static_cast<double>(counts[f] - counts[kNumSteps - 1 - f]);
      for (size_t kind = 0; kind < kinds_.size(); ++kind)
        if (kinds_[kind].rank == rank)
          now += held.late[kinds_[kind].stage] * static_cast<double>(waiting(counts, kind));
      if (now > held.room[rank == 0 ? a_ : b_]) return false;
    }
    return true;
  }

  Layout layout(const Counts& counts) const {
    Layout at;
    at[0] = kFirst;
    for (size_t way = 0; way < kNumWays; ++way)
      at[way + 1] = at[way] + 2 * static_cast<size_t>(counts[2 * way] - counts[2 * way + 1]);
    const int64_t beyond = beyond_.empty() ? 0 : counts[kFaUp] - counts[kIa];
    at[kBeyond + 1] = at[kBeyond] + 2 * static_cast<size_t>(beyond);
    return at;
  }

  void extend(const Counts& counts, const TimeLabel& label,
              std::map<Counts, std::vector<TimeLabel>>& next) const {
    std::array<double, 2> shortest_waiting_s = {kInfinite, kInfinite};
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      if (waiting(counts, kind) == 0) continue;
      const size_t rank = kinds_[kind].rank;
      const double work_s = fold_.weight_grad_s[kinds_[kind].stage];
      shortest_waiting_s[rank] = std::min(shortest_waiting_s[rank], work_s);
      Counts after = counts;
      ++after[kNumSteps + kind];
      TimeLabel later = label;
      later[rank] += work_s;
      next[std::move(after)].push_back(std::move(later));
    }
    const Layout at = layout(counts);
    for (size_t step = 0; step < kNumSteps; ++step) {
      if (counts[step] == (step == 0 ? m_ : counts[step - 1])) continue;
      if (step < kIa && !fits(counts, step)) continue;
      const double free_s = label[kRankOf[step]];
      std::vector<double> starts_s{free_s};
      if (step % 2 == 1) starts_s = arrivals_s(label, at, step / 2, free_s);
      if (step == kIa && !beyond_.empty()) starts_s[0] = std::max(free_s, label[at[kBeyond] + 1]);
      for (const double start_s : starts_s) {
        // A W that fits before it delays nothing: some order with it there is as short.
        if (start_s - free_s >= shortest_waiting_s[kRankOf[step]]) break;
        run(counts, label, at, step, start_s, next);
      }
    }
  }

  // When the first of a kind of way may arrive: at once, or behind more of what it meets.
  std::vector<double> arrivals_s(const TimeLabel& label, const Layout& at, size_t way,
                                 double free_s) const {
    const double start_s = label[at[way]], earliest_s = std::max(free_s, label[at[way] + 1]);
    std::vector<double> found_s{earliest_s};
    for (const size_t other : met_by(way))
      for (size_t t = at[other]; t < at[other + 1]; t += 2)
        for (size_t n = 1; n <= num_between_; ++n) {
          const double waits_s = start_s + back_s(way, other, num_between_ - n + 1);
          if (waits_s <= label[t + 1]) break;
          if (const double there_s = label[t] + back_s(other, way, n); there_s > earliest_s)
            found_s.push_back(there_s);
        }
    std::ranges::sort(found_s);
    found_s.erase(std::ranges::unique(found_s).begin(), found_s.end());
    return found_s;
  }

  // The ways in the other direction.
  static std::array<size_t, 2> met_by(size_t way) {
    return goes_down(way) ? std::array<size_t, 2>{1, 3} : std::array<size_t, 2>{0, 2};
  }

  // Over the first ranks on the first way, and from there back on the second.
  double back_s(size_t way, size_t other, size_t num) const {
    return goes_down(way) ? out_s_[way][other][num] : in_s_[other][way][num];
  }

  void run(const Counts& counts, const TimeLabel& label, const Layout& at, size_t step,
           double start_s, std::map<Counts, std::vector<TimeLabel>>& next) const {
    TimeLabel later = label;
    const double end_s = start_s + duration_s(step);
    later[kRankOf[step]] = end_s;
    if (step == kIaUp && counts[step] + 1 == m_) later[kLast] = head_s_ + end_s + tail_s_;
    if (step % 2 == 1) {
      const size_t way = step / 2;
      meet(later, at, way, start_s);
      erase_pair(later, at[way]);
    }
    if (step == kIa && !beyond_.empty()) erase_pair(later, at[kBeyond]);
    Counts after = counts;
    ++after[step];
    std::vector<TimeLabel>& found = next[after];
    const Layout then = layout(after);
    if (step == kFaUp && !beyond_.empty()) {
      beyond_.cross(later, end_s, then[kBeyond], then[kBeyond + 1] - 2, found);
      return;
    }
    if (step % 2 == 0) {
      const double times_s[] = {end_s, end_s + takes_s_[step / 2]};
      later.insert(later.begin() + static_cast<std::ptrdiff_t>(then[step / 2 + 1]) - 2, times_s,
                   times_s + 2);
    }
    found.push_back(std::move(later));
  }

  static void erase_pair(TimeLabel& label, size_t first) {
    const auto begin = label.begin() + static_cast<std::ptrdiff_t>(first);
    label.erase(begin, begin + 2);
  }

  // The first of a kind of way arrives, ahead of all that it meets and that is still on its way.
  void meet(TimeLabel& label, const Layout& at, size_t way, double arrival_s) const {
    const double start_s = label[at[way]];
    for (const size_t other : met_by(way))
      for (size_t t = at[other]; t < at[other + 1]; t += 2) {
        size_t n = 0;
        const double until_s = arrival_s + rounding_s_;
        while (n < num_between_ && label[t] + back_s(other, way, n + 1) <= until_s) ++n;
        if (n == num_between_) continue;
        label[t + 1] = std::max(label[t + 1], start_s + back_s(way, other, num_between_ - n));
      }
  }

  std::vector<TimeLabel> reduced(const Counts& counts, std::vector<TimeLabel> labels,
                                 size_t kept) const {
    const Layout at = layout(counts);
    std::vector<double> weight(at.back(), 1.0);
    weight[0] = weight[1] = 3.0;
    const double leaves_s = fold_.forward_s[stage_of_[kFaUp]];
    for (size_t way = 0; way <= kBeyond; ++way)
      for (size_t t = at[way]; t < at[way + 1]; t += 2) {
        weight[t] = 0.25;
        const size_t rank = way != kBeyond && goes_down(way) ? 1 : 0;
        const double follows_s = duration_s(way == kBeyond ? kIa : 2 * way + 1);
        for (TimeLabel& label : labels) {
          const double ahead_s = t == at[way] ? label[rank] : label[t - 1] + follows_s;
          label[t + 1] = std::max(label[t + 1], ahead_s);
          // A start that nobody waits for any more is as good as any.
          const double forgotten_s = way == kBeyond ? beyond_.never_met_s(label[0] + leaves_s)
                                                    : label[t + 1] - met_all_s_[way] - rounding_s_;
          label[t] = std::max(label[t], forgotten_s);
        }
      }
    for (const size_t rank : {0, 1})
      for (TimeLabel& label : labels)
        label[rank] = std::max(label[rank], next_start_s(counts, label, at, rank));
    return thinned(std::move(labels), weight, kept);
  }

  // Before when a rank runs nothing; 0 where it has run all.
  double next_start_s(const Counts& counts, const TimeLabel& label, const Layout& at,
                      size_t rank) const {
    double start_s = kInfinite;
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      if (kinds_[kind].rank == rank && waiting(counts, kind) > 0) return label[rank];
    for (size_t step = 0; step < kNumSteps; ++step) {
      if (kRankOf[step] != rank || counts[step] == m_) continue;
      const bool is_ready = step == 0 || counts[step] < counts[step - 1];
      if (!is_ready && step % 2 == 0) continue;  // it follows another one of the rank
      if (is_ready && step < kIa && !fits(counts, step)) continue;  // and so does this
      double ready_s = label[rank];
      if (!is_ready)
        ready_s = label[1 - rank] + duration_s(step - 1) + takes_s_[step / 2];
      else if (step % 2 == 1)
        ready_s = label[at[step / 2] + 1];
      else if (step == kIa && !beyond_.empty())
        ready_s = label[at[kBeyond] + 1];
      start_s = std::min(start_s, ready_s);
    }
    return start_s == kInfinite ? 0.0 : start_s;
  }

  const Fold& fold_;
  size_t a_, num_stages_, b_, num_between_;
  int64_t m_;
  bool makespan_;
  double enough_s_;
  int64_t num_labels_;
  double rounding_s_ = 0, head_s_ = 0, tail_s_ = 0;
  std::array<size_t, kNumSteps> stage_of_{};
  std::array<double, kNumWays> takes_s_{};
  // From its start to an arrival so late that what is first on some rank tells neither anything.
  std::array<double, kNumWays> met_all_s_{};
  std::array<std::array<std::vector<double>, kNumWays>, kNumWays> out_s_, in_s_;  // [down][up]
  WayBeyond beyond_;
  std::vector<Kind> kinds_;
};

}  // namespace

TwoRanksTime two_ranks_s(const Fold& fold, int64_t rank, int64_t num_microbatches, bool makespan,
                         double enough_s, int64_t num_labels, const std::function<bool()>& poll) {
  return TwoRanks(fold, static_cast<size_t>(rank), num_microbatches, makespan, enough_s, num_labels)
      .least_s(Stopping(poll));
}

}  // namespace trainwright
