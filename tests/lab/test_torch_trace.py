"""Tracing modules on the meta device, against closed formulas and torch's own counter."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats import catalog
from trainwright.lab.torch_trace import TracedModel, trace_module
from trainwright.model import LayerGraph, LayerKind, RunShape, TransformerConfig, layer_graph

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def sums(graph: LayerGraph) -> tuple[float, float, float]:
    """Parameters, FLOPs of a forward pass and of a step."""
    return graph.num_parameters, graph.model_flops, graph.model_step_flops


def small(**changes: Any) -> TransformerConfig:
    sizes = {"num_layers": 3, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_size": 16}
    sizes |= {"ffn_size": 96, "vocabulary_size": 320}
    return replace(catalog.model("llama3-8b").config, **sizes | changes)


def traced(
    config: TransformerConfig, length: int = 32, batch: int = 1, module: Any = None
) -> TracedModel:
    from torch_models import on_meta, tokens

    run = RunShape(microbatch_size=batch, sequence_length=length, vocabulary_multiple=1)
    module = on_meta(config) if module is None else module
    return trace_module(module, {"ids": tokens(length, batch)}, run=run)


def flops_by_kind(graph: LayerGraph) -> dict[LayerKind, float]:
    found: dict[LayerKind, float] = {}
    for kind, index in zip(graph.kinds, graph.layers, strict=True):
        found[kind] = found.get(kind, 0.0) + graph.classes[index].model_flops
    return {kind: flops for kind, flops in found.items() if flops}


@pytest.mark.parametrize(
    ("name", "length", "forward_tflop"),
    [("llama3-8b", 4096, 70.274), ("mixtral-8x7b", 2048, 54.417), ("deepseek-v3", 1024, 80.247)],
)
def test_a_trace_agrees_with_the_closed_formulas(
    name: str, length: int, forward_tflop: float
) -> None:
    config = replace(catalog.model(name).config, num_mtp_layers=0)
    found = traced(config, length)
    assert sums(found.graph) == pytest.approx(sums(layer_graph(config, found.graph.run)), rel=1e-9)
    assert found.graph.model_flops == pytest.approx(forward_tflop * 1e12, rel=2e-5)
    assert found.graph.model_step_flops == pytest.approx(3 * found.graph.model_flops, rel=1e-12)
    reference = layer_graph(config, found.graph.run)
    assert flops_by_kind(found.graph) == pytest.approx(flops_by_kind(reference), rel=1e-12)
    assert found.graph.kinds == reference.kinds[:-1]  # the traced module has no loss


def test_the_whole_equals_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from torch_models import on_meta, tokens

    config = small(tied_embeddings=False)
    module = on_meta(config)
    with FlopCounterMode(display=False) as counter:
        module(tokens(32)).sum().backward()
    found = traced(config, module=module)
    assert found.graph.model_step_flops == pytest.approx(counter.get_total_flops(), rel=1e-12)


def test_identical_blocks_share_a_class_and_differing_ones_do_not() -> None:
    experts = replace(
        catalog.model("mixtral-8x7b").config.experts,  # type: ignore[type-var]
        num_experts=4,
        ffn_size=32,
        num_dense_layers=1,
    )
    graph = traced(small(experts=experts)).graph
    assert graph.layers == (0, 1, 2, 2, 3, 4)


def test_the_head_stands_by_itself() -> None:
    found = traced(small())
    head = found.graph.classes[found.graph.layers[-1]]
    assert found.names[-1] == "head"
    assert head.kind is LayerKind.LM_HEAD
    assert head.model_flops == 2 * 32 * 64 * 320


def test_tied_matrices_count_once() -> None:
    apart, tied = (traced(small(tied_embeddings=t)).graph for t in (False, True))
    assert apart.num_parameters - tied.num_parameters == 320 * 64
    assert list(tied.shared_parameters().values()) == [(0, 5)]


def test_what_runs_outside_of_all_units_becomes_a_last_layer() -> None:
    from torch_models import Decoder, tokens

    class WithLoss(Decoder):
        def forward(self, ids: Any) -> Any:
            x = self.words(ids)
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.words.weight.T
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

    with torch.device("meta"):
        module = WithLoss(small(tied_embeddings=True)).to(torch.bfloat16)
    run = RunShape(microbatch_size=1, sequence_length=32, vocabulary_multiple=1)
    found = trace_module(module, {"ids": tokens(32)}, run=run)
    assert found.names[-1] == "outside of all units"
    assert found.unused == ("head",)
    last = found.graph.classes[found.graph.layers[-1]]
    assert last.model_flops == 2 * 32 * 64 * 320
    assert found.graph.model_step_flops == pytest.approx(3 * found.graph.model_flops, rel=1e-12)
    assert sum(t.elements for t in last.saved) >= 32 * 320 * 4  # float32 softmax


def test_a_block_keeps_what_its_operators_read() -> None:
    """Plain RMS norms keep two copies of their input or a statistic, the rest is as in the list."""
    config = small(num_heads=4, num_kv_heads=4)
    found = traced(config, length=512)
    block = found.graph.classes[found.graph.layers[1]]
    kept = sum(t.elements for t in block.saved)
    (given,) = (t for t in block.saved if t.is_layer_input)
    assert given.elements == 2 * 512 * 64
    reference = layer_graph(config, found.graph.run)
    expected = sum(t.bytes_per_device(found.graph.run) for t in reference.classes[1].saved)
    scores = 2 * 4 * 512**2
    assert expected <= kept < expected + scores


def test_frozen_parameters_have_no_weight_gradient() -> None:
    from torch_models import on_meta

    module = on_meta(small())
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith("blocks.2."))
    graph = traced(small(), module=module).graph
    first, last = (graph.classes[graph.layers[i]] for i in (1, 3))
    assert first.saved == ()
    assert all(op.input_grad.flops == op.weight_grad.flops == 0 for op in first.operators)
    assert all(p.trainable for p in last.parameters)
    products = last.operators[0]
    assert products.weight_grad.flops > products.input_grad.flops == 0
    head = graph.classes[graph.layers[-1]].operators[0]
    assert (head.input_grad.flops, head.weight_grad.flops) == (head.forward.flops, 0)
    assert graph.num_trainable_parameters == sum(p.count for p in last.parameters)


def test_grouped_products_are_counted() -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no grouped product")

    class Grouped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(8, 64, 128, dtype=torch.bfloat16))

        def forward(self, x: Any, ends: Any) -> Any:
            return torch._grouped_mm(x, self.weight, offs=ends)

    with torch.device("meta"):
        module, x = Grouped(), torch.empty(256, 64, dtype=torch.bfloat16, requires_grad=True)
        ends = torch.empty(8, dtype=torch.int32)
    run = RunShape(microbatch_size=1, sequence_length=256)
    graph = trace_module(module, {"x": x, "ends": ends}, run=run).graph
    assert graph.model_flops == 2 * 256 * 64 * 128
    assert graph.model_step_flops == 3 * graph.model_flops


def test_a_product_that_nothing_counts_is_refused() -> None:
    from torch import library

    @library.custom_op("own::opaque_product", mutates_args=())
    def opaque_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    opaque_product.register_fake(lambda x, weight: x @ weight)

    class Opaque(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(64, 64))

        def forward(self, x: Any) -> Any:
            return opaque_product(x, self.weight.to(torch.float32))

    with torch.device("meta"):
        module, x = Opaque(), torch.empty(8, 64)
    with pytest.raises(UnsupportedFeature, match="opaque_product uses weight and torch counts no"):
        trace_module(module, {"x": x}, run=RunShape(microbatch_size=1, sequence_length=8))


def test_a_pass_that_needs_values_is_refused() -> None:
    class Peeks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.line(x) if x.sum().item() > 0 else x

    with torch.device("meta"):
        module, x = Peeks(), torch.empty(2, 4)
    with pytest.raises(UnsupportedFeature, match="needs values, and the meta device has none"):
        trace_module(module, {"x": x}, run=RunShape(microbatch_size=1, sequence_length=2))


def test_a_pass_that_fails_says_why() -> None:
    with torch.device("meta"):
        module, x = torch.nn.Linear(4, 4), torch.empty(2, 5)
    with pytest.raises(InvalidInput, match=r"its forward pass failed: .*\[2, 5\]"):
        trace_module(module, {"input": x}, run=RunShape(microbatch_size=1, sequence_length=2))


def test_a_module_with_content_is_refused() -> None:
    run = RunShape(microbatch_size=1, sequence_length=2)
    with pytest.raises(InvalidInput) as caught:
        trace_module(torch.nn.Linear(4, 4), {"input": torch.empty(2, 4)}, run=run)
    assert [f.path for f in caught.value.faults] == ["module.weight", "arguments.input"]


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_the_transformers_module_agrees_too(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    import tomllib
    from importlib import resources

    text = (resources.files("trainwright.model") / "catalog" / f"{name}.toml").read_text()
    keys = tomllib.loads(text)["config"]
    settings = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    settings._attn_implementation = "sdpa"
    settings._experts_implementation = "batched_mm"
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
        given = {
            "input_ids": torch.empty(1, 512, dtype=torch.long),
            "attention_mask": torch.empty(1, 1, 512, 512, dtype=torch.bool),
        }
    run = RunShape(microbatch_size=1, sequence_length=512, vocabulary_multiple=1)
    found = trace_module(module, given | {"use_cache": False}, run=run)
    reference = layer_graph(replace(catalog.model(name).config, num_mtp_layers=0), found.graph.run)
    assert sums(found.graph) == pytest.approx(sums(reference), rel=1e-6)


@pytest.mark.papers
def test_the_examples_of_the_page_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "formats.md"
    examples = re.findall(r"^```python torch\n(.*?)^```$", page.read_text(), flags=re.S | re.M)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {})
