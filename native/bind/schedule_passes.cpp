// Bindings of the passes that turn schedules into schedules.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bind/numpy_arrays.hpp"
#include "bind/poll.hpp"
#include "bind/schedule.hpp"
#include "schedule/crossings.hpp"
#include "schedule/cyclic_v.hpp"
#include "schedule/fill_weight_grads.hpp"
#include "schedule/improve_weight_grads.hpp"
#include "schedule/justify.hpp"
#include "schedule/one_machine.hpp"
#include "schedule/order_trials.hpp"
#include "schedule/reorder.hpp"
#include "schedule/two_ranks.hpp"
#include "schedule/zero_bubble.hpp"

namespace nb = nanobind;
using trainwright::ActionRow;
using trainwright::CrossedRank;
using trainwright::FilledOrders;
using trainwright::HeldByStage;
using trainwright::Objective;
using trainwright::OrderTrials;
using trainwright::ReorderedOrders;
using trainwright::numpy::Array;
using trainwright::numpy::asking;
using trainwright::numpy::CostArrays;
using trainwright::numpy::MemoryArrays;
using trainwright::numpy::OrderArrays;
using trainwright::numpy::Poll;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;

namespace {

template <typename Result>
nb::ndarray<nb::numpy, const int32_t, nb::shape<-1, 3>> action_rows(const Result& orders) {
  return {reinterpret_cast<const int32_t*>(orders.actions.data()), {orders.actions.size(), 3}};
}

nb::ndarray<nb::numpy, const int64_t, nb::ndim<1>> rank_offsets(const FilledOrders& orders) {
  return {orders.rank_offsets.data(), {orders.rank_offsets.size()}};
}

// Trials with the arrays that they look at.
struct TrialsOfArrays {
  CostArrays costs;
  MemoryArrays memory;
  OrderTrials trials;

  TrialsOfArrays(const CostArrays& times, const MemoryArrays& bytes, bool span, double enough_s,
                 int64_t sweeps, std::vector<int64_t> held)
      : costs(times),
        memory(bytes),
        trials(costs.view(), memory.view(), span ? Objective::span : Objective::makespan, enough_s,
               sweeps, std::move(held)) {}
};

}  // namespace

void bind_schedule_passes(nb::module_& module) {
  nb::class_<FilledOrders>(module, "FilledOrders")
      .def_ro("complete", &FilledOrders::complete)
      .def_ro("span_s", &FilledOrders::span_s)
      .def_ro("makespan_s", &FilledOrders::makespan_s)
      .def_prop_ro("actions", &action_rows<FilledOrders>, nb::rv_policy::reference_internal)
      .def_prop_ro("rank_offsets", &rank_offsets, nb::rv_policy::reference_internal);

  module.def(
      "fill_weight_grads",
      [](const OrderArrays& orders, const CostArrays& costs, const MemoryArrays& memory,
         double tolerated_idle_s) {
        nb::gil_scoped_release release;
        return trainwright::fill_weight_grads(orders.view(), costs.view(), memory.view(),
                                              tolerated_idle_s);
      },
      nb::arg("orders"), nb::arg("costs"), nb::arg("memory"), nb::kw_only(),
      nb::arg("tolerated_idle_s"));

  module.def(
      "improve_weight_grads",
      [](const OrderArrays& orders, const CostArrays& costs, const MemoryArrays& memory, bool span,
         int64_t budget) {
        nb::gil_scoped_release release;
        return trainwright::improve_weight_grads(
            orders.view(), costs.view(), memory.view(),
            span ? trainwright::Objective::span : trainwright::Objective::makespan, budget);
      },
      nb::arg("orders"), nb::arg("costs"), nb::arg("memory"), nb::kw_only(), nb::arg("span"),
      nb::arg("budget"));

  nb::class_<ReorderedOrders>(module, "ReorderedOrders")
      .def_ro("complete", &ReorderedOrders::complete)
      .def_prop_ro("actions", &action_rows<ReorderedOrders>, nb::rv_policy::reference_internal);

  module.def(
      "reorder",
      [](const OrderArrays& orders, const CostArrays& costs, const MemoryArrays& memory,
         double from_s, double until_s, int64_t sweeps) {
        nb::gil_scoped_release release;
        return trainwright::reorder(orders.view(), costs.view(), memory.view(),
                                    {.from_s = from_s, .until_s = until_s, .sweeps = sweeps});
      },
      nb::arg("orders"), nb::arg("costs"), nb::arg("memory"), nb::kw_only(), nb::arg("from_s"),
      nb::arg("until_s"), nb::arg("sweeps"));

  module.def(
      "justify",
      [](const OrderArrays& orders, const CostArrays& costs, const MemoryArrays& memory,
         const Array<double>& after_s, int64_t most_activations, int64_t rounds) {
        nb::gil_scoped_release release;
        const trainwright::Orders given = orders.view();
        const trainwright::ActionCosts times = costs.view();
        if (std::cmp_not_equal(after_s.size(), given.num_ranks()))
          throw std::invalid_argument("every rank has a time after its last action");
        if (!trainwright::can_justify(given, times))
          return ReorderedOrders{.actions = {given.actions.begin(), given.actions.end()}};
        return trainwright::justify(
            given, times, memory.view(),
            {.after_s = span_of(after_s), .most_activations = most_activations}, rounds);
      },
      nb::arg("orders"), nb::arg("costs"), nb::arg("memory"), nb::kw_only(), nb::arg("after_s"),
      nb::arg("most_activations"), nb::arg("rounds"));

  nb::class_<TrialsOfArrays>(module, "OrderTrials")
      .def(nb::init<const CostArrays&, const MemoryArrays&, bool, double, int64_t,
                    std::vector<int64_t>>(),
           nb::arg("costs"), nb::arg("memory"), nb::kw_only(), nb::arg("span"), nb::arg("enough_s"),
           nb::arg("sweeps"), nb::arg("held"))
      .def(
          "add",
          [](TrialsOfArrays& self, const OrderArrays& order) {
            nb::gil_scoped_release release;
            return self.trials.add(order.view());
          },
          nb::arg("order"))
      .def(
          "best",
          [](const TrialsOfArrays& self, int64_t num_finalists, int64_t rounds,
             int64_t simulations) {
            nb::gil_scoped_release release;
            return self.trials.best(
                {.num_finalists = num_finalists, .rounds = rounds, .simulations = simulations});
          },
          nb::kw_only(), nb::arg("num_finalists"), nb::arg("rounds"), nb::arg("simulations"));

  module.def(
      "zero_bubble_orders",
      [](int64_t num_microbatches, const CostArrays& costs, const MemoryArrays& memory,
         bool late_warm_up, bool prefer_backward, bool tolerant) {
        nb::gil_scoped_release release;
        return trainwright::zero_bubble_orders(num_microbatches, costs.view(), memory.view(),
                                               {.late_warm_up = late_warm_up,
                                                .prefer_backward = prefer_backward,
                                                .tolerant = tolerant});
      },
      nb::arg("num_microbatches"), nb::arg("costs"), nb::arg("memory"), nb::kw_only(),
      nb::arg("late_warm_up"), nb::arg("prefer_backward"), nb::arg("tolerant"));

  module.def(
      "cyclic_v",
      [](const Table<double>& duration_s, const Array<double>& forward_transfer_s,
         const Array<double>& backward_transfer_s, const Table<double>& delta_bytes,
         const Table<double>& transient_bytes, const Array<double>& room_bytes,
         double longest_period_s, int64_t width, int64_t rounds, bool exact) {
        const size_t p = room_bytes.size();
        if (duration_s.shape(0) != p || duration_s.shape(1) != 6 || delta_bytes.shape(0) != p ||
            delta_bytes.shape(1) != 6 || transient_bytes.shape(0) != p ||
            transient_bytes.shape(1) != 6 || forward_transfer_s.size() + 1 != 2 * p ||
            backward_transfer_s.size() + 1 != 2 * p) {
          throw std::invalid_argument(
              "a V of p ranks takes 6 times, changes and transients a rank and 2p - 1 transfers");
        }
        trainwright::CyclicV found;
        {
          nb::gil_scoped_release release;
          found = trainwright::cyclic_v({.duration_s = span_of(duration_s),
                                         .forward_transfer_s = span_of(forward_transfer_s),
                                         .backward_transfer_s = span_of(backward_transfer_s),
                                         .delta_bytes = span_of(delta_bytes),
                                         .transient_bytes = span_of(transient_bytes),
                                         .room_bytes = span_of(room_bytes),
                                         .longest_period_s = longest_period_s,
                                         .width = width,
                                         .rounds = rounds,
                                         .exact = exact});
        }
        return std::pair(found.period_s, trainwright::numpy::to_numpy(std::move(found.start_s)));
      },
      nb::kw_only(), nb::arg("duration_s"), nb::arg("forward_transfer_s"),
      nb::arg("backward_transfer_s"), nb::arg("delta_bytes"), nb::arg("transient_bytes"),
      nb::arg("room_bytes"), nb::arg("longest_period_s"), nb::arg("width"), nb::arg("rounds"),
      nb::arg("exact"));

  module.def(
      "one_machine_s",
      [](const Array<double>& head_s, const Array<double>& work_s, const Array<double>& tail_s) {
        if (work_s.size() != head_s.size() || tail_s.size() != head_s.size())
          throw std::invalid_argument("heads, work and tails must be of the same jobs");
        return trainwright::one_machine_s(span_of(head_s), span_of(work_s), span_of(tail_s));
      },
      nb::arg("head_s"), nb::arg("work_s"), nb::arg("tail_s"));

  module.def(
      "crossings_s",
      [](std::vector<double> forward_s, std::vector<double> input_grad_s,
         std::vector<double> weight_grad_s, std::vector<double> forward_gap_s,
         std::vector<double> input_grad_gap_s, std::vector<double> beyond_forward_s,
         std::vector<double> beyond_input_grad_s, std::vector<double> down_s,
         std::vector<double> up_s, const std::vector<std::vector<double>>& pending,
         const std::vector<std::vector<double>>& late, const std::vector<double>& room,
         double head_s, double own_head_s, double tail_s, int64_t num_microbatches,
         int64_t num_labels, int64_t most_labels, const Poll& poll) {
        const size_t stages = forward_s.size(), beyond = beyond_forward_s.size();
        const auto sized = [](const std::vector<double>& of, size_t size) {
          return of.size() == size;
        };
        bool right = stages > 0 && sized(input_grad_s, stages) && sized(weight_grad_s, stages) &&
                     sized(forward_gap_s, stages - 1) && sized(input_grad_gap_s, stages - 1) &&
                     sized(beyond_input_grad_s, beyond) && sized(down_s, beyond) &&
                     sized(up_s, beyond) && pending.size() == room.size() &&
                     late.size() == room.size();
        std::vector<HeldByStage> held;
        for (size_t h = 0; right && h < room.size(); ++h) {
          right = sized(pending[h], stages) && sized(late[h], stages);
          held.push_back({pending[h], late[h], room[h]});
        }
        if (!right) throw std::invalid_argument("tables must be of the same stages");
        const CrossedRank rank{.forward_s = std::move(forward_s),
                               .input_grad_s = std::move(input_grad_s),
                               .weight_grad_s = std::move(weight_grad_s),
                               .forward_gap_s = std::move(forward_gap_s),
                               .input_grad_gap_s = std::move(input_grad_gap_s),
                               .beyond = {.forward_s = std::move(beyond_forward_s),
                                          .input_grad_s = std::move(beyond_input_grad_s),
                                          .down_s = std::move(down_s),
                                          .up_s = std::move(up_s)},
                               .held = std::move(held),
                               .head_s = head_s,
                               .own_head_s = own_head_s,
                               .tail_s = tail_s};
        const std::function<bool()> ask = asking(poll);
        nb::gil_scoped_release release;
        return trainwright::crossings_s(rank, num_microbatches, num_labels, most_labels, ask);
      },
      nb::kw_only(), nb::arg("forward_s"), nb::arg("input_grad_s"), nb::arg("weight_grad_s"),
      nb::arg("forward_gap_s"), nb::arg("input_grad_gap_s"), nb::arg("beyond_forward_s"),
      nb::arg("beyond_input_grad_s"), nb::arg("down_s"), nb::arg("up_s"), nb::arg("pending"),
      nb::arg("late"), nb::arg("room"), nb::arg("head_s"), nb::arg("own_head_s"), nb::arg("tail_s"),
      nb::arg("num_microbatches"), nb::arg("num_labels"), nb::arg("most_labels"),
      nb::arg("poll") = nb::none());

  module.def(
      "two_ranks_s",
      [](std::vector<double> forward_s, std::vector<double> input_grad_s,
         std::vector<double> weight_grad_s, std::vector<double> forward_transfer_s,
         std::vector<double> backward_transfer_s, const std::vector<std::vector<double>>& pending,
         const std::vector<std::vector<double>>& late, const std::vector<std::vector<double>>& room,
         int64_t rank, int64_t num_microbatches, bool makespan, double enough_s, int64_t num_labels,
         const Poll& poll) {
        const size_t stages = forward_s.size(), ranks = stages / 2;
        const auto sized = [](const std::vector<double>& of, size_t size) {
          return of.size() == size;
        };
        bool right = stages % 2 == 0 && rank >= 0 && static_cast<size_t>(rank) + 1 < ranks &&
                     sized(input_grad_s, stages) && sized(weight_grad_s, stages) &&
                     sized(forward_transfer_s, stages - 1) &&
                     sized(backward_transfer_s, stages - 1) && pending.size() == room.size() &&
                     late.size() == room.size();
        std::vector<trainwright::Fold::Held> held;
        for (size_t h = 0; right && h < room.size(); ++h) {
          right = sized(pending[h], stages) && sized(late[h], stages) && sized(room[h], ranks);
          held.push_back({pending[h], late[h], room[h]});
        }
        if (!right) throw std::invalid_argument("tables must be of the same V");
        const trainwright::Fold fold{.forward_s = std::move(forward_s),
                                     .input_grad_s = std::move(input_grad_s),
                                     .weight_grad_s = std::move(weight_grad_s),
                                     .forward_transfer_s = std::move(forward_transfer_s),
                                     .backward_transfer_s = std::move(backward_transfer_s),
                                     .held = std::move(held)};
        const std::function<bool()> ask = asking(poll);
        nb::gil_scoped_release release;
        const auto [least_s, is_whole] = trainwright::two_ranks_s(
            fold, rank, num_microbatches, makespan, enough_s, num_labels, ask);
        return std::pair(least_s, is_whole);
      },
      nb::kw_only(), nb::arg("forward_s"), nb::arg("input_grad_s"), nb::arg("weight_grad_s"),
      nb::arg("forward_transfer_s"), nb::arg("backward_transfer_s"), nb::arg("pending"),
      nb::arg("late"), nb::arg("room"), nb::arg("rank"), nb::arg("num_microbatches"),
      nb::arg("makespan"), nb::arg("enough_s"), nb::arg("num_labels"),
      nb::arg("poll") = nb::none());
}
