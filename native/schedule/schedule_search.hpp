// Search for a short pipeline schedule within memory limits.
//
// Seeds from target offsets, annealing of the offsets, annealing on words, in shares of one work
// budget that is counted in simulated actions, so that results repeat. Given words join the seeds,
// and nothing worse than the best of them is returned.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "schedule/stream_problem.hpp"

namespace trainwright {

struct SearchPlan {
  uint64_t seed = 0;
  int64_t work = 0;                  // simulated actions
  double stop_at_s = 0.0;            // a lower bound: reaching it ends the search
  std::function<bool(double)> poll;  // told the best value now and then; true stops
};

enum class SearchPhase { none, given, offsets, annealed_offsets, words, repeating };

struct SearchResult {
  Words words;  // empty where nothing legal was found
  Length length;
  SearchPhase winner = SearchPhase::none;
  int32_t winning_start = -1;  // which of the given words, where the winner is `given`
  int64_t work = 0;
  bool interrupted = false;
};

SearchResult search_schedule(const StreamProblem& problem, const std::vector<Words>& starts,
                             const SearchPlan& plan);

// The same from orders that repeat every one to six microbatches (repeating_words.hpp), like those
// starts whose periods are shortest, or from nothing. The best are annealed as words.
SearchResult search_repeating(const StreamProblem& problem, const std::vector<Words>& starts,
                              const SearchPlan& plan);

// From the best start, heated until nothing of it is left and cooled slowly; then from the best as
// cool as any. Where no family is near the best order, runs that stay near one may never find it.
SearchResult search_heated(const StreamProblem& problem, const std::vector<Words>& starts,
                           const SearchPlan& plan);

}  // namespace trainwright
