"""An own partitioner, schedule and cost model, judged as the program's own are."""

from dataclasses import replace

import trainwright as tw
from trainwright.plans import Plan, Stage
from trainwright.plans.schedule import Action, ActionKind, Schedule


def halves(profile, setting, restrictions):
    """Half of the layers and half of the devices each."""
    ids, stages, n = profile.structure.ids, [], setting.num_devices // 2
    for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
        kept = ("vanilla",) * len(part)
        stages.append(Stage.uniform(part, kept, data_parallel=n, tensor_parallel=1))
    return Plan(stages=tuple(stages), num_microbatches=setting.num_microbatches)


def one_at_a_time(request):
    """Both passes of a microbatch, then the next one."""
    todo = [(ActionKind[kind], m) for m in range(request.num_microbatches) for kind in "FB"]
    return Schedule.from_orders(
        [[Action(k, r, m) for k, m in todo] for r in range(request.num_ranks)]
    )


def slower(profile):
    """Every layer takes a tenth longer."""
    return replace(profile, costs=replace(profile.costs, duration_s=1.1 * profile.costs.duration_s))


print(tw.plan("examples/profile.json", devices=8, planner=halves, cost_model=slower))
print(tw.schedule(family=one_at_a_time, ranks=4, microbatches=8))
