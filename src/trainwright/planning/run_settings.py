"""How a model trains beside what a plan decides: what stays as it is whichever plan is chosen.

Degrees, batch, schedule and recomputation are decisions of a plan. Number formats, optimizer,
dropout, kernels and what communication hides under are not; they change what layers cost, what
state they keep and what is exposed, so that plans compare only where these are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.costing.estimate import (
    FUSED_ATTENTION,
    FUSED_CROSS_ENTROPY,
    UNFUSED_ATTENTION,
    UNFUSED_CROSS_ENTROPY,
    Estimator,
)
from trainwright.model import DEFAULT_RECIPE, ContextExchange, Recipe
from trainwright.plan.overlap import DEFAULT_OVERLAP, Overlap

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.model import RunShape, TransformerConfig
    from trainwright.plan.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Recipe, overlap and kernels, as in `Configuration`, which has the same defaults.

    `recompute_modules` are what the mode "selective" repeats. The precision is that of the
    workload, where it names one, and else the recipe's.
    """

    recipe: Recipe = DEFAULT_RECIPE
    overlap: Overlap = DEFAULT_OVERLAP
    fused_attention: bool = True
    fused_cross_entropy: bool = False
    recompute_modules: tuple[str, ...] | None = None
    vocabulary_multiple: int = 128

    @classmethod
    def of(cls, run: Configuration) -> RunSettings:
        """Those of a stated run."""
        return cls(
            recipe=run.recipe,
            overlap=run.overlap,
            fused_attention=run.fused_attention,
            fused_cross_entropy=run.fused_cross_entropy,
            recompute_modules=run.recompute_modules,
            vocabulary_multiple=run.vocabulary_multiple,
        )

    @property
    def kernels(self) -> tuple[str, str]:
        """As a profile's point names them."""
        return (
            FUSED_ATTENTION if self.fused_attention else UNFUSED_ATTENTION,
            FUSED_CROSS_ENTROPY if self.fused_cross_entropy else UNFUSED_CROSS_ENTROPY,
        )

    def estimator(self, model: TransformerConfig, cluster: Cluster) -> Estimator:
        """What prices the layers."""
        return Estimator(
            model=model,
            cluster=cluster,
            recipe=self.recipe,
            overlap=self.overlap,
            selective_modules=self.recompute_modules,
            vocabulary_multiple=self.vocabulary_multiple,
        )

    def shape(self, run: RunShape, *, precision: str) -> RunShape:
        """The same cut of a microbatch, run so."""
        recipe = self.recipe
        return replace(
            run,
            precision=recipe.numbers(precision),
            fused_attention=self.fused_attention,
            fused_cross_entropy=self.fused_cross_entropy,
            vocabulary_multiple=self.vocabulary_multiple,
            context_exchange=recipe.context_exchange,
            context_balanced=recipe.context_balanced,
            expert_imbalance=recipe.expert_imbalance,
            capacity_factor=recipe.capacity_factor,
            token_dispatcher=recipe.token_dispatcher,
        )

    def cuts_heads(self, model: TransformerConfig, *, tensor: int, context: int) -> bool:
        """Whether the heads allow the degrees, which matters where context trades them."""
        if context == 1 or self.recipe.context_exchange is not ContextExchange.ALL_TO_ALL:
            return True
        return model.num_heads % (tensor * context) == 0


USUAL_SETTINGS: Final = RunSettings()
