// Instants of one rank that can be its fullest, as counts, whatever the bytes are.
//
// At an action a rank keeps, of each of its c chunks, microbatches until their input gradient, and
// until their weight gradient, and the transients of the action lie beside: a row of 3c counts. One
// that holds no more of anything than another is never the fullest. O(k² c) for k rows at the most;
// most comparisons end with the first count that is larger.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// What kinds of actions do with activations of their chunk, [kinds] each, 0 or 1: these come with
// the action, go with it, the rest goes with it, and transients lie beside it.
struct KeptByKind {
  std::span<const int64_t> begins;
  std::span<const int64_t> ends;
  std::span<const int64_t> frees;
  std::span<const int64_t> hands_on;
};

// Of distinct rows [k, columns] those of which no other has at least as much of everything, by
// number: the largest sum first, of equal ones the first.
std::vector<int64_t> undominated_rows(std::span<const int64_t> rows, int64_t columns);

// Such rows of a rank's order [n, 3] of kind, stage and microbatch, of the chunks `owned` [c]:
// [k, 3c], counts of all chunks in turn. Actions on stages of others keep nothing.
std::vector<int64_t> fullest_rows(std::span<const int32_t> actions, std::span<const int64_t> owned,
                                  const KeptByKind& kinds);

}  // namespace trainwright
