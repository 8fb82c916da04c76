// How long one rank takes at least when every forward that leaves it must cross, stage by stage,
// the input gradients that come back.
//
// Beyond the last stage b of a rank lie stages b+1 .. S-1. There F(j) goes down and I(i) of an
// earlier microbatch comes up. On each stage one of the two is first, and if I(i) is first on a
// stage, it is first on all deeper ones. So a number n of the L = S-1-b stages says how they cross:
// on the n deepest I(i) is first, on the other L-n F(j) is. With
//   s  end of F_b(j)     g  end of F_(S-1)(j)     h  start of I_(S-1)(i)   e  end of I_(b+1)(i)
//   A(q)  F down the first q of the stages, then I up them, transfers to and from the rank included
//   B(n)  I up the last n of them, then F down them
// the crossing takes time on both ways:
//   e >= s + A(L-n)  if n < L,    g >= h + B(n)  if n > 0,    h >= g  if n = 0.
// Whatever the schedule, where times do not fit, somebody waits; and who waits holds memory.
//
// The bound is the shortest order of the rank's own actions under these: F, I and W of its stages
// within its memory, one at a time, gaps between stages as delays, and L+1 ways to cross for every
// pair. Orders are extended action by action. A label is what counts: how often each action has
// run, when the rank is free, and for each microbatch on its way the earliest h and e. Of a new
// F(j) only g is chosen: the earliest g, or h + B(n) of some pair that would wait longer otherwise;
// every pair then has the largest n that g allows. A label that is nowhere earlier than another
// with equal counts is dropped; where there are more than may be kept, two are replaced by their
// componentwise minimum, which both can only be later than. So the result is a lower bound however
// few are kept, for every order, repeating or not.
//
// Microbatches run in order within a stream: all constraints count, so which one is the j-th is of
// no matter.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/way_beyond.hpp"

namespace trainwright {

// What is limited: held from F to I, and from there to W, per stage.
struct HeldByStage {
  std::vector<double> pending;
  std::vector<double> late;
  double room;
};

// A rank with c stages, the L stages beyond its last, and the times between.
struct CrossedRank {
  std::vector<double> forward_s, input_grad_s, weight_grad_s;  // [c]
  std::vector<double> forward_gap_s, input_grad_gap_s;         // [c-1] between stages x and x+1
  BeyondTimes beyond;
  std::vector<HeldByStage> held;
  double head_s;      // before the first forward
  double own_head_s;  // the same, or 0 where only the rank's own window counts
  double tail_s;      // after the last input gradient of the rank's first stage
};

// Seconds that `num_microbatches` take, with about so many labels in all; a few of each state are
// kept in any case. 0 where these are more than `most_labels`, or `poll` says to stop.
double crossings_s(const CrossedRank& rank, int64_t num_microbatches, int64_t num_labels,
                   int64_t most_labels, const std::function<bool()>& poll = {});

}  // namespace trainwright
