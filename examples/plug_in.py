"""An own partitioner, schedule and cost model, judged as the program's own are."""

from dataclasses import replace

import trainwright as tw
from trainwright.plans import Plan, Stage
from trainwright.plans.schedule import Action, ActionKind, Schedule


def halves(profile, setting, restrictions):
    """Half of the layers and half of the devices each."""
    ids, n = profile.structure.ids, len(profile.structure.ids) // 2
    run = {"data_parallel": setting.num_devices // 2, "tensor_parallel": 1}
    stages = [Stage.uniform(part, ("vanilla",) * len(part), **run) for part in (ids[:n], ids[n:])]
    return Plan(stages=tuple(stages), num_microbatches=setting.num_microbatches)


def one_at_a_time(job):
    """Both passes of a microbatch, then the next one."""
    todo = [(ActionKind[kind], m) for m in range(job.num_microbatches) for kind in "FB"]
    return Schedule.from_orders([[Action(k, r, m) for k, m in todo] for r in range(job.num_ranks)])


def slower(profile):
    """Every layer takes a tenth longer."""
    return replace(profile, costs=replace(profile.costs, duration_s=1.1 * profile.costs.duration_s))


profile = __file__.replace("plug_in.py", "profile.json")
print(tw.plan(profile, devices=8, planner=halves, cost_model=slower))
print(tw.schedule(family=one_at_a_time, ranks=4, microbatches=8))
