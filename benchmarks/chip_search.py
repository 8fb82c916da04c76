"""Times and answers of the co-design search, as the reports quote them.

python benchmarks/chip_search.py search|six|front|placement|estimates CASE...
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

import trainwright
from trainwright.commands.codesign import Extras

SIX = ("bert-large", "gpt2-xl", "opt-350m", "megatron-gpt2-8.3b", "gpt3-175b", "llama2-7b")
BARE = Extras(pareto=False, details=False)


def say(name: str, **figures: object) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"case": name, **figures, "peak_gib": round(peak, 2)}), flush=True)


def search(models: tuple[str, ...], **options: object) -> None:
    found = trainwright.codesign(list(models), devices=1024, **options).document  # type: ignore[arg-type]
    best = found.best
    say(
        "+".join(models),
        status=str(found.status),
        candidates=found.candidates,
        visited=found.visited,
        search_s=round(found.search_s, 2),
        front_s=found.front_s and round(found.front_s, 1),
        objective=best and best.objective,
        schedules=best and [plan.schedule for plan in best.plans],
        recheck=found.recheck and (found.recheck.sampled, found.recheck.confirmed),
    )


def estimates() -> None:
    from trainwright.chips.space import enumerate_designs
    from trainwright.cluster import Surroundings
    from trainwright.costing.tiled import Product, machine_of, product_times

    space = enumerate_designs()
    rows = np.random.default_rng(0).choice(len(space), 2000, replace=False)
    machines = [machine_of(space.template(int(i)), Surroundings()) for i in rows]
    sizes = (1024, 2048, 4096, 12288)
    products = [Product(m=m, n=n, k=k) for m in sizes for n in sizes for k in sizes[:2]]
    start = time.process_time()
    product_times(machines, products)
    spent = time.process_time() - start
    say("estimates", per_s=round(len(machines) * len(products) / spent))


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "search":
        search(("gpt3-175b",), extras=Extras(pareto=False, details=False, recheck_sample=1000))
    elif what == "six":
        search(SIX, extras=BARE)
    elif what == "front":
        search(("gpt3-175b",), extras=Extras(details=False, jobs=rest[0] if rest else None))
    elif what == "placement":
        case = json.loads(Path(rest[0]).read_text())["input"]
        path = Path(rest[1] if len(rest) > 1 else "placement-case.json")
        path.write_text(json.dumps(case))
        found = trainwright.plan(path, cost_model="phaze-compat").to_dict()
        say("placement", status=found["status"], solver_s=found["solver_s"])
    else:
        estimates()


if __name__ == "__main__":
    main()
