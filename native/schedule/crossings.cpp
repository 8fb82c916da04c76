#include "schedule/crossings.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "schedule/label_set.hpp"

namespace trainwright {

namespace {

constexpr double kRounding = 1e-12;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// How often each F, then each I from the last stage up, then W of each kind has run.
using Counts = std::vector<int64_t>;

// Times of one order: free, end of the last input gradient, then of every microbatch on its way,
// gap by gap in order, what is known of it.
using Label = TimeLabel;
constexpr size_t kFree = 0, kLast = 1, kFirst = 2;

// Between two actions of a microbatch on the rank: nothing, a delay (when it is over), or the way
// beyond (earliest h, earliest e).
enum class Gap { none, delay, beyond };

struct Layout {
  std::vector<size_t> start;  // of each gap in a label; one more for the end
};

class Crossings {
 public:
  Crossings(const CrossedRank& rank, int64_t num_microbatches, int64_t num_labels,
            int64_t most_labels)
      : rank_(rank),
        num_stages_(rank.forward_s.size()),
        m_(num_microbatches),
        num_labels_(num_labels),
        most_labels_(most_labels) {
    double longest_s = std::accumulate(rank.forward_s.begin(), rank.forward_s.end(), 0.0);
    for (const auto* times_s : {&rank.input_grad_s, &rank.weight_grad_s, &rank.beyond.forward_s,
                                &rank.beyond.input_grad_s, &rank.beyond.down_s, &rank.beyond.up_s})
      longest_s = std::accumulate(times_s->begin(), times_s->end(), longest_s);
    beyond_ = WayBeyond(rank.beyond, kRounding * longest_s * static_cast<double>(m_));
    for (size_t x = 0; x + 1 < 2 * num_stages_; ++x) gaps_.push_back(gap_after(x));
    for (size_t s = 0; s < num_stages_; ++s) {
      const auto alike = std::ranges::find_if(
          kinds_, [&](const std::vector<size_t>& kind) { return released_alike(kind[0], s); });
      if (alike == kinds_.end())
        kinds_.push_back({s});
      else
        alike->push_back(s);
    }
  }

  double least_s(Stopping stopping) {
    std::map<Counts, std::vector<Label>> now, next;
    now[Counts(2 * num_stages_ + kinds_.size())].push_back(Label(kFirst));
    const int64_t layers = 3 * static_cast<int64_t>(num_stages_) * m_;
    LabelAllowance allowance(num_labels_, layers);
    int64_t num_kept = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
      next.clear();
      for (const auto& [counts, labels] : now) {
        if (stopping.after(std::ssize(labels))) return 0.0;
        for (const Label& label : labels) extend(counts, label, next);
      }
      thin_layer(next, allowance, 4, 1000, stopping, [&](auto& counts, auto&& labels, size_t kept) {
        return reduced(counts, std::move(labels), kept);
      });
      if (stopping.told()) return 0.0;
      std::swap(now, next);
      for (const auto& [counts, labels] : now) num_kept += std::ssize(labels);
      if (num_kept > most_labels_) return 0.0;
    }
    double least_s = kInfinite;
    for (const auto& [counts, labels] : now)
      for (const Label& label : labels)
        least_s = std::min(least_s, std::max(rank_.own_head_s + label[kFree], label[kLast]));
    return least_s == kInfinite ? 0.0 : least_s;
  }

 private:
  Gap gap_after(size_t x) const {
    if (x + 1 == num_stages_) return beyond_.empty() ? Gap::none : Gap::beyond;
    return gap_s(x) > 0 ? Gap::delay : Gap::none;
  }

  double gap_s(size_t x) const {
    return x < num_stages_ ? rank_.forward_gap_s[x]
                           : rank_.input_grad_gap_s[2 * num_stages_ - 2 - x];
  }

  double duration_s(size_t x) const {
    return x < num_stages_ ? rank_.forward_s[x] : rank_.input_grad_s[stage_of(x)];
  }

  size_t stage_of(size_t x) const { return x < num_stages_ ? x : 2 * num_stages_ - 1 - x; }

  Layout layout(const Counts& counts) const {
    Layout at{std::vector<size_t>(gaps_.size() + 1, kFirst)};
    for (size_t x = 0; x < gaps_.size(); ++x) {
      const size_t width = gaps_[x] == Gap::none ? 0 : gaps_[x] == Gap::delay ? 1 : 2;
      at.start[x + 1] = at.start[x] + width * static_cast<size_t>(counts[x] - counts[x + 1]);
    }
    return at;
  }

  bool fits(const Counts& counts, size_t stage) const {
    for (const HeldByStage& held : rank_.held) {
      double now = held.pending[stage];
      for (size_t s = 0; s < num_stages_; ++s)
        now += held.pending[s] * static_cast<double>(counts[s] - counts[2 * num_stages_ - 1 - s]);
      for (size_t kind = 0; kind < kinds_.size(); ++kind)
        now += held.late[kinds_[kind][0]] * static_cast<double>(waiting(counts, kind));
      if (now > held.room) return false;
    }
    return true;
  }

  // Whether W of both stages take and release the same.
  bool released_alike(size_t one, size_t two) const {
    return rank_.weight_grad_s[one] == rank_.weight_grad_s[two] &&
           std::ranges::all_of(rank_.held, [&](const HeldByStage& held) {
             return held.late[one] == held.late[two];
           });
  }

  // How many W of a kind could run.
  int64_t waiting(const Counts& counts, size_t kind) const {
    int64_t num = -counts[2 * num_stages_ + kind];
    for (const size_t s : kinds_[kind]) num += counts[2 * num_stages_ - 1 - s];
    return num;
  }

  void extend(const Counts& counts, const Label& label,
              std::map<Counts, std::vector<Label>>& next) const {
    double shortest_waiting_s = kInfinite;  // of the W that could run at once
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      if (waiting(counts, kind) == 0) continue;
      const double work_s = rank_.weight_grad_s[kinds_[kind][0]];
      shortest_waiting_s = std::min(shortest_waiting_s, work_s);
      Counts after = counts;
      ++after[2 * num_stages_ + kind];
      Label later = label;
      later[kFree] += work_s;
      next[std::move(after)].push_back(std::move(later));
    }
    const Layout at = layout(counts);
    for (size_t x = 0; x < 2 * num_stages_; ++x) {
      if (counts[x] == (x == 0 ? m_ : counts[x - 1])) continue;
      if (x < num_stages_ && !fits(counts, x)) continue;
      double start_s = label[kFree];
      const Gap before = x == 0 ? Gap::none : gaps_[x - 1];
      const size_t first = x == 0 ? kFirst : at.start[x - 1];
      const size_t width = before == Gap::none ? 0 : before == Gap::delay ? 1 : 2;
      if (width > 0) start_s = std::max(start_s, label[first + width - 1]);
      // A W that fits before it delays nothing: some order with it there is as short.
      if (start_s - label[kFree] >= shortest_waiting_s) continue;
      Label later = label;
      later.erase(later.begin() + static_cast<std::ptrdiff_t>(first),
                  later.begin() + static_cast<std::ptrdiff_t>(first + width));
      later[kFree] = start_s + duration_s(x);
      if (x + 1 == 2 * num_stages_ && counts[x] + 1 == m_)
        later[kLast] = rank_.head_s + later[kFree] + rank_.tail_s;
      Counts after = counts;
      ++after[x];
      std::vector<Label>& found = next[after];
      const Gap then = x < gaps_.size() ? gaps_[x] : Gap::none;
      if (then == Gap::beyond) {
        const Layout then_at = layout(after);
        beyond_.cross(later, later[kFree], then_at.start[x], then_at.start[x + 1] - 2, found);
        continue;
      }
      if (then == Gap::delay)
        later.insert(later.begin() + static_cast<std::ptrdiff_t>(layout(after).start[x + 1] - 1),
                     later[kFree] + gap_s(x));
      found.push_back(std::move(later));
    }
  }

  std::vector<Label> reduced(const Counts& counts, std::vector<Label> labels, size_t kept) const {
    const Layout at = layout(counts);
    std::vector<double> weight(at.start.back(), 1.0);
    weight[kFree] = 3.0;
    const size_t b = num_stages_ - 1;
    for (size_t x = 0; x < gaps_.size(); ++x) {
      const size_t width = gaps_[x] == Gap::beyond ? 2 : 1;
      for (size_t t = at.start[x]; t < at.start[x + 1]; t += width) {
        if (width == 2) weight[t] = 0.25;
        for (Label& label : labels) {
          double& back_s = label[t + width - 1];
          back_s = std::max(back_s, label[kFree]);
          if (width == 1) continue;
          // An h that no forward meets any more is as good as any.
          const double never_s = beyond_.never_met_s(label[kFree] + rank_.forward_s[b]);
          label[t] = counts[b] == m_ ? 0.0 : std::max(label[t], never_s);
        }
      }
    }
    return thinned(std::move(labels), weight, kept);
  }

  const CrossedRank& rank_;
  size_t num_stages_;
  int64_t m_, num_labels_, most_labels_;
  WayBeyond beyond_;
  std::vector<Gap> gaps_;
  std::vector<std::vector<size_t>> kinds_;  // of W: the stages where it is alike
};

}  // namespace

double crossings_s(const CrossedRank& rank, int64_t num_microbatches, int64_t num_labels,
                   int64_t most_labels, const std::function<bool()>& poll) {
  return Crossings(rank, num_microbatches, num_labels, most_labels).least_s(Stopping(poll));
}

}  // namespace trainwright
