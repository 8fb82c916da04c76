#include "schedule/one_machine.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace trainwright {

double one_machine_s(std::span<const double> head_s, std::span<const double> work_s,
                     std::span<const double> tail_s) {
  std::vector<int64_t> jobs;
  for (size_t job = 0; job < head_s.size(); ++job)
    if (!std::isinf(tail_s[job])) jobs.push_back(static_cast<int64_t>(job));
  std::sort(jobs.begin(), jobs.end(), [&](int64_t a, int64_t b) {
    return std::pair(head_s[a], a) < std::pair(head_s[b], b);
  });
  std::vector<std::pair<double, double>> ready;  // a heap of tails, each with the work left
  double now_s = 0.0, longest_s = 0.0;
  for (size_t next = 0; next < jobs.size() || !ready.empty();) {
    if (ready.empty()) now_s = std::max(now_s, head_s[jobs[next]]);
    for (; next < jobs.size() && head_s[jobs[next]] <= now_s; ++next) {
      ready.emplace_back(tail_s[jobs[next]], work_s[jobs[next]]);
      std::push_heap(ready.begin(), ready.end());
    }
    std::pop_heap(ready.begin(), ready.end());
    auto [tail, left_s] = ready.back();
    ready.pop_back();
    const double until_s =
        next < jobs.size() ? head_s[jobs[next]] : std::numeric_limits<double>::infinity();
    if (now_s + left_s > until_s) {
      ready.emplace_back(tail, left_s - (until_s - now_s));
      std::push_heap(ready.begin(), ready.end());
      now_s = until_s;
      continue;
    }
    now_s += left_s;
    longest_s = std::max(longest_s, now_s + tail);
  }
  return longest_s;
}

}  // namespace trainwright
