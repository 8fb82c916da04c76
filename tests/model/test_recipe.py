"""Bytes per parameter of published training recipes, and the faults of a recipe."""

from dataclasses import dataclass

import pytest

from trainwright.costing.layer import static_bytes
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.model import NO_OFFLOAD, LayerKind, Optimizer, Recipe, RunShape, layer_graph
from trainwright.model.recipe import optimizer_named, unusual
from trainwright.model.run_shape import precision_named


@pytest.mark.parametrize(
    ("recipe", "precision", "total"),
    [
        (Recipe(), "bf16", 18),  # Megatron-LM, float32 gradients
        (Recipe(gradient_dtype="bf16"), "bf16", 16),  # ZeRO, Rajbhandari et al., 2020
        (Recipe(), "fp32", 16),
        (Recipe(), "fp8", 18),
        (Recipe(optimizer=Optimizer.SGD), "fp32", 8),
        (Recipe(optimizer=Optimizer.MOMENTUM), "fp32", 12),
        (Recipe(optimizer=Optimizer.MUON), "bf16", 14),
        (Recipe(optimizer=Optimizer.LION), "fp32", 12),
        (Recipe(optimizer=Optimizer.ADAFACTOR, main_weight_dtype="none"), "bf16", 6),
        # DeepSeek-V3 (2024): float32 main weight and gradient, moments in bfloat16
        (Recipe(moment_dtypes=("bf16",)), "bf16", 14),
        (Recipe(moment_dtypes=("int8",), main_weight_dtype="none"), "bf16", 8),
        (Recipe(moment_dtypes=("bf16", "fp32")), "bf16", 16),
    ],
)
def test_a_parameter_keeps_its_published_bytes(recipe: Recipe, precision: str, total: int) -> None:
    assert recipe.numbers(precision).static_bytes == total


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("adamw_torch_fused", (Optimizer.ADAM, None)),
        ("bitsandbytes.optim.AdamW8bit", (Optimizer.ADAM, "int8")),
        ("paged_adamw_8bit", (Optimizer.ADAM, "int8")),
        ("lion_8bit", (Optimizer.LION, "int8")),
        ("paged_adamw_32bit", (Optimizer.ADAM, "fp32")),
        ("adafactor", (Optimizer.ADAFACTOR, None)),
        ("DecoupledLionW", (Optimizer.LION, None)),
        ("shampoo", None),
    ],
)
def test_an_optimizer_is_known_by_the_names_of_its_libraries(
    name: str, known: tuple[Optimizer, str | None] | None
) -> None:
    assert optimizer_named(name) == known


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        ("fp8", 0),  # its two bytes are the copies
        ("fp8_delayed", 2),
        ("mxfp8", 2 * 33 / 32),
        ("nvfp4", 2 * (8 / 16 + 1 / 16)),
    ],
)
def test_a_recipe_keeps_copies_of_what_it_multiplies(name: str, copies: float) -> None:
    config = catalog.model("mixtral-8x7b").config
    shape = RunShape(microbatch_size=1, sequence_length=512, precision=precision_named(name))
    for layer in layer_graph(config, shape).classes:
        found = static_bytes(layer, shape.precision)
        plain = static_bytes(layer, precision_named("bf16"))
        expert = sum(p.count_per_device for p in layer.parameters if p.expert)
        assert found[1][0] - plain[1][0] == pytest.approx(copies * expert)
        dense = sum(
            p.count_per_device
            for op in layer.operators
            if op.matrix is not None and layer.kind is LayerKind.BLOCK and op.name != "router"
            for p in op.parameters
            if not p.expert and p.name.endswith(".weight")
        )
        assert found[0][0] - plain[0][0] == pytest.approx(copies * dense)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_the_input_of_an_activation_in_8_bit_is_half_as_large(name: str) -> None:
    config = catalog.model(name).config
    kept: dict[str | None, float] = {}
    for dtype in (None, "bf16", "fp8"):
        fields = Recipe(activation_input_dtype=dtype).run_fields
        shape = RunShape(microbatch_size=1, sequence_length=512, **fields)
        sizes = [
            tensor.bytes_per_device(shape)
            for layer in layer_graph(config, shape).classes
            for tensor in layer.saved
            if tensor.name.endswith("_activation.input")
        ]
        assert sizes
        kept[dtype] = sum(sizes)
    assert kept[None] == kept["bf16"] == 2 * kept["fp8"]


def test_muon_leaves_embedding_and_head_to_adam() -> None:
    config = catalog.model("llama3-8b").config
    shape = RunShape(microbatch_size=1, sequence_length=512)
    for layer in layer_graph(config, shape).classes:
        muon, adam, momentum = (
            static_bytes(layer, Recipe(optimizer=name).numbers("bf16"))[0][2]
            for name in (Optimizer.MUON, Optimizer.ADAM, Optimizer.MOMENTUM)
        )
        ends = layer.kind in (LayerKind.EMBEDDING, LayerKind.LM_HEAD)
        assert muon == (adam if ends else momentum)


def test_gradients_travel_in_a_format_of_their_own() -> None:
    wide, narrow = (Recipe(reduce_dtype=dtype).numbers("bf16") for dtype in (None, "bf16"))
    assert (wide.sync_bytes, narrow.sync_bytes) == (4, 2)
    assert wide.static_bytes == narrow.static_bytes
    assert Recipe(gradient_dtype="bf16", reduce_dtype="fp32").numbers("bf16").sync_bytes == 4


def test_every_broken_field_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        Recipe(
            gradient_dtype="fp12",
            reduce_dtype="fp12",
            main_weight_dtype="no",
            moment_dtypes=("x", "fp32", "fp32"),
            dropout=1.0,
            capacity_factor=0.0,
            dispatch_dtype="int8",
        )
    paths = [fault.path for fault in caught.value.faults]
    assert paths == [
        "gradient_dtype",
        "main_weight_dtype",
        "reduce_dtype",
        "moment_dtypes",
        "dispatch_dtype",
        "moment_dtypes",
        "dropout",
        "capacity_factor",
    ]


def test_dropout_replaces_the_models_rates() -> None:
    config = catalog.model("gpt2").config
    assert config.hidden_dropout > 0
    assert Recipe().applied(config) is config
    without = Recipe(dropout=0.0).applied(config)
    assert without.hidden_dropout == without.attention_dropout == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged(Recipe):
    """A recipe of tomorrow, with a field that no account has heard of."""

    average_dtype: str | None = None


def test_what_a_recipe_asks_for_is_told_also_of_fields_to_come() -> None:
    assert not [*unusual(Recipe(moment_dtypes=("fp32", "fp32"), offload=NO_OFFLOAD))]
    assert [*unusual(Recipe(dropout=0.0, loss_chunk=64))] == ["dropout", "loss_chunk"]
    assert [*unusual(Averaged(average_dtype="fp32"))] == ["average_dtype"]
