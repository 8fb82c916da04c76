"""After the search: the further splits of candidates that may still be better than its best plan.

A candidate is priced with the split of its least bound, but the bound leaves out how bottlenecks
delay each other and what lies after the pipeline in other ranks, so another split may be shorter.
Where bounds leave that open, all splits below the best step are enumerated, simulated in the order
of their bounds, and priced in the order of what was simulated. In a small space this ends with the
best plan of all and a proof; in a large one it ends by effort, and the gap says what is left.

The effort is counted, not timed, so that the same question has the same answer everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.planning.ahead import asked_of
from trainwright.planning.chain_finish import finish_chain
from trainwright.planning.family_split import CHAIN, IN_V
from trainwright.planning.loop_finish import finish_loop
from trainwright.planning.own_stages import splits_itself
from trainwright.planning.split_plan import price_cuts

if TYPE_CHECKING:
    from trainwright.planning.finish_effort import Effort, Finished
    from trainwright.planning.model_space import Candidate
    from trainwright.planning.shelf import Shelf
    from trainwright.planning.split_bound import CutsAndRows
    from trainwright.planning.split_plan import Priced


def finish_candidate(
    shelf: Shelf, candidate: Candidate, effort: Effort, *, limit_s: float
) -> Finished | None:
    """The best further plan below the limit, and a bound on all; None where none is looked for."""
    question = shelf.question
    if candidate.schedule in IN_V or splits_itself(question.allowed):
        return None
    profile = shelf.profile(candidate.point)

    def price(split: CutsAndRows) -> Priced | None:
        return price_cuts(question, candidate, profile, split)

    search = finish_chain if candidate.schedule in CHAIN else finish_loop
    return search(asked_of(shelf, candidate), price, effort, limit_s=limit_s)
