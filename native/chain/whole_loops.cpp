#include "chain/whole_loops.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "chain/freed.hpp"
#include "chain/order_graph.hpp"

namespace trainwright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kHair = 1e-9;
constexpr int8_t kNoBlocks = 127;   // more than a stage may have
constexpr size_t kMostWays = 6000;  // of one rank
constexpr size_t kAbreast = 8;      // ways that are looked at side by side

// Seconds of ways side by side, two of which a processor works out at a time.
using Two [[gnu::vector_size(16)]] = double;
struct Abreast {
  Two two[kAbreast / 2];
};

// The ways to deal a rank's blocks that are left, with the step that each has at least.
struct Left {
  int32_t way;
  double step_s;
};

class Search {
 public:
  Search(const WholeLoop& loop, const Orders& orders)
      : x_(loop),
        ranks_(orders.num_ranks()),
        stages_(orders.num_stages()),
        chunks_(stages_ / ranks_),
        width_(stages_ > 0 ? static_cast<int64_t>(loop.forward_s.size()) / stages_ : 0),
        graph_(orders),
        hop_s_(hops_s(loop.transfer_s)),
        limit_s_(loop.limit_s * (1 + kHair)),
        actions_(static_cast<size_t>(ranks_)),
        ways_(static_cast<size_t>(ranks_)),
        cost_s_(static_cast<size_t>(2 * stages_)),
        after_s_(static_cast<size_t>(ranks_)),
        arrives_s_(graph_.steps.size()),
        end_s_(graph_.steps.size()),
        stays_s_(graph_.steps.size()),
        leaves_s_(graph_.steps.size(), -kInfinite),
        own_s_(static_cast<size_t>(2 * chunks_)),
        recomputes_(static_cast<size_t>(ranks_), false) {
    for (size_t i = 1; i < graph_.steps.size(); ++i) {
      const OrderStep& step = graph_.steps[i];
      const auto place = static_cast<int32_t>(i);
      const int64_t stage = step.cost % stages_, rank = orders.rank_of_stage[stage];
      const int64_t chunk = stage / ranks_ + (step.cost >= stages_ ? chunks_ : 0);
      actions_[rank].push_back({place, static_cast<int32_t>(chunk), 0, 0, false});
    }
    for (std::vector<Own>& own : actions_) count_rounds(own);
  }

  LeastOfWhole run() {
    std::vector<std::vector<Left>> left(static_cast<size_t>(ranks_));
    if (!deal()) return {0, {}, seen_};
    add_up_recomputation();
    add_up_ends();
    for (int64_t r = 0; r < ranks_; ++r)
      for (size_t way = 0; way < ways_[r].size() / static_cast<size_t>(chunks_); ++way)
        left[r].push_back({static_cast<int32_t>(way), 0.0});
    visit(left);
    if (is_spent_) return {0, std::move(found_), seen_};
    return {std::min(x_.limit_s, limit_s_ * (1 - kHair)), std::move(found_), seen_};
  }

 private:
  struct Own {
    int32_t place;
    int32_t cost;  // chunk of a forward, or v + chunk
    // Backwards of each chunk, at the least, of which a path up to here has passed all, from any
    // start that is early: before the first backward; and of which one from here has all ahead.
    double passed, ahead;
    bool is_early;
  };

  // A round is a backward of each chunk.
  void count_rounds(std::vector<Own>& actions) const {
    std::vector<double> passed(static_cast<size_t>(chunks_), 0.0), ahead = passed;
    bool is_early = true;
    for (Own& own : actions) {
      own.is_early = is_early;
      if (own.cost >= chunks_) {
        is_early = false;
        passed[static_cast<size_t>(own.cost - chunks_)] += 1;
      }
      own.passed = *std::ranges::min_element(passed);
    }
    for (size_t i = actions.size(); i-- > 0;) {
      Own& own = actions[i];
      if (own.cost >= chunks_) ahead[static_cast<size_t>(own.cost - chunks_)] += 1;
      own.ahead = *std::ranges::min_element(ahead);
    }
  }

  const int8_t* blocks_of(int64_t rank, int32_t way) const {
    return &ways_[rank][static_cast<size_t>(way * chunks_)];
  }

  int64_t sum_of(int64_t rank, int32_t way) const {
    const int8_t* own = blocks_of(rank, way);
    return std::accumulate(own, own + chunks_, int64_t{0});
  }

  // All ways of all ranks, as blocks beyond the least of each chunk; false where they are too many.
  bool deal() {
    most_ = std::accumulate(x_.most_of_rank.begin(), x_.most_of_rank.end(), int64_t{0});
    std::vector<int64_t> fewest(static_cast<size_t>(ranks_), 0);
    for (int64_t s = 0; s < stages_; ++s) fewest[s % ranks_] += x_.least[s];
    extra_ = x_.num_blocks - std::accumulate(fewest.begin(), fewest.end(), int64_t{0});
    std::vector<int8_t> dealt(static_cast<size_t>(chunks_), 0);
    for (int64_t r = 0; r < ranks_; ++r) {
      const int64_t most = x_.most_of_rank[r] - fewest[r];
      const int64_t least = std::max<int64_t>(0, most - (most_ - x_.num_blocks));
      if (most >= kNoBlocks) return false;
      if (!deal(r, 0, least, most, dealt)) return false;
    }
    return true;
  }

  bool deal(int64_t rank, int64_t chunk, int64_t least, int64_t most, std::vector<int8_t>& dealt) {
    if (chunk == chunks_) {
      if (least > 0) return true;
      ways_[rank].insert(ways_[rank].end(), dealt.begin(), dealt.end());
      return ways_[rank].size() <= kMostWays * static_cast<size_t>(chunks_);
    }
    if (least > (chunks_ - chunk) * (width_ - 1)) return true;  // no room for so many
    const int64_t stage = chunk * ranks_ + rank;
    const int64_t room = std::min(most, width_ - 1);
    const int64_t begin = chunk + 1 == chunks_ ? std::max<int64_t>(0, least) : 0;
    for (int64_t own = begin; own <= room; ++own) {
      if (std::isinf(x_.forward_s[stage * width_ + own])) break;
      dealt[chunk] = static_cast<int8_t>(own);
      if (!deal(rank, chunk + 1, least - own, most - own, dealt)) return false;
    }
    dealt[chunk] = 0;
    return true;
  }

  // What each way makes its rank recompute in one round; ways that do not fit are left out.
  void add_up_recomputation() {
    way_recompute_s_.resize(static_cast<size_t>(ranks_));
    std::vector<FreeingWay> scratch;
    for (int64_t r = 0; r < ranks_; ++r) {
      const size_t v = static_cast<size_t>(chunks_);
      std::vector<int8_t> fitting;
      std::vector<int64_t> blocks(v);
      for (size_t way = 0; way < ways_[r].size() / v; ++way) {
        const int8_t* dealt = blocks_of(r, static_cast<int32_t>(way));
        double hidden_s = 0;
        for (size_t c = 0; c < v; ++c) {
          const size_t stage = c * static_cast<size_t>(ranks_) + static_cast<size_t>(r);
          blocks[c] = x_.least[stage] + dealt[c];
          if (!x_.exchanged_s.empty())
            hidden_s +=
                x_.exchanged_s[stage * static_cast<size_t>(width_) + static_cast<size_t>(dealt[c])];
        }
        const double freed = recompute_s(r, blocks, scratch);
        if (std::isinf(freed)) continue;
        const double own_s = std::max({0.0, freed * (1 - x_.under_backward), freed - hidden_s});
        fitting.insert(fitting.end(), dealt, dealt + v);
        way_recompute_s_[r].push_back(own_s);
        if (own_s > 0) recomputes_[r] = true;
      }
      ways_[r] = std::move(fitting);
    }
  }

  double recompute_s(int64_t rank, const std::vector<int64_t>& blocks,
                     std::vector<FreeingWay>& scratch) const {
    if (x_.instant_offset.empty()) return 0;
    const double held =
        static_cast<double>(std::accumulate(blocks.begin(), blocks.end(), int64_t{0})) *
        x_.static_bytes;
    const size_t v = static_cast<size_t>(chunks_);
    double worst_s = 0;
    for (int64_t i = x_.instant_offset[rank]; i < x_.instant_offset[rank + 1]; ++i) {
      const double room = x_.room_bytes[i] - held;
      if (room < 0) return kInfinite;
      const auto counts = x_.held.subspan(static_cast<size_t>(i) * v, v);
      worst_s = std::max(worst_s, freed_s(counts, std::span<const int64_t>(blocks), x_.block_time_s,
                                          x_.block_bytes, room, scratch));
    }
    return worst_s;
  }

  // What follows the last action of each rank, by the way its blocks are dealt.
  void add_up_ends() {
    way_after_s_.resize(static_cast<size_t>(ranks_));
    for (int64_t r = 0; r < ranks_; ++r) {
      const size_t ways = ways_[r].size() / static_cast<size_t>(chunks_);
      way_after_s_[r].assign(ways, x_.rank_after_s[r]);
      for (size_t way = 0; way < ways; ++way) {
        const int8_t* blocks = blocks_of(r, static_cast<int32_t>(way));
        for (int64_t c = 0; c < chunks_; ++c) {
          const int64_t before = c > 0 ? blocks[c - 1] : 0;
          const int64_t row = ((c * ranks_ + r) * width_ + before) * width_;
          way_after_s_[r][way] += x_.after_s[row + blocks[c]];
        }
      }
    }
  }

  // Heads and tails with so many blocks beyond the least of each stage, and the step, where what is
  // left of the ways of each rank decides what follows its last action.
  double time(const std::vector<int8_t>& blocks, const std::vector<std::vector<Left>>& left) {
    for (int64_t s = 0; s < stages_; ++s) {
      const int64_t at = s * width_ + blocks[s];
      cost_s_[s] = x_.forward_s[at];
      cost_s_[stages_ + s] = x_.backward_s[at];
    }
    for (int64_t r = 0; r < ranks_; ++r) {
      after_s_[r] = kInfinite;
      for (const Left& each : left[r])
        after_s_[r] = std::min(after_s_[r], way_after_s_[r][each.way]);
    }
    const std::vector<OrderStep>& steps = graph_.steps;
    double longest_s = 0;
    for (size_t i = 1; i < steps.size(); ++i) {
      const OrderStep& step = steps[i];
      arrives_s_[i] = end_s_[step.producer] + hop_s_[step.hop];
      end_s_[i] = std::max(end_s_[step.previous], arrives_s_[i]) + cost_s_[step.cost];
    }
    // Each place hands on what follows it; where nothing waits for one, nothing ever does.
    for (int64_t r = 0; r < ranks_; ++r) stays_s_[graph_.last[r]] = after_s_[r];
    for (size_t i = steps.size() - 1; i > 0; --i) {
      const OrderStep& step = steps[i];
      const double own_s = cost_s_[step.cost], rest_s = std::max(leaves_s_[i], stays_s_[i]);
      stays_s_[step.previous] = own_s + rest_s;
      leaves_s_[step.producer] = hop_s_[step.hop] + own_s + rest_s;
    }
    for (int64_t r = 0; r < ranks_; ++r)
      if (graph_.last[r] != 0)
        longest_s = std::max(longest_s, end_s_[graph_.last[r]] + after_s_[r]);
    seen_ += 2 * static_cast<int64_t>(steps.size());
    return longest_s;
  }

  // Of up to so many ways of a rank, side by side, the longest path along the rank. What ways
  // recompute counts where all rounds between both ends of a path are known.
  template <bool kRecomputing>
  void go_along(int64_t rank, std::span<Left> ways) {
    Abreast end_s{}, longest_s{};
    [[maybe_unused]] Abreast round_s{}, early_s{}, last_s{};
    for (size_t i = 0; i < kAbreast; ++i) {
      const int32_t way = ways[std::min(i, ways.size() - 1)].way;
      const int8_t* blocks = blocks_of(rank, way);
      for (int64_t c = 0; c < chunks_; ++c) {
        const int64_t at = (c * ranks_ + rank) * width_ + blocks[c];
        own_s_[static_cast<size_t>(c)].two[i / 2][i % 2] = x_.forward_s[at];
        own_s_[static_cast<size_t>(chunks_ + c)].two[i / 2][i % 2] = x_.backward_s[at];
      }
      if constexpr (kRecomputing) round_s.two[i / 2][i % 2] = way_recompute_s_[rank][way];
    }
    for (const Own& own : actions_[rank]) {
      const Two arrives_s = arrives_s_[own.place] - Two{};
      const Two leaves_s = leaves_s_[own.place] - Two{};
      const Abreast& own_s = own_s_[static_cast<size_t>(own.cost)];
      for (size_t i = 0; i < kAbreast / 2; ++i) {
        const Two begins_s = end_s.two[i] < arrives_s ? arrives_s : end_s.two[i];
        end_s.two[i] = begins_s + own_s.two[i];
        Two path_s = end_s.two[i];
        if constexpr (kRecomputing) {
          Two& early = early_s.two[i];
          if (own.is_early) early = early < arrives_s ? arrives_s : early;
          early += own_s.two[i];
          const Two all_s = early + own.passed * round_s.two[i];
          path_s = path_s < all_s ? all_s : path_s;
          const Two late_s = arrives_s + own.ahead * round_s.two[i];
          Two& last = last_s.two[i];
          last = (last < late_s ? late_s : last) + own_s.two[i];
        }
        path_s += leaves_s;
        longest_s.two[i] = longest_s.two[i] < path_s ? path_s : longest_s.two[i];
      }
    }
    seen_ += static_cast<int64_t>((kRecomputing ? 2 : 1) * actions_[rank].size());
    const double leaves_s = leaves_s_[graph_.last[rank]];
    for (size_t i = 0; i < ways.size(); ++i) {
      double own_s = longest_s.two[i / 2][i % 2], end = end_s.two[i / 2][i % 2];
      if constexpr (kRecomputing) {
        end = std::max(end, last_s.two[i / 2][i % 2]);
        own_s = std::max(own_s, end + leaves_s);
      }
      ways[i].step_s = std::max(own_s, end + way_after_s_[rank][ways[i].way]);
    }
  }

  // Drops ways that are too long or that leave other ranks too many or too few blocks, until no
  // stage has more blocks for sure; the step, at least. The limit where a rank has no way left.
  double narrow(std::vector<std::vector<Left>>& left, std::vector<int8_t>& blocks) {
    double step_s = 0;
    bool is_whole = false;  // whether every rank had one way when the step was found
    for (std::vector<int8_t> before;; before = blocks) {
      int64_t most = 0, fewest = 0;
      std::vector<std::pair<int64_t, int64_t>> sums(static_cast<size_t>(ranks_));
      for (int64_t r = 0; r < ranks_; ++r) {
        int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
        for (int64_t c = 0; c < chunks_; ++c) blocks[c * ranks_ + r] = kNoBlocks;
        for (const Left& each : left[r]) {
          const int8_t* own = blocks_of(r, each.way);
          for (int64_t c = 0; c < chunks_; ++c)
            blocks[c * ranks_ + r] = std::min(blocks[c * ranks_ + r], own[c]);
          const int64_t sum = sum_of(r, each.way);
          low = std::min(low, sum);
          high = std::max(high, sum);
        }
        if (left[r].empty()) return limit_s_;
        sums[r] = {low, high};
        most += high;
        fewest += low;
      }
      if (most < extra_ || fewest > extra_) return limit_s_;
      const bool is_open =
          std::ranges::any_of(left, [](const auto& ways) { return ways.size() > 1; });
      if (blocks == before && (is_open || is_whole)) return step_s;
      is_whole = !is_open;
      step_s = time(blocks, left);
      if (step_s >= limit_s_) return limit_s_;
      for (int64_t r = 0; r < ranks_; ++r) {
        const auto [low, high] = sums[r];
        const int64_t at_least = extra_ - (most - high), at_most = extra_ - (fewest - low);
        std::erase_if(left[r], [&](const Left& each) {
          const int64_t sum = sum_of(r, each.way);
          return sum < at_least || sum > at_most;
        });
        if (left[r].size() > 1 || recomputes_[r]) {
          const std::span<Left> ways(left[r]);
          for (size_t i = 0; i < ways.size(); i += kAbreast) {
            const std::span<Left> some = ways.subspan(i, std::min(kAbreast, ways.size() - i));
            recomputes_[r] ? go_along<true>(r, some) : go_along<false>(r, some);
          }
          std::erase_if(left[r], [&](const Left& each) { return each.step_s >= limit_s_; });
          if (left[r].size() == 1) step_s = std::max(step_s, left[r].front().step_s);
        }
      }
    }
  }

  void visit(std::vector<std::vector<Left>>& left) {
    std::vector<int8_t> blocks(static_cast<size_t>(stages_));
    const double step_s = narrow(left, blocks);
    if (step_s >= limit_s_) return;
    if (seen_ > x_.most_actions) is_spent_ = true;
    if (is_spent_) return;
    int64_t rank = -1;
    for (int64_t r = 0; r < ranks_; ++r)
      if (left[r].size() > 1 && (rank < 0 || left[r].size() <= left[rank].size())) rank = r;
    if (rank < 0) {
      limit_s_ = step_s;
      found_.resize(static_cast<size_t>(stages_));
      for (int64_t s = 0; s < stages_; ++s) found_[s] = x_.least[s] + blocks[s];
      return;
    }
    std::vector<Left> ways = left[rank];
    std::stable_sort(ways.begin(), ways.end(),
                     [](const Left& a, const Left& b) { return a.step_s < b.step_s; });
    for (const Left& each : ways) {
      if (each.step_s >= limit_s_ || is_spent_) return;
      std::vector<std::vector<Left>> below = left;
      below[rank] = {each};
      visit(below);
    }
  }

  const WholeLoop& x_;
  int64_t ranks_, stages_, chunks_, width_;
  OrderGraph graph_;
  std::vector<double> hop_s_;
  double limit_s_;
  int64_t most_ = 0, extra_ = 0, seen_ = 0;
  bool is_spent_ = false;
  std::vector<std::vector<Own>> actions_;  // of each rank, in its order
  std::vector<std::vector<int8_t>> ways_;  // of each rank, [ways, v]
  std::vector<std::vector<double>> way_after_s_;
  std::vector<double> cost_s_, after_s_;    // of stages, [2S], and ranks
  std::vector<double> arrives_s_, end_s_;   // by place: of its input, and its own
  std::vector<double> stays_s_, leaves_s_;  // longest paths after it on its rank, and elsewhere
  std::vector<Abreast> own_s_;              // [2v]
  std::vector<bool> recomputes_;            // [p] whether some way does
  std::vector<std::vector<double>> way_recompute_s_;  // of one round
  std::vector<int64_t> found_;
};

}  // namespace

LeastOfWhole least_of_whole(const WholeLoop& loop, const Orders& orders) {
  return Search(loop, orders).run();
}

}  // namespace trainwright
