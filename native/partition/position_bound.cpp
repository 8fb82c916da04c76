#include "partition/position_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "partition/ordered_labels.hpp"

namespace trainwright {
namespace {

// Beyond 64 positions neighbours share a place, and beyond 32 MB of messages more of them do, down
// to 8 places: the bound is looser by what a place cannot tell apart.
constexpr int64_t kMostPlaces = 64;
constexpr int64_t kMostMessages = 4'000'000;
// Effort: cells of messages and costs, a few seconds. It leaves gaps of 2 to 3.3% for 200 to 800
// operators, where one multiplier for all stages left 6 to 11.
constexpr double kMostWork = 4e9;
constexpr int32_t kMostSweeps = 4000;
// The ascent. Any multipliers give a valid bound; these say how soon it stops rising.
constexpr double kFirstStep = 0.05;  // of the step that would reach the plan known
constexpr double kInertia = 0.9;     // of the direction
constexpr int32_t kPatience = 80;    // sweeps without a gain before steps become shorter,
constexpr double kGain = 1e-6;       // of the bound,
constexpr double kShorter = 0.8;     // by this factor
constexpr double kLeastStep = 1e-6;  // of the step that would reach the plan: here the ascent ends
constexpr double kRounding = 1e-9;   // relative; sums here are exact to 1e-12

struct Place {
  int64_t depth, width;  // its first position and how many positions it holds
};

std::vector<Place> places_of(int64_t num_positions, int64_t num_edges) {
  const int64_t room = std::max<int64_t>(8, kMostMessages / std::max<int64_t>(1, num_edges));
  const int64_t count = std::min({num_positions, kMostPlaces, room});
  std::vector<Place> places;
  for (int64_t i = 0, first = 1; i < count; ++i) {  // finer near the end, where depths differ most
    const double share = static_cast<double>(i + 1) / static_cast<double>(count);
    const auto last =
        std::max(i + 1 == count ? num_positions : first,
                 static_cast<int64_t>(static_cast<double>(num_positions) *
                                      (count == num_positions ? share : share * share)));
    places.push_back({first, std::min(last, num_positions) - first + 1});
    first = last + 1;
  }
  return places;
}

// Multipliers of time and memory per place, and what they weigh.
struct Multipliers {
  std::vector<double> time, memory;
};

class Ascent {
 public:
  Ascent(const Instance& instance, double upper_s);
  double run(const Stop& stop);

 private:
  void price_layers();
  double least_time(double bound);
  void follow(double bound, double step);
  void add_loads(const std::vector<int32_t>& labels);
  int32_t num_places() const { return static_cast<int32_t>(places_.size()); }

  const Instance& in_;
  double upper_s_;
  int64_t num_devices_, most_tensor_, least_tensor_;
  std::vector<Place> places_;
  OrderedLabels labels_;
  Multipliers at_;
  std::vector<double> cost_;     // [layers * places], of the cheapest option
  std::vector<int64_t> option_;  // that option
  std::vector<int32_t> tensor_;  // and its degree
  std::vector<double> devices_;  // per place, where the multipliers weigh most
  Multipliers load_, direction_;
};

std::vector<LabelledEdge> edges_of(const Instance& in, double upper_s, double least_tensor) {
  std::vector<LabelledEdge> edges;
  const auto num_edges = in.edges.size();
  for (size_t e = 0; e < num_edges; ++e) {
    double send = std::numeric_limits<double>::infinity(), receive = send;
    for (int32_t slot = 0; slot < in.num_degrees; ++slot) {
      if (in.offers(in.edges[e].source, slot))
        send = std::min(send, in.cut_out_bytes[slot * num_edges + e]);
      if (in.offers(in.edges[e].target, slot))
        receive = std::min(receive, in.cut_in_bytes[slot * num_edges + e]);
    }
    const double unit = least_tensor * in.cut_s_per_byte / upper_s;
    edges.push_back({in.edges[e].source, in.edges[e].target, send * unit, receive * unit});
  }
  return edges;
}

Ascent::Ascent(const Instance& instance, double upper_s)
    : in_(instance),
      upper_s_(upper_s),
      num_devices_(instance.max_devices),
      most_tensor_(instance.problem->tensor_degrees.back()),
      least_tensor_(instance.problem->tensor_degrees.front()),
      places_(places_of(std::min(num_devices_ / least_tensor_, instance.max_sum),
                        static_cast<int64_t>(instance.edges.size()))),
      labels_(instance.num_layers, num_places(),
              edges_of(instance, upper_s, static_cast<double>(least_tensor_))),
      cost_(int64_t{instance.num_layers} * num_places()),
      option_(cost_.size()),
      tensor_(cost_.size()),
      devices_(places_.size()) {
  at_.time.assign(places_.size(), 1.0 / static_cast<double>(num_devices_));
  at_.memory.assign(places_.size(), 0.01 / static_cast<double>(num_devices_));
  direction_.time.assign(places_.size(), 0.0);
  direction_.memory = direction_.time;
}

// The cheapest option of every layer at every place, in units of upper_s and of M.
void Ascent::price_layers() {
  for (int32_t layer = 0; layer < in_.num_layers; ++layer) {
    for (int32_t place = 0; place < num_places(); ++place) {
      const int64_t cell = int64_t{layer} * num_places() + place;
      const double w = at_.time[place] / upper_s_, m = at_.memory[place] / in_.memory_bytes;
      const auto depth = static_cast<double>(places_[place].depth);
      cost_[cell] = std::numeric_limits<double>::infinity();
      for (int32_t slot = 0; slot < in_.num_degrees; ++slot) {
        const int32_t tensor = in_.problem->tensor_degrees[slot];
        const int64_t end = in_.option_first[in_.slot(layer, slot) + 1];
        for (int64_t o = in_.option_first[in_.slot(layer, slot)]; o < end; ++o) {
          const Option& option = in_.options[o];
          const double bytes = option.saved_bytes * depth + option.static_bytes;
          const double price = tensor * (w * option.time_s + m * bytes);
          if (price < cost_[cell]) {
            cost_[cell] = price;
            option_[cell] = o;
            tensor_[cell] = tensor;
          }
        }
      }
    }
  }
}

// The least lambda (in units of upper_s) at which the devices can pay `bound`, and who pays then:
// the dearest places first, each up to its width times the largest degree.
double Ascent::least_time(double bound) {
  std::vector<int32_t> order(places_.size());
  std::iota(order.begin(), order.end(), 0);
  double lambda = 1;
  for (int32_t round = 0; round < 60; ++round) {  // Newton from above, on a convex function
    const auto weight = [&](int32_t i) { return at_.time[i] * lambda + at_.memory[i]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t i, int32_t j) { return weight(i) > weight(j); });
    double left = static_cast<double>(num_devices_), slope = 0, constant = 0;
    for (int32_t i : order) {
      devices_[i] = std::min(left, static_cast<double>(places_[i].width * most_tensor_));
      left -= devices_[i];
      slope += devices_[i] * at_.time[i];
      constant += devices_[i] * at_.memory[i];
    }
    if (slope <= 0) return 0;
    const double next = (bound - constant) / slope;
    if (next <= 0) return 0;
    if (std::abs(next - lambda) <= 1e-13 * lambda) return next;
    lambda = next;
  }
  return 0;  // not settled: nothing is known
}

void Ascent::add_loads(const std::vector<int32_t>& labels) {
  load_.time.assign(places_.size(), 0.0);
  load_.memory = load_.time;
  for (int32_t layer = 0; layer < in_.num_layers; ++layer) {
    const int64_t cell = int64_t{layer} * num_places() + labels[layer];
    const Option& option = in_.options[option_[cell]];
    const auto depth = static_cast<double>(places_[labels[layer]].depth);
    const double bytes = option.saved_bytes * depth + option.static_bytes;
    load_.time[labels[layer]] += tensor_[cell] * option.time_s / upper_s_;
    load_.memory[labels[layer]] += tensor_[cell] * bytes / in_.memory_bytes;
  }
  for (const LabelledEdge& edge : labels_.edges()) {
    if (labels[edge.source] == labels[edge.target]) continue;
    load_.time[labels[edge.source]] += edge.send;
    load_.time[labels[edge.target]] += edge.receive;
  }
}

// Moves the multipliers towards the places that a cheap labelling overloads at time `lambda`.
void Ascent::follow(double lambda, double step) {
  add_loads(labels_.cheap_labels(cost_, at_.time));
  double slope = 0, square = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    slope += devices_[i] * at_.time[i];
    const auto turn = [&](double& direction, double load, double multiplier) {
      direction = kInertia * direction + (1 - kInertia) * load;
      if (multiplier > 0 || direction > 0) square += direction * direction;
    };
    turn(direction_.time[i], load_.time[i] - lambda * devices_[i], at_.time[i]);
    turn(direction_.memory[i], load_.memory[i] - devices_[i], at_.memory[i]);
  }
  if (square <= 0) return;
  const double length = step * std::max(0.0, 1 - lambda) * slope / square;
  for (size_t i = 0; i < places_.size(); ++i) {
    at_.time[i] = std::max(0.0, at_.time[i] + length * direction_.time[i]);
    at_.memory[i] = std::max(0.0, at_.memory[i] + length * direction_.memory[i]);
  }
}

double Ascent::run(const Stop& stop) {
  const double cells =
      static_cast<double>(num_places()) *
      (4.0 * static_cast<double>(labels_.edges().size()) + static_cast<double>(in_.options.size()));
  const double most = std::min<double>(kMostSweeps, kMostWork / std::max(1.0, cells));
  double best = 0, step = kFirstStep;
  Multipliers best_at = at_;
  for (int32_t sweep = 0, idle = 0; sweep < most && step > kLeastStep && !stop(); ++sweep) {
    price_layers();
    const double bound = labels_.sweep(cost_, at_.time);
    const double lambda = std::isfinite(bound) ? least_time(bound) : 0.0;
    idle = lambda > best * (1 + kGain) ? 0 : idle + 1;
    if (lambda > best) {
      best = lambda;
      best_at = at_;
    }
    if (idle > kPatience) {
      step *= kShorter;
      at_ = best_at;
      idle = 0;
    }
    follow(lambda, step);
  }
  return best * (1 - kRounding) * upper_s_;
}

}  // namespace

double position_bound(const Instance& instance, double upper_s, const Stop& stop) {
  const bool is_usable = std::isfinite(upper_s) && upper_s > 0 && instance.num_layers > 0 &&
                         instance.max_sum > 0 && instance.memory_bytes > 0;
  if (!is_usable || instance.max_devices < instance.problem->tensor_degrees.front()) return 0;
  return Ascent(instance, upper_s).run(stop);
}

}  // namespace trainwright
