"""`fit`: what trains on given devices, how long, how many; one account with `estimate`."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainwright
from trainwright.commands.fit import devices_named
from trainwright.documents.fit import largest_that
from trainwright.errors import InvalidInput

MODEL, GPU = "qwen2.5-0.5b", "2xRTX4090"


@pytest.fixture(scope="module")
def document():
    return json.loads(trainwright.fit(MODEL, gpu=GPU, sequence=2048).to_json())


def test_a_row_for_every_way_with_figures_that_rise(document):
    assert document["kind"] == "fit"
    names = [row["way"] for row in document["rows"]]
    assert names == ["full", "full, all bf16", "LoRA-16", "LoRA-16, float32", "QLoRA-16"]
    for row in document["rows"]:
        assert row["allocated_bytes"] < row["reserved_bytes"] < row["device_bytes"]
        assert row["device_low_bytes"] < row["device_bytes"] < row["device_high_bytes"]
        assert (
            not row["fits"] or row["fit_probability"] >= document["request"]["probability"] == 0.9
        )
    full, narrow, adapters, wide, _ = document["rows"]
    assert wide["lean_device_bytes"] > adapters["lean_device_bytes"]
    assert wide["trained_parameters"] == adapters["trained_parameters"]
    assert narrow["trained_parameters"] == full["trained_parameters"]
    assert full["longest_sequence"] <= narrow["longest_sequence"] <= adapters["longest_sequence"]
    assert full["trained_parameters"] > 100 * adapters["trained_parameters"]


@pytest.mark.slow
def test_estimate_agrees_with_every_row_and_with_its_limits(run, document):
    """At the limit a run fits, one step further it does not: asked through another door."""
    memory = ("--cluster", "rtx-4090", "--devices", "2", "--software", "trl", "--json")
    memory += ("--fit-probability", str(document["request"]["probability"]))

    def asked(row, **changes):
        words = shlex.split(row["options"])
        for name, value in changes.items():
            flag = f"--{name.replace('_', '-')}"
            words = words[:] if flag in words else [*words, flag, ""]
            words[words.index(flag) + 1] = str(value)
        words += ["--vocabulary-multiple", "1"]
        return run("estimate", MODEL, *memory, *words).document

    for row in document["rows"]:
        assert asked(row)["device_bytes"] == pytest.approx(row["device_bytes"])
        lean = {"zero": row["lean_zero_stage"], "recompute": "full"}
        longest, most = row["longest_sequence"], row["largest_microbatch"]
        assert asked(row, sequence=longest, **lean)["fits"]
        assert not asked(row, sequence=longest + 64, **lean)["fits"]
        for size, fits in ((most, True), (most + 1, False)):
            found = asked(row, micro_batch=size, global_batch=2 * size, **lean)
            assert found["fits"] is fits


@pytest.mark.slow
def test_layers_that_predict_further_tokens_may_be_left_out(run, tmp_path):
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mimo", **sizes, **heads}))
    given = ("fit", str(tmp_path), "--gpu", GPU, "--sequence", "128", "--json")
    usual = run(*given).document
    said = "trl builds no layers that predict further tokens: 1 left out"
    assert usual["warnings"][0] == said
    whole, without = (run(*given, "--mtp-layers", n).document for n in ("1", "0"))
    assert without["request"]["mtp_layers"] == 0
    assert usual["rows"] == without["rows"]
    assert "mtp_layers" not in run(*given, "--software", "megatron").document["request"]
    for with_it, row in zip(whole["rows"], without["rows"], strict=True):
        assert row["device_bytes"] < with_it["device_bytes"]
        assert "--mtp-layers 0" in row["options"]
    assert run(*given, "--mtp-layers", "2").code == 2


def test_nothing_fits_on_too_little_and_the_exit_code_says_so(run):
    done = run("fit", "llama3-70b", "--gpu", "rtx4090", "--json")
    assert done.code == 3
    assert done.document["fits"] is False
    assert {row["longest_sequence"] for row in done.document["rows"] if not row["fits"]} == {0}


def test_what_does_not_fit_is_offered_with_its_shards_on_the_hosts(run):
    found = run("fit", "llama3-70b", "--gpu", "2xRTX3090", "--json").document
    rows = {row["way"]: row for row in found["rows"]}
    plain, hosted = rows["QLoRA-16"], rows["QLoRA-16, on hosts"]
    assert (plain["fits"], hosted["fits"]) == (False, True)
    assert hosted["longest_sequence"] > 10 * plain["longest_sequence"]
    assert "host_bytes" not in plain and hosted["host_bytes"] > 70e9 * 0.5 / 2
    words = hosted["options"].split()
    where = ("--cluster", "rtx-3090", "--devices", "2", "--software", "trl")
    priced = run("estimate", "llama3-70b", *where, *words, "--micro-batch", "1", "--json").document
    assert priced["device_bytes"] == hosted["device_bytes"]
    assert priced["step_time_s"] == hosted["step_time_s"]


def test_nothing_is_left_on_hosts_where_nothing_is_sharded(run):
    rows = run("fit", "llama3-70b", "--gpu", "RTX3090", "--json").document["rows"]
    assert not [row for row in rows if "hosts" in row["way"]]


def test_the_table_names_model_devices_and_probability(run):
    done = run("fit", MODEL, "--gpu", GPU)
    assert done.code == 0
    for text in ("2 devices", "LoRA-16", "longest", "probability 90%", "hugging-face"):
        assert text in done.out


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("2xRTX4090", 2, "RTX-4090"),
        ("rtx-4090", 1, "RTX-4090"),
        ("8 x h100", 8, "H100-80GB-SXM"),
        ("16xA100-80GB", 16, "A100-80GB-SXM"),
        ("2x4090", 2, "RTX-4090"),
        ("NVIDIA GeForce RTX 3090", 1, "RTX-3090"),
        ("4x NVIDIA A100-SXM4-40GB", 4, "A100-40GB-SXM"),
        ("NVIDIA H100 80GB HBM3", 1, "H100-80GB-SXM"),
        ("V100-32GB", 1, "V100-SXM2-32GB"),
        ("Tesla T4", 1, "T4"),
        ("L4", 1, "L4"),
        ("L40", 1, "L40"),
        ("A10", 1, "A10"),
        ("8xA10G", 8, "A10G"),
        ("H100:8", 8, "H100-80GB-SXM"),
        ("RTX 4090 x 2", 2, "RTX-4090"),
        ("L4 * 3", 3, "L4"),
        ("H200x8", 8, "H200-SXM"),
        ("MI300Xx8", 8, "MI300X"),
        ("RTX 8000", 1, "Quadro-RTX-8000"),
        ("2x3090Ti", 2, "RTX-3090-Ti"),
        ("A100-40", 1, "A100-40GB-SXM"),
        ("NVIDIA A100-PCIE-40GB", 1, "A100-40GB-PCIe"),
        ("RTX A6000 48GB", 1, "RTX-A6000"),
        ("T4 16GB", 1, "T4"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", 1, "RTX-4060"),
        ("RTX 4060 Ti", 1, "RTX-4060-Ti-16GB"),
        ("3070", 1, "RTX-3070"),
    ],
)
def test_devices_are_a_number_and_a_name(text, count, name):
    found, cluster = devices_named(text)
    assert (found, cluster.accelerator.name) == (count, name)
    assert cluster.num_devices >= count


@pytest.mark.parametrize(
    "text",
    [
        *("", "0xRTX4090", "2x", "3xVoodoo2", "2x80GB", "RTX 6000", "3080 20GB", "4090 48GB"),
        *("H100:0", "A100-24", "2xH100:2", "1000000xH100"),
    ],
)
def test_other_devices_are_refused_by_name(text):
    with pytest.raises(InvalidInput, match="gpu"):
        devices_named(text)


def test_a_probability_is_one(run):
    done = run("fit", MODEL, "--gpu", GPU, "--fit-probability", "1")
    assert done.code == 2
    assert "probability" in done.err


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_bisection_finds_the_largest(most: int, limit: int) -> None:
    assert largest_that(lambda n: n <= most, limit) == min(most, limit)


def test_sequences_are_no_longer_than_the_positions_that_a_model_learned():
    found = trainwright.fit("gpt2", gpu=GPU).document
    assert found.request.sequence_length == 1024
    with pytest.raises(InvalidInput, match=r"^sequence: must be <= the 1024 learned positions"):
        trainwright.fit("gpt2", gpu=GPU, sequence=2048)


def test_software_that_nobody_knows_is_refused_with_what_is_known():
    with pytest.raises(InvalidInput, match="software: must be one of typical, accelerate, "):
        trainwright.fit(MODEL, gpu=GPU, software="my-own")


@pytest.mark.slow
def test_images_take_room_in_every_row_and_in_its_command(run):
    plain, seen = (
        trainwright.fit("qwen2-vl-2b", gpu="H100", sequence=2048, images=n).document for n in (0, 1)
    )
    assert seen.rows[0].device_bytes > plain.rows[0].device_bytes
    assert seen.rows[0].longest_sequence <= plain.rows[0].longest_sequence
    words = shlex.split(seen.rows[0].options)
    assert words[:2] == ["--images", "1"]
    again = run(
        *("estimate", "qwen2-vl-2b", "--cluster", "dgx-h100", "--devices", "1", "--json"),
        *("--software", "trl", "--vocabulary-multiple", "1", *words),
    ).document
    assert again["device_bytes"] == pytest.approx(seen.rows[0].device_bytes)


def test_the_longest_sequence_fits_with_the_probability_that_is_stated() -> None:
    found = trainwright.fit(MODEL, gpu=GPU).document
    row = next(each for each in found.rows if each.way == "LoRA-16")
    again = trainwright.fit(MODEL, gpu=GPU, sequence=row.longest_sequence).document
    same = next(each for each in again.rows if each.way == "LoRA-16")
    assert same.fits
    assert 0.9 <= same.fit_probability < 0.95  # the longest one, so hardly more
    risky = trainwright.fit(MODEL, gpu=GPU, fit_probability=0.5).document
    longer = next(each for each in risky.rows if each.way == "LoRA-16")
    assert longer.longest_sequence > row.longest_sequence


def test_weights_of_four_bits_hold_less_and_take_longer_under_the_same_recomputation() -> None:
    """A kernel of its own expands them before each product; the least memory is comparable."""
    plain, quantized = (
        next(
            each
            for each in trainwright.fit("llama3-8b", gpu="A100").document.rows
            if way == each.way
        )
        for way in ("LoRA-16", "QLoRA-16")
    )
    assert plain.recompute is quantized.recompute
    assert quantized.lean_device_bytes < plain.lean_device_bytes <= plain.device_bytes
    assert 0.9 * plain.tokens_per_s < quantized.tokens_per_s < 0.99 * plain.tokens_per_s
