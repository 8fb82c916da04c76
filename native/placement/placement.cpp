#include "placement/placement.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace trainwright {

namespace {

constexpr double kTie = 1e-12;
constexpr int64_t kArcsBetweenPolls = 2'000'000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Label {
  double load_s;
  double bytes;
};

Label join(Label a, Label b) { return {std::max(a.load_s, b.load_s), std::max(a.bytes, b.bytes)}; }

void keep(std::vector<Label>& front, Label added) {
  for (const Label& other : front) {
    if (other.load_s <= added.load_s && other.bytes <= added.bytes) return;
  }
  std::erase_if(front, [&](const Label& other) {
    return added.load_s <= other.load_s && added.bytes <= other.bytes;
  });
  front.push_back(added);
}

// The fronts of all cuts for one number of stages.
struct Level {
  std::vector<int64_t> offset;
  std::vector<Label> labels;
};

// For each number of microbatches per replica the fewest replicas: more only synchronise more.
std::vector<int64_t> fewest_replicas(const PlacementRules& rules) {
  std::vector<int64_t> degrees;
  const int64_t n = rules.num_microbatches;
  for (int64_t d = 1; d <= rules.max_data_parallel; d = ceil_div(n, ceil_div(n, d) - 1)) {
    degrees.push_back(d);
    if (ceil_div(n, d) == 1) break;
  }
  return degrees;
}

struct Choice {
  double time_s = kInfinity;
  int64_t data_parallel = 0, num_stages = 0, num_narrow = 0;
};

// All suffixes whose stages hold at most `cap` microbatches, and the best plans they make.
class Sweep {
 public:
  Sweep(const StageGraph& graph, const PlacementRules& rules, int64_t cap, double cutoff_s,
        const std::function<bool()>& poll)
      : graph_(graph),
        rules_(rules),
        cap_(cap),
        cutoff_s_(cutoff_s),
        poll_(poll),
        num_cuts_(graph.num_cuts()),
        width_(rules.max_narrow + 1),
        scratch_(static_cast<size_t>(width_)) {
    Level end;
    end.offset.assign(static_cast<size_t>(num_cuts_ * width_ + 1), 0);
    std::fill(end.offset.end() - width_, end.offset.end(), 1);
    end.labels.push_back({0.0, 0.0});
    levels_.push_back(std::move(end));
    list_data_degrees();
  }

  const Choice& run() {
    for (int64_t s = 1; s <= rules_.max_stages && fewest_devices(s) <= rules_.num_devices; ++s) {
      if (!extend(s)) break;
      choose(s);
    }
    return best_;
  }

  bool stopped() const { return stopped_; }

  // Stages of a plan as good as `choice`, each as short as it can be from the front.
  std::vector<int64_t> decode(const Choice& choice) const {
    std::vector<int64_t> arcs;
    Label taken{0.0, 0.0};
    int32_t cut = 0;
    int64_t narrow = choice.num_narrow;
    for (int64_t s = choice.num_stages; s > 0; --s) {
      const int64_t at = next_arc(choice, cut, s, narrow, taken);
      const StageArc& arc = graph_.arcs[static_cast<size_t>(at)];
      taken = join(taken, label_of(cut, arc, s));
      narrow -= is_narrow(arc);
      cut = arc.target;
      arcs.push_back(at);
    }
    return arcs;
  }

 private:
  void list_data_degrees() {
    for (const int64_t d : fewest_replicas(rules_)) {
      const int64_t share = ceil_div(rules_.num_microbatches, d);
      if (share <= cap_ || !rules_.cap_in_flight) data_degrees_.push_back(d);
    }
  }

  int64_t devices(int64_t s, int64_t q) const {
    return rules_.tensor_parallel * s - (rules_.tensor_parallel - 1) * q;
  }

  int64_t fewest_devices(int64_t s) const { return devices(s, std::min(s, rules_.max_narrow)); }

  // Rounds of the pipeline with s stages on as many replicas as could be: no plan has fewer.
  double least_rounds(int64_t s) const {
    const int64_t most = std::min(rules_.num_devices / fewest_devices(s), rules_.max_data_parallel);
    if (most < 1) return kInfinity;
    return static_cast<double>(ceil_div(rules_.num_microbatches, most) + s - 1);
  }

  bool is_narrow(const StageArc& arc) const { return arc.narrow && rules_.tensor_parallel > 1; }

  Label label_of(int32_t source, const StageArc& arc, int64_t s) const {
    const int64_t held = std::min(s, cap_);
    const double load_s = held <= arc.plain_until        ? arc.plain_s
                          : held <= arc.recomputed_until ? arc.recomputed_s
                                                         : kInfinity;
    const bool synchronised = source == 0 || !rules_.sync_first_stage;
    return {load_s, synchronised ? arc.parameter_bytes : 0.0};
  }

  std::pair<const Label*, const Label*> front(int32_t cut, int64_t s, int64_t q) const {
    const Level& level = levels_[static_cast<size_t>(s)];
    const auto at = static_cast<size_t>(cut * width_ + q);
    return {level.labels.data() + level.offset[at], level.labels.data() + level.offset[at + 1]};
  }

  bool extend(int64_t s) {
    const double limit_s = std::min(cutoff_s_, best_.time_s) * (1 + kTie);
    const double whole_s = limit_s / least_rounds(s), part_s = limit_s / least_rounds(s + 1);
    Level level;
    level.offset.push_back(0);
    for (int32_t cut = 0; cut < num_cuts_; ++cut) {
      gather(cut, s, cut == 0 ? whole_s : part_s);
      if (stopped_) return false;
      for (std::vector<Label>& found : scratch_) {
        level.labels.insert(level.labels.end(), found.begin(), found.end());
        level.offset.push_back(static_cast<int64_t>(level.labels.size()));
        found.clear();
      }
    }
    levels_.push_back(std::move(level));
    return !levels_.back().labels.empty();
  }

  void gather(int32_t cut, int64_t s, double most_s) {
    const auto begin = static_cast<size_t>(cut);
    arcs_seen_ += graph_.arc_offset[begin + 1] - graph_.arc_offset[begin];
    if (arcs_seen_ > kArcsBetweenPolls) {
      arcs_seen_ = 0;
      stopped_ = poll_ && poll_();
    }
    for (int64_t a = graph_.arc_offset[static_cast<size_t>(cut)];
         a < graph_.arc_offset[static_cast<size_t>(cut) + 1]; ++a) {
      const StageArc& arc = graph_.arcs[static_cast<size_t>(a)];
      const Label own = label_of(cut, arc, s);
      if (own.load_s > most_s || own.load_s == kInfinity) continue;
      const int64_t narrow = is_narrow(arc);
      for (int64_t q = 0; q + narrow < width_; ++q) {
        const auto [first, last] = front(arc.target, s - 1, q);
        for (const Label* label = first; label != last; ++label) {
          if (label->load_s <= most_s) {
            keep(scratch_[static_cast<size_t>(q + narrow)], join(own, *label));
          }
        }
      }
    }
  }

  double rounds(int64_t d, int64_t s) const {
    return static_cast<double>(ceil_div(rules_.num_microbatches, d) + s - 1);
  }

  double time_s(Label label, int64_t d, int64_t s) const {
    const double replicas = static_cast<double>(d);
    return label.load_s * rounds(d, s) + rules_.sync_factor * (replicas - 1) * label.bytes /
                                             (rules_.bandwidth_bytes_per_s * replicas);
  }

  void choose(int64_t s) {
    for (int64_t q = 0; q < width_; ++q) {
      const auto [first, last] = front(0, s, q);
      if (first == last) continue;
      const int64_t most = rules_.num_devices / devices(s, q);
      for (const int64_t d : data_degrees_) {
        if (d > most) break;
        for (const Label* label = first; label != last; ++label) {
          offer({time_s(*label, d, s), d, s, q});
        }
      }
    }
  }

  void offer(const Choice& choice) {
    const double time_s = choice.time_s, best_s = best_.time_s;
    if (time_s > cutoff_s_ * (1 + kTie)) return;
    const bool faster = time_s < best_s * (1 - kTie) || best_s == kInfinity;
    const bool alike = time_s <= best_s * (1 + kTie);
    if (faster || (alike && choice.data_parallel < best_.data_parallel)) best_ = choice;
  }

  int64_t next_arc(const Choice& choice, int32_t cut, int64_t s, int64_t narrow,
                   Label taken) const {
    for (int64_t a = graph_.arc_offset[static_cast<size_t>(cut)];
         a < graph_.arc_offset[static_cast<size_t>(cut) + 1]; ++a) {
      const StageArc& arc = graph_.arcs[static_cast<size_t>(a)];
      const Label own = join(taken, label_of(cut, arc, s));
      const int64_t rest = narrow - is_narrow(arc);
      if (rest < 0 || own.load_s == kInfinity) continue;
      const auto [first, last] = front(arc.target, s - 1, rest);
      for (const Label* label = first; label != last; ++label) {
        const Label all = join(own, *label);
        if (time_s(all, choice.data_parallel, choice.num_stages) <= choice.time_s * (1 + kTie)) {
          return a;
        }
      }
    }
    throw std::logic_error("a placement was found without its stages");
  }

  const StageGraph& graph_;
  const PlacementRules& rules_;
  int64_t cap_;
  double cutoff_s_;
  const std::function<bool()>& poll_;
  int64_t arcs_seen_ = 0;
  bool stopped_ = false;
  int64_t num_cuts_;
  int64_t width_;
  std::vector<std::vector<Label>> scratch_;
  std::vector<Level> levels_;
  std::vector<int64_t> data_degrees_;
  Choice best_;
};

}  // namespace

PlacedStages place(const StageGraph& graph, const PlacementRules& rules, double cutoff_s,
                   const std::function<bool()>& poll) {
  PlacedStages found;
  // Microbatches of a replica bound those in flight only where they are fewer than the stages.
  std::vector<int64_t> caps{std::max(rules.max_stages, rules.num_microbatches)};
  for (const int64_t d : fewest_replicas(rules)) {
    const int64_t share = ceil_div(rules.num_microbatches, d);
    const bool helps = share < rules.max_stages && rules.num_devices / d > share;
    if (rules.cap_in_flight && helps) caps.push_back(share);
  }
  for (const int64_t cap : caps) {
    Sweep sweep(graph, rules, cap, std::min(cutoff_s, found.time_s), poll);
    const Choice& choice = sweep.run();
    const bool better = choice.time_s < found.time_s * (1 - kTie) || found.data_parallel == 0;
    if (choice.data_parallel > 0 && better) {
      found = {choice.time_s, choice.data_parallel, sweep.decode(choice)};
    }
    if (sweep.stopped()) {
      found.stopped = true;
      break;
    }
  }
  return found;
}

}  // namespace trainwright
