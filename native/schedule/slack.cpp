// The second half of simulate.hpp: latest starts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "schedule/simulate.hpp"

namespace trainwright {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class LatestStarts {
 public:
  LatestStarts(const Orders& orders, const ActionCosts& costs, std::span<const double> deadline_s,
               const Simulation& simulation, std::span<const int64_t> sequence)
      : orders_(orders),
        sequence_(sequence),
        simulation_(simulation),
        stages_(orders.num_stages()),
        microbatches_(orders.num_microbatches),
        busy_fraction_(costs.model == TransferModel::blocking ? costs.blocking_fraction : 0.0),
        transfers_(orders, costs),
        paired_(overlapped_pairs(orders, costs)),
        rank_latest_s_(deadline_s.begin(), deadline_s.end()),
        latest_{std::vector<double>(stages_ * microbatches_, kNever),
                std::vector<double>(stages_ * microbatches_, kNever)} {
    if (costs.model == TransferModel::link)
      link_latest_s_.assign(orders.num_ranks() * orders.num_ranks(), kNever);
  }

  LatestHandovers handovers() {
    if (is_plain()) {
      for (auto row = sequence_.rbegin(); row != sequence_.rend(); ++row) visit_plain(*row);
      return std::move(latest_);
    }
    starts();
    return std::move(latest_);
  }

  std::vector<double> starts() {
    latest_end_s_.resize(orders_.actions.size());
    for (auto row = sequence_.rbegin(); row != sequence_.rend(); ++row) visit(*row);
    for (size_t row = 0; row < latest_end_s_.size(); ++row) latest_end_s_[row] -= duration_s(row);
    return std::move(latest_end_s_);
  }

 private:
  // Transfers neither contend nor occupy a rank, and no pair overlaps.
  bool is_plain() const {
    return link_latest_s_.empty() && busy_fraction_ == 0.0 && paired_.empty();
  }

  bool begins_pair(int64_t row) const { return !paired_.empty() && !std::isinf(paired_[row]); }

  void visit_plain(int64_t row) {
    const auto& a = orders_.actions[row];
    const int64_t at = a.stage * microbatches_ + a.microbatch;
    double& rank_latest_s = rank_latest_s_[rank_of(a.stage)];
    rank_latest_s = std::min(rank_latest_s, latest_handover(a)) - duration_s(row);
    if (a.kind == kForward) latest_.forward_s[at] = rank_latest_s;
    if (a.kind == kInputGrad || a.kind == kBackward) latest_.backward_s[at] = rank_latest_s;
  }

  double duration_s(int64_t row) const { return simulation_.end_s[row] - simulation_.start_s[row]; }

  int64_t rank_of(int64_t stage) const { return orders_.rank_of_stage[stage]; }

  void visit(int64_t row) {
    const auto& a = orders_.actions[row];
    const bool first_of_pair = begins_pair(row);
    const bool second_of_pair = row > 0 && begins_pair(row - 1);
    const double sending_s = busy_fraction_ * transfer_of(a);
    const double rank_latest_s = rank_latest_s_[rank_of(a.stage)] - sending_s;
    double end_s = std::min(rank_latest_s, latest_handover(a));
    if (first_of_pair) {
      end_s = std::min(end_s, latest_end_s_[row + 1] - sending_s);
      settle(row + 1, end_s);
    }
    settle(row, end_s);
    if (!second_of_pair) leave_rank(row, first_of_pair);
  }

  // When the output of `a` must be ready so that its consumer keeps its latest start.
  double latest_handover(const ActionRow& a) {
    const int64_t at = a.stage * microbatches_ + a.microbatch;
    if (a.kind == kForward && a.stage + 1 < stages_)
      return handover(a, a.stage + 1, latest_.forward_s[at + microbatches_]);
    if ((a.kind == kInputGrad || a.kind == kBackward) && a.stage > 0)
      return handover(a, a.stage - 1, latest_.backward_s[at - microbatches_]);
    return kNever;
  }

  double handover(const ActionRow& a, int64_t neighbour, double consumer_latest_s) {
    const double transfer_s = transfer_of(a);
    if (link_latest_s_.empty() || transfer_s == 0.0) return consumer_latest_s - transfer_s;
    double& link_s = link_latest_s_[rank_of(a.stage) * orders_.num_ranks() + rank_of(neighbour)];
    link_s = std::min(link_s, consumer_latest_s) - transfer_s;
    return link_s;
  }

  double transfer_of(const ActionRow& a) const {
    if (a.kind == kForward) return transfers_.forward_s[a.stage];
    if (a.kind == kInputGrad || a.kind == kBackward) return transfers_.backward_s[a.stage];
    return 0.0;
  }

  // How long receiving the input of `a` occupies its rank before it starts.
  double receive_of(const ActionRow& a) const {
    if (a.kind == kForward) return a.stage > 0 ? transfers_.forward_s[a.stage - 1] : 0.0;
    if (a.kind == kInputGrad || a.kind == kBackward)
      return a.stage + 1 < stages_ ? transfers_.backward_s[a.stage + 1] : 0.0;
    return 0.0;
  }

  void settle(int64_t row, double end_s) {
    const auto& a = orders_.actions[row];
    const int64_t at = a.stage * microbatches_ + a.microbatch;
    const double start_s = end_s - duration_s(row);
    latest_end_s_[row] = end_s;
    if (a.kind == kForward) latest_.forward_s[at] = start_s;
    if (a.kind == kInputGrad || a.kind == kBackward) latest_.backward_s[at] = start_s;
  }

  void leave_rank(int64_t row, bool pair) {
    const auto& a = orders_.actions[row];
    double receive_s = receive_of(a);
    if (pair) receive_s += receive_of(orders_.actions[row + 1]);
    const double start_s = latest_end_s_[row] - duration_s(row);
    rank_latest_s_[rank_of(a.stage)] = start_s - busy_fraction_ * receive_s;
  }

  const Orders& orders_;
  const std::span<const int64_t> sequence_;
  const Simulation& simulation_;
  const int64_t stages_, microbatches_;
  const double busy_fraction_;
  const Transfers transfers_;
  const std::vector<double> paired_;
  std::vector<double> latest_end_s_;
  std::vector<double> rank_latest_s_;  // latest end of whatever comes before on the rank
  LatestHandovers latest_;
  std::vector<double> link_latest_s_;
};

}  // namespace

std::vector<double> latest_starts(const Orders& orders, const ActionCosts& costs,
                                  std::span<const double> deadline_s) {
  if (!orders.is_plain()) throw std::invalid_argument("latest starts need plain orders");
  std::vector<int64_t> sequence;
  const Simulation simulation = simulate(orders, costs, &sequence);
  return LatestStarts(orders, costs, deadline_s, simulation, sequence).starts();
}

LatestHandovers latest_handovers(const Orders& orders, const ActionCosts& costs,
                                 std::span<const double> deadline_s, const Simulation& simulation,
                                 std::span<const int64_t> sequence) {
  return LatestStarts(orders, costs, deadline_s, simulation, sequence).handovers();
}

}  // namespace trainwright
