"""The list of saved tensors against the formulas of Korthikanti et al., 2022."""

import pytest

from published_memory import (
    FULL,
    NO_RECOMPUTE_GIB,
    PAPER,
    SELECTIVE,
    SELECTIVE_SP_GIB,
    STATIC_GIB,
    block,
    first_stage_gib,
    gpt,
    kept_bytes,
    static_gib,
)
from trainwright.costing.layer import KEEP_ALL, RecomputeRule, activation_bytes
from trainwright.formats import catalog
from trainwright.formats.hf_config import read_config
from trainwright.model import LayerKind, RunShape, layer_graph


@pytest.mark.parametrize("tensor_parallel", [1, 2, 8])
@pytest.mark.parametrize("microbatch", [1, 4])
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_every_case_of_the_table_is_a_sum_over_the_list(
    tensor_parallel: int, microbatch: int, family: str
) -> None:
    a, h, s, b, t = 16, 1024, 512, microbatch, tensor_parallel
    sizes = {"hidden_size": h, "num_hidden_layers": 2, "num_attention_heads": a}
    document = {"model_type": family, "intermediate_size": 4 * h, **sizes}
    config = read_config(document, name="m").config
    sbh, scores = s * b * h, 5 * a * s / h

    def kept(rule: RecomputeRule, sequence_parallel: bool) -> float:
        return kept_bytes(
            config,
            rule,
            microbatch_size=b,
            sequence_length=s,
            tensor_parallel=t,
            sequence_parallel=sequence_parallel,
        )

    assert kept(KEEP_ALL, False) == pytest.approx(sbh * (10 + 24 / t + scores / t), rel=1e-12)
    assert kept(KEEP_ALL, True) == pytest.approx(sbh / t * (34 + scores), rel=1e-12)
    assert kept(SELECTIVE, False) == pytest.approx(sbh * (10 + 24 / t), rel=1e-12)
    assert kept(SELECTIVE, True) == pytest.approx(34 * sbh / t, rel=1e-12)
    assert kept(FULL, False) == 2 * sbh
    assert kept(FULL, True) == 2 * sbh / t


@pytest.mark.parametrize("model", PAPER)
def test_first_stage_memory_matches_the_published_models(model: str) -> None:
    plain, selective = first_stage_gib(model)
    assert plain == pytest.approx(NO_RECOMPUTE_GIB[model], abs=1e-4)
    assert selective == pytest.approx(SELECTIVE_SP_GIB[model], abs=1e-4)


@pytest.mark.parametrize("model", PAPER)
def test_block_matrices_take_the_published_static_bytes(model: str) -> None:
    assert static_gib(model) == pytest.approx(STATIC_GIB[model], abs=1e-4)


def test_fused_attention_keeps_a_statistic_instead_of_scores() -> None:
    config = gpt(heads=16, hidden=1024)
    kept = kept_bytes(config, KEEP_ALL, microbatch_size=2, fused_attention=True)
    tokens = 2 * 2048
    assert kept == 34 * tokens * 1024 + 4 * tokens * 16


def test_a_gated_block_with_grouped_heads_keeps_what_its_sizes_say() -> None:
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=1024)
    kept = activation_bytes(block(config, run), run, KEEP_ALL)
    h, f, queries, keys = 4096, 14336, 4096, 1024
    norms, inputs = 2 * h, 2 * h
    attention = queries + 2 * keys + queries
    expected = 1024 * (2 * (norms + inputs + attention + 3 * f) + 4 * 32)
    assert kept.until_input_grad + kept.until_weight_grad == expected


def test_recomputed_tensors_come_back_as_a_transient() -> None:
    config = catalog.model("llama3-8b").config
    run = RunShape(microbatch_size=1, sequence_length=1024)
    layer = block(config, run)
    none, full = (activation_bytes(layer, run, rule) for rule in (KEEP_ALL, FULL))
    saved = [x.until_input_grad + x.until_weight_grad for x in (none, full)]
    assert full.transient - none.transient == pytest.approx(saved[0] - saved[1], rel=1e-12)


def test_logits_take_six_bytes_each_unless_the_loss_is_fused() -> None:
    config = catalog.model("llama3-8b").config
    per_logit = []
    for fused in (False, True):
        run = RunShape(microbatch_size=1, sequence_length=8192, fused_cross_entropy=fused)
        loss = layer_graph(config, run).classes[-1]
        assert loss.kind is LayerKind.LOSS
        kept = activation_bytes(loss, run, KEEP_ALL)
        per_logit.append((kept.until_input_grad + kept.transient) / (8192 * 128256))
    assert per_logit == [6, 2]
