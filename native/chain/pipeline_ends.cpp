#include "chain/pipeline_ends.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>

namespace trainwright {

namespace {

constexpr double kUnknown = -1.0;

struct Transfer {
  int32_t stage;
  double duration_s;
};

// The last ends of one kind of action of a stage's replicas; how many of each are done.
class Ends {
 public:
  Ends(int64_t replicas, int64_t window)
      : replicas_(replicas),
        mask_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(window))) - 1),
        done_(static_cast<size_t>(replicas), 0),
        ends_s_(static_cast<size_t>(replicas * (mask_ + 1))) {}

  double of(int64_t microbatch) const {
    const int64_t replica = replicas_ == 1 ? 0 : microbatch % replicas_;
    const int64_t count = replicas_ == 1 ? microbatch : microbatch / replicas_;
    if (count >= done_[static_cast<size_t>(replica)]) return kUnknown;
    return ends_s_[place(replica, count)];
  }

  int64_t done(int64_t replica) const { return done_[static_cast<size_t>(replica)]; }

  void add(int64_t replica, double end_s) {
    int64_t& done = done_[static_cast<size_t>(replica)];
    ends_s_[place(replica, done)] = end_s;
    ++done;
  }

 private:
  size_t place(int64_t replica, int64_t count) const {
    return static_cast<size_t>(replica * (mask_ + 1) + (count & mask_));
  }

  int64_t replicas_;
  int64_t mask_;
  std::vector<int64_t> done_;
  std::vector<double> ends_s_;
};

class Sweep {
 public:
  Sweep(const OneFOneBPipeline& pipeline, int64_t num_microbatches)
      : pipeline_(pipeline),
        num_microbatches_(num_microbatches),
        feeds_(pipeline.forward_s.size()),
        feeders_(feeds_.size()) {
    for (size_t i = 0; i < feeds_.size(); ++i) connect(i);
    for (size_t i = 0; i < feeds_.size(); ++i) {
      forwards_.emplace_back(pipeline.replicas[i], forward_window(i));
      backwards_.emplace_back(pipeline.replicas[i], backward_window(i));
      clocks_s_.emplace_back(static_cast<size_t>(pipeline.replicas[i]), 0.0);
    }
  }

  std::vector<double> run() {
    const int64_t num_stages = static_cast<int64_t>(feeds_.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t i = 0; i < num_stages; ++i) moved |= advance(static_cast<size_t>(i));
      for (int64_t i = num_stages; i-- > 0;) moved |= advance(static_cast<size_t>(i));
    }
    std::vector<double> ends_s;
    for (size_t i = 0; i < feeds_.size(); ++i) {
      int64_t done = 0;
      for (int64_t r = 0; r < pipeline_.replicas[i]; ++r) done += backwards_[i].done(r);
      if (done != num_microbatches_) throw std::logic_error("a 1F1B pipeline came to a stop");
      ends_s.push_back(*std::max_element(clocks_s_[i].begin(), clocks_s_[i].end()));
    }
    return ends_s;
  }

 private:
  void connect(size_t i) {
    for (int64_t e = pipeline_.feed_offset[i]; e < pipeline_.feed_offset[i + 1]; ++e) {
      const auto at = static_cast<size_t>(e);
      const int32_t target = pipeline_.feed_target[at];
      feeds_[i].push_back({target, pipeline_.feed_s[at]});
      feeders_[static_cast<size_t>(target)].push_back(
          {static_cast<int32_t>(i), pipeline_.feed_s[at]});
    }
  }

  // A replica's forwards are read until its own backward of the same microbatch.
  int64_t forward_window(size_t i) const { return held(i); }

  // A feeder's replica holds `held` microbatches whose backward it still has to do; among those of
  // one replica here they come every feeder / gcd.
  int64_t backward_window(size_t i) const {
    int64_t window = 1;
    for (const Transfer& feeder : feeders_[i]) {
      const auto f = static_cast<size_t>(feeder.stage);
      const int64_t every =
          pipeline_.replicas[f] / std::gcd(pipeline_.replicas[f], pipeline_.replicas[i]);
      window = std::max(window, (held(f) + 1) * every);
    }
    return std::min(window, share(i, 0) + 1);
  }

  int64_t held(size_t i) const { return std::min(pipeline_.in_flight[i], share(i, 0) + 1); }

  // Microbatches of a replica; the first has the most.
  int64_t share(size_t i, int64_t replica) const {
    const int64_t replicas = pipeline_.replicas[i];
    return (num_microbatches_ - replica + replicas - 1) / replicas;
  }

  bool advance(size_t i) {
    bool moved = false;
    for (int64_t r = 0; r < pipeline_.replicas[i]; ++r) moved |= advance(i, r);
    return moved;
  }

  // Runs one replica until it has to wait.
  bool advance(size_t i, int64_t replica) {
    Ends &forwards = forwards_[i], &backwards = backwards_[i];
    double& clock_s = clocks_s_[i][static_cast<size_t>(replica)];
    const int64_t all = share(i, replica), replicas = pipeline_.replicas[i];
    bool moved = false;
    while (backwards.done(replica) < all) {
      const int64_t ahead = forwards.done(replica), behind = backwards.done(replica);
      const bool is_forward = ahead < all && ahead - behind < pipeline_.in_flight[i];
      const int64_t microbatch = replica + (is_forward ? ahead : behind) * replicas;
      const double ready_s = is_forward ? arrival_s(forwards_, feeders_[i], microbatch)
                                        : arrival_s(backwards_, feeds_[i], microbatch);
      if (ready_s < 0) break;
      const double work_s = is_forward ? pipeline_.forward_s[i] : pipeline_.backward_s[i];
      clock_s = std::max(clock_s, ready_s) + work_s;
      (is_forward ? forwards : backwards).add(replica, clock_s);
      moved = true;
    }
    return moved;
  }

  // When everything needed is there; negative while something is not yet known.
  static double arrival_s(const std::vector<Ends>& ends, const std::vector<Transfer>& sources,
                          int64_t microbatch) {
    double latest_s = 0;
    for (const Transfer& source : sources) {
      const double end_s = ends[static_cast<size_t>(source.stage)].of(microbatch);
      if (end_s < 0) return kUnknown;
      latest_s = std::max(latest_s, end_s + source.duration_s);
    }
    return latest_s;
  }

  const OneFOneBPipeline& pipeline_;
  int64_t num_microbatches_;
  std::vector<std::vector<Transfer>> feeds_;
  std::vector<std::vector<Transfer>> feeders_;
  std::vector<Ends> forwards_;
  std::vector<Ends> backwards_;
  std::vector<std::vector<double>> clocks_s_;
};

}  // namespace

std::vector<double> one_f_one_b_ends_s(const OneFOneBPipeline& pipeline, int64_t num_microbatches) {
  return Sweep(pipeline, num_microbatches).run();
}

}  // namespace trainwright
