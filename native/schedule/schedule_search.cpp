#include "schedule/schedule_search.hpp"

#include <algorithm>
#include <cmath>

#include "common/random_source.hpp"
#include "schedule/repeating_words.hpp"
#include "schedule/target_search.hpp"
#include "schedule/word_annealing.hpp"

namespace trainwright {

namespace {

// Shares of the work for offsets, drawn and annealed; annealing words gets the rest. On 4 to 16
// ranks words find nearly all of the best orders, offsets a few of those that are short in span.
// Words start from the two best starts in turn, and from the best so far.
constexpr double kOffsetShare = 0.05, kOffsetAnnealingShare = 0.15;
constexpr size_t kNumSeeds = 2;
// Annealing from the best seed, the second, the best so far, and again: on small instances many
// short runs reach what three long ones miss, on large ones a run needs its time. A run of 25 or 50
// million actions finds the best known (4 ranks, 8 microbatches) in 29% of 48 cases.
constexpr int64_t kActionsOfManyRuns = 500;
constexpr size_t kManyRuns = 24, kFewRuns = 3;
constexpr double kCooled = 0.6;  // the last temperature of a run, in its first

// Orders that repeat: half of the work for them, longer turns more. From an order that is good they
// are kept cool, from nothing not; with many actions the latter ends far from the best (12 ranks, a
// turn of one: at 232 to 306 where the families have 232).
constexpr double kRepeatingShare = 0.5;
constexpr int32_t kMostTurns = 6, kMostTurnsOfMany = 4;
constexpr size_t kNumLike = 3;
constexpr int64_t kMostActionsAlone = 150;
constexpr int64_t kManyActions = 2000;  // fewer: longer turns, and two are annealed as words
constexpr double kHotAlone = 0.4, kHotLike = 0.1, kColdest = 0.01;

// A heated run begins eight times as hot as others (a mean action, of 500 actions), and ends at so
// much of that.
constexpr double kHeated = 8.0, kFrozen = 0.03;

// Where word annealing starts: words with their guide, the best that named families and offsets
// gave, no two equally long. What annealing finds is no seed: runs from it go in circles.
struct Seed {
  double guide_s;
  Words words;
};

class Search {
 public:
  Search(const StreamProblem& problem, const SearchPlan& plan)
      : problem_(problem), plan_(plan), random_(plan.seed) {}

  SearchResult run(const std::vector<Words>& starts) {
    take_starts(starts);
    if (!stopped_) search_offsets();
    if (!stopped_) search_words();
    return std::move(result_);
  }

  SearchResult run_repeating(std::vector<Words> starts) {
    take_starts(starts);
    seeds_.clear();
    int32_t all_turns = 0;
    for (int32_t turn = 1; turn <= most_turns(); ++turn) all_turns += turn;
    for (int32_t turn = 1; turn <= most_turns() && !stopped_; ++turn)
      repeat_every(turn, starts, share(kRepeatingShare * turn / all_turns));
    WordAnnealing annealing = word_annealing();
    if (problem_.num_actions > kManyActions && seeds_.size() > 1) seeds_.resize(1);
    const int64_t left = plan_.work - result_.work;
    for (size_t at = 0; at < seeds_.size() && !stopped_; ++at)
      annealing.run(seeds_[at].words, {.work = left / static_cast<int64_t>(seeds_.size()),
                                       .hot = hot(),
                                       .cold = kCooled * hot()});
    result_.work += annealing.work();
    return std::move(result_);
  }

  SearchResult run_heated(const std::vector<Words>& starts) {
    take_starts(starts);
    if (result_.words.empty()) return std::move(result_);
    WordAnnealing annealing = word_annealing();
    annealing.run(
        Words(result_.words),
        {.work = plan_.work / 2, .hot = kHeated * hot(), .cold = kFrozen * kHeated * hot()});
    if (!stopped_)
      annealing.run(Words(result_.words),
                    {.work = plan_.work - annealing.work(), .hot = hot(), .cold = kCooled * hot()});
    result_.work += annealing.work();
    return std::move(result_);
  }

 private:
  // Of shorter steps nothing but their ends is left.
  int32_t most_turns() const {
    const int32_t most = problem_.num_actions > kManyActions ? kMostTurnsOfMany : kMostTurns;
    return std::min(most, problem_.num_microbatches / 3);
  }

  // What it finds joins the starts.
  void repeat_every(int32_t turn, std::vector<Words>& starts, int64_t work) {
    RepeatingWords repeating(problem_, random_, turn, [&] { return interrupted(); });
    WordState state(problem_);
    const int32_t middle = (problem_.num_microbatches - turn) / 2;
    std::vector<std::pair<double, size_t>> like;
    for (size_t i = 0; i < starts.size(); ++i)
      if (state.load(starts[i]) && repeating.begin_like(state, middle))
        like.emplace_back(repeating.period_s(), i);
    std::ranges::sort(like);
    like.resize(std::min(like.size(), kNumLike));
    const bool alone = like.empty() || std::ssize(problem_.streams) * turn <= kMostActionsAlone;
    const int64_t each = work / (std::ssize(like) + alone);
    if (alone) {
      repeating.begin_alone();
      repeating.anneal({.work = each, .hot = kHotAlone, .cold = kColdest});
    }
    for (const auto& [period_s, i] : like)
      if (state.load(starts[i]) && repeating.begin_like(state, middle))
        repeating.anneal({.work = each, .hot = kHotLike, .cold = kColdest});
    result_.work += repeating.work();
    starts.push_back(repeating.unrolled());
    if (!state.load(starts.back())) return;
    remember(starts.back(), state.length());
    offer(SearchPhase::repeating, starts.back(), state.length());
  }

  void take_starts(const std::vector<Words>& starts) {
    WordState state(problem_);
    for (size_t i = 0; i < starts.size() && !stopped_; ++i) {
      if (!state.load(starts[i])) continue;
      remember(starts[i], state.length());
      offer(SearchPhase::given, starts[i], state.length(), static_cast<int32_t>(i));
    }
  }

  void search_offsets() {
    SearchPhase phase = SearchPhase::offsets;
    const auto found = [&](const Words& words, const Length& length) {
      remember(words, length);
      return offer(phase, words, length);
    };
    TargetSearch search(problem_, random_, found, [&] { return interrupted(); });
    search.sample(share(kOffsetShare));
    phase = SearchPhase::annealed_offsets;
    if (!stopped_) search.anneal(share(kOffsetAnnealingShare));
    result_.work += search.work();
  }

  // Nearly constant temperatures: colder, a run only polishes what its seed already was.
  double hot() const { return first_temperature(problem_.num_actions); }

  WordAnnealing word_annealing() {
    const auto found = [&](const WordState& state) {
      if (state.length().value(problem_.objective) > value_s_) return stopped_;
      return offer(SearchPhase::words, state.words(), state.length());
    };
    return WordAnnealing(problem_, random_, found, [&] { return interrupted(); });
  }

  void search_words() {
    if (result_.words.empty()) return;
    WordAnnealing annealing = word_annealing();
    const size_t runs = problem_.num_actions <= kActionsOfManyRuns ? kManyRuns : kFewRuns;
    for (size_t run = 0; run < runs && !stopped_; ++run) {
      const size_t turn = run % (kNumSeeds + 1);
      const Words start = turn < seeds_.size() ? seeds_[turn].words : result_.words;
      const int64_t left = plan_.work - result_.work - annealing.work();
      annealing.run(
          start,
          {.work = left / static_cast<int64_t>(runs - run), .hot = hot(), .cold = kCooled * hot()});
    }
    result_.work += annealing.work();
  }

  int64_t share(double part) const {
    return static_cast<int64_t>(part * static_cast<double>(plan_.work));
  }

  // Of equally long ones with another guide, too, the name is that of the words that come back.
  bool offer(SearchPhase phase, const Words& words, const Length& length, int32_t start = -1) {
    const double guide_s = length.guide(problem_.objective);
    const double value_s = length.value(problem_.objective);
    if (value_s < value_s_ || (value_s == value_s_ && guide_s < guide_s_)) {
      result_.winner = phase;
      result_.winning_start = start;
      value_s_ = value_s;
      guide_s_ = guide_s;
      result_.words = words;
      result_.length = length;
    }
    if (value_s_ <= plan_.stop_at_s * (1.0 + 1e-12)) stopped_ = true;
    return stopped_;
  }

  void remember(const Words& words, const Length& length) {
    const double guide_s = length.guide(problem_.objective);
    for (const Seed& seed : seeds_)
      if (seed.guide_s == guide_s) return;
    if (seeds_.size() == kNumSeeds && guide_s >= seeds_.back().guide_s) return;
    if (seeds_.size() == kNumSeeds) seeds_.pop_back();
    const auto after = std::find_if(seeds_.begin(), seeds_.end(),
                                    [&](const Seed& seed) { return seed.guide_s > guide_s; });
    seeds_.insert(after, {guide_s, words});
  }

  bool interrupted() {
    if (plan_.poll && plan_.poll(value_s_)) stopped_ = result_.interrupted = true;
    return stopped_;
  }

  const StreamProblem& problem_;
  const SearchPlan& plan_;
  RandomSource random_;
  std::vector<Seed> seeds_;  // ascending
  double value_s_ = std::numeric_limits<double>::infinity();
  double guide_s_ = std::numeric_limits<double>::infinity();
  bool stopped_ = false;
  SearchResult result_;
};

}  // namespace

SearchResult search_schedule(const StreamProblem& problem, const std::vector<Words>& starts,
                             const SearchPlan& plan) {
  return Search(problem, plan).run(starts);
}

SearchResult search_repeating(const StreamProblem& problem, const std::vector<Words>& starts,
                              const SearchPlan& plan) {
  return Search(problem, plan).run_repeating(starts);
}

SearchResult search_heated(const StreamProblem& problem, const std::vector<Words>& starts,
                           const SearchPlan& plan) {
  return Search(problem, plan).run_heated(starts);
}

}  // namespace trainwright
