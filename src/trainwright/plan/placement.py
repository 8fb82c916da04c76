"""Which rank runs which virtual stage of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainwright.errors import Fault, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`rank_of_stage[s]` is the rank of virtual stage s; ranks may own different numbers of stages.

    Stage 0 takes the input, the last stage computes the loss. Any total function is a placement;
    the named ones are loop, V and wave.
    """

    rank_of_stage: tuple[int, ...]
    num_ranks: int

    def __post_init__(self) -> None:
        faults = tuple(self._faults())
        if faults:
            raise InvalidInput(faults)

    def _faults(self) -> Iterator[Fault]:
        if self.num_ranks < 1:
            yield Fault("num_ranks", f"must be >= 1, got {self.num_ranks}")
        if not self.rank_of_stage:
            yield Fault("rank_of_stage", "must have at least 1 entry, got 0")
        for stage, rank in enumerate(self.rank_of_stage):
            if not 0 <= rank < self.num_ranks:
                yield Fault(
                    f"rank_of_stage[{stage}]",
                    f"must be a rank from 0 to {self.num_ranks - 1}, got {rank}",
                )

    @classmethod
    def loop(cls, num_ranks: int, *, virtual_stages: int = 1) -> Placement:
        """Stage s on rank s mod p: every pass over the ranks starts again at rank 0."""
        down = tuple(range(num_ranks))
        return cls(rank_of_stage=down * virtual_stages, num_ranks=num_ranks)

    @classmethod
    def v(cls, num_ranks: int) -> Placement:
        """Rank r owns stages r and 2p-1-r, so that first and last stage share rank 0."""
        return cls.wave(num_ranks, virtual_stages=2)

    @classmethod
    def wave(cls, num_ranks: int, *, virtual_stages: int) -> Placement:
        """A loop whose direction flips every p stages: V repeated."""
        down = tuple(range(num_ranks))
        passes = (down if chunk % 2 == 0 else down[::-1] for chunk in range(virtual_stages))
        return cls(rank_of_stage=sum(passes, ()), num_ranks=num_ranks)

    @classmethod
    def from_ranks(cls, stages_of_rank: Sequence[Sequence[int]]) -> Placement:
        """Build from the stages each rank owns; every stage 0..S-1 must be named exactly once."""
        owner: dict[int, int] = {}
        faults = []
        for rank, stages in enumerate(stages_of_rank):
            for stage in stages:
                if stage in owner:
                    problem = f"stage {stage} must be on one rank, is also on rank {owner[stage]}"
                    faults.append(Fault(f"placement[{rank}]", problem))
                owner.setdefault(stage, rank)
        num_stages = max(owner, default=-1) + 1
        missing = next((stage for stage in range(num_stages) if stage not in owner), None)
        if missing is not None:
            faults.append(Fault("placement", f"misses stage {missing}; no rank owns it"))
        if min(owner, default=0) < 0:
            faults.append(Fault("placement", f"stages count from 0, got {min(owner)}"))
        if faults:
            raise InvalidInput(faults)
        ranks = tuple(owner[stage] for stage in range(num_stages))
        return cls(rank_of_stage=ranks, num_ranks=len(stages_of_rank))

    @property
    def num_stages(self) -> int:
        """S: virtual stages over all ranks."""
        return len(self.rank_of_stage)

    @property
    def stages_of_rank(self) -> tuple[tuple[int, ...], ...]:
        """For each rank the stages it owns, ascending."""
        owned: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for stage, rank in enumerate(self.rank_of_stage):
            owned[rank].append(stage)
        return tuple(map(tuple, owned))

    @property
    def is_v(self) -> bool:
        """Whether rank r owns exactly stages r and 2p-1-r."""
        return self == Placement.v(self.num_ranks)
