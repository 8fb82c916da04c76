#include "schedule/peak_rows.hpp"

#include <algorithm>
#include <numeric>

namespace trainwright {
namespace {

using Row = std::span<const int64_t>;

Row row_of(Row rows, int64_t number, int64_t columns) {
  return rows.subspan(static_cast<size_t>(number * columns), static_cast<size_t>(columns));
}

bool no_more(Row row, Row other) {
  return std::equal(row.begin(), row.end(), other.begin(),
                    [](int64_t own, int64_t most) { return own <= most; });
}

}  // namespace

std::vector<int64_t> undominated_rows(std::span<const int64_t> rows, int64_t columns) {
  const int64_t count = columns > 0 ? static_cast<int64_t>(rows.size()) / columns : 0;
  std::vector<int64_t> order(static_cast<size_t>(count)), sums(order.size()), kept;
  std::iota(order.begin(), order.end(), 0);
  for (const int64_t number : order) {
    const Row row = row_of(rows, number, columns);
    sums[number] = std::accumulate(row.begin(), row.end(), int64_t{0});
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sums[a] > sums[b]; });
  // What has more of everything has the larger sum, so that it comes before.
  for (const int64_t number : order) {
    const Row row = row_of(rows, number, columns);
    const bool is_less = std::ranges::any_of(
        kept, [&](int64_t other) { return no_more(row, row_of(rows, other, columns)); });
    if (!is_less) kept.push_back(number);
  }
  return kept;
}

std::vector<int64_t> fullest_rows(std::span<const int32_t> actions, std::span<const int64_t> owned,
                                  const KeptByKind& kinds) {
  const int64_t chunks = static_cast<int64_t>(owned.size()), columns = 3 * chunks;
  const int64_t count = static_cast<int64_t>(actions.size()) / 3;
  std::vector<int64_t> now(static_cast<size_t>(columns), 0), rows;
  for (int64_t i = 0; i < count; ++i) {
    const size_t kind = static_cast<size_t>(actions[3 * i]);
    const int64_t chunk = std::ranges::find(owned, actions[3 * i + 1]) - owned.begin();
    const bool is_own = chunk < chunks;
    if (is_own) {
      now[chunk] += kinds.begins[kind];
      now[chunks + chunk] += kinds.begins[kind];
      now[2 * chunks + chunk] = kinds.hands_on[kind];
    }
    // A forward leaves no more than the action after it begins with, and a weight gradient begins
    // with no more than the action before it does.
    if (kinds.hands_on[kind] || i == 0 || i + 1 == count)
      rows.insert(rows.end(), now.begin(), now.end());
    if (is_own) {
      now[chunk] -= kinds.ends[kind];
      now[chunks + chunk] -= kinds.frees[kind];
      now[2 * chunks + chunk] = 0;
    }
  }
  const int64_t found = columns > 0 ? static_cast<int64_t>(rows.size()) / columns : 0;
  std::vector<int64_t> order(static_cast<size_t>(found));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    return std::ranges::lexicographical_compare(row_of(rows, a, columns), row_of(rows, b, columns));
  });
  const auto alike = std::ranges::unique(order, [&](int64_t a, int64_t b) {
    return std::ranges::equal(row_of(rows, a, columns), row_of(rows, b, columns));
  });
  order.erase(alike.begin(), alike.end());
  const auto picked = [&](const std::vector<int64_t>& from, const std::vector<int64_t>& numbers) {
    std::vector<int64_t> some;
    for (const int64_t number : numbers) {
      const Row row = row_of(from, number, columns);
      some.insert(some.end(), row.begin(), row.end());
    }
    return some;
  };
  const std::vector<int64_t> distinct = picked(rows, order);
  return picked(distinct, undominated_rows(distinct, columns));
}

}  // namespace trainwright
