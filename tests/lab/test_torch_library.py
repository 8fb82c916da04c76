"""Models of the transformers library, counted without content, against counts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

import trainwright
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.model import LayerKind
from trainwright.model.config import LowRank, Tuning

pytestmark = pytest.mark.torch

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 500,
}


def count(document: dict, tokens: int = 32):
    from trainwright.lab.torch_library import count_model

    return count_model(document, tokens=tokens)


def test_the_library_and_our_formulas_agree_on_what_both_know() -> None:
    for kind in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "granite", "nemotron"):
        document = SMALL | {"model_type": kind, "head_dim": 16}
        ours = trainwright.describe_model(document, sequence=32).document
        theirs = count(document)
        assert ours.parameters_total == theirs.parameters, kind
        assert ours.flops_forward_per_token * 32 == pytest.approx(theirs.forward_flops, rel=1e-3)
        assert sum(row.count for row in ours.layers) == 4
        assert {r.parameters for r in ours.layers} == {r.parameters for r in theirs.layers}


def test_a_token_visits_as_many_experts_as_the_pass_shows() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
    found = count(SMALL | experts | {"model_type": "olmoe"})
    idle = 4 * 5 * 3 * 64 * 128  # of 8 experts 5, each of three matrices
    assert found.parameters - found.active_parameters == idle
    assert all(row.experts for row in found.layers)


def test_experts_that_two_stacks_share_are_idle_once() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16, "num_key_value_heads": 2}
    text = SMALL | sizes | {"global_head_dim": 16, "num_attention_heads": 4}
    text |= {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
    text["layer_types"] = ["sliding_attention", "full_attention"]
    images = sizes | {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    found = count({"model_type": "diffusion_gemma", "text_config": text, "vision_config": images})
    assert found.parameters - found.active_parameters == 2 * 6 * 3 * 64 * 32


def test_where_a_pass_needs_values_parameters_are_exact_and_a_note_says_so() -> None:
    found = count({"model_type": "vits", "hidden_size": 64, "num_hidden_layers": 2})
    assert found.parameters > 10**6
    assert found.forward_flops is None
    assert found.note is not None


def test_experts_that_seek_their_tokens_are_counted_with_equal_shares() -> None:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_experts": 8}
    document = sizes | {"model_type": "switch_transformers", "vocab_size": 500}
    found = count(document)
    assert found.note is None
    assert found.forward_flops == trace(document).model_flops
    mixtures = sum(row.count for row in found.layers if row.experts)
    assert found.parameters - found.active_parameters == mixtures * 7 * 2 * 64 * 128


def test_a_recurrence_run_token_by_token_is_counted_over_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trainwright.lab import torch_library

    document = {"model_type": "rwkv", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 90}
    whole = count(document, tokens=60)
    assert whole.forward_flops is not None
    monkeypatch.setattr(torch_library, "MOST_OPERATORS", 700)
    assert count(document, tokens=60).forward_flops == whole.forward_flops
    assert torch_library._carried_on([10, 30, 60, 100], 20) == 550  # 2.5 n + 1.25 n²
    assert torch_library._carried_on([10, 20, 30, 41], 20) is None
    assert torch_library._carried_on([1001, 1002, 1003, 1004], 20) is None  # chunks of their own


def test_twins_cost_what_the_one_that_runs_costs() -> None:
    """Layers that differ in nothing but their place run once; other windows or kinds run too."""
    from trainwright.lab import torch_library

    for kind in ("gemma2", "bailing_hybrid", "qwen2_moe", "cohere2", "t5"):
        document = {"num_hidden_layers": 9, "num_layers": 9, "model_type": kind}
        with torch_library._quiet():
            module = torch_library._build(document, kind)
            torch_library._batch_experts(module)
            with torch_library._Repeats(module) as repeats:
                few = torch_library._flops(module, 12, repeats)
            assert len(repeats.twins) >= 3, kind
            assert few == torch_library._flops(module, 12, None), kind
            assert few[0], kind


def test_a_tower_and_its_text_are_layers_of_two_stacks() -> None:
    found = count({"model_type": "llava", "text_config": SMALL | {"model_type": "llama"}})
    stacks = {row.path: row.count for row in found.layers}
    assert stacks["model.language_model.layers"] == 4
    assert stacks["model.vision_tower.encoder.layers"] == 24
    assert sum(size for _, size in found.parts) == found.parameters


def test_a_class_of_another_type_is_found_by_its_name() -> None:
    named = SMALL | {"model_type": "my_own", "architectures": ["OlmoForCausalLM"]}
    assert count(named).model_type == "olmo"


def test_the_text_of_what_the_library_has_behind_images_is_built() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    few = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 4}
    document = {"model_type": "minimax_m3", "moe_layer_freq": [0, 1, 1, 1], **sizes, **few}
    found = count(document)
    assert found.model_type == "minimax_m3_vl_text"
    assert [(row.count, row.experts) for row in found.layers] == [(1, False), (3, True)]


def test_a_type_that_nobody_knows_and_a_file_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="nor does transformers"):
        count({"model_type": "no_such_type"})
    with pytest.raises(InvalidInput, match="library"):
        count(SMALL | {"model_type": "olmo", "hidden_size": "wide"})


def test_a_type_without_a_class_of_its_own_is_built_by_the_one_that_the_library_names() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get("internlm3") != "LlamaForCausalLM":
        pytest.skip("this version of the library has no such type")
    same = count(SMALL | {"model_type": "llama", "head_dim": 16})
    assert count(SMALL | {"model_type": "internlm3", "head_dim": 16}).parameters == same.parameters


def test_a_part_of_a_larger_model_is_built_by_the_class_beside_its_configuration() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    found = count(sizes | {"model_type": "blip_2_vision_model", "num_attention_heads": 4})
    assert found.class_name == "Blip2VisionModel"
    assert sum(row.count for row in found.layers) == 2


def test_bounds_that_the_library_does_not_read_back_are_left_out_of_sections_too() -> None:
    from transformers import NemotronHConfig

    text = {**SMALL, "hybrid_override_pattern": "M-*-", "num_experts": None}
    llm = NemotronHConfig(**{k: v for k, v in text.items() if v is not None}).to_dict()
    document = {"model_type": "nemotron_h_omni", "text_config": {**llm, "time_step_limit": [0, 9]}}
    bounded = count(document).parameters
    document["text_config"]["time_step_limit"] = [0.0, "Infinity"]
    assert count(document).parameters == bounded


def test_a_file_that_names_no_class_has_its_encoder_too() -> None:
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 500}
    stacks = [row.count for row in count(sizes | {"model_type": "bart"}).layers]
    assert stacks == [2, 3]


def test_layers_that_share_their_parameters_are_traced_and_planned(tmp_path) -> None:
    sizes = {"embedding_size": 32, "hidden_size": 64, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128, "num_hidden_layers": 6, "vocab_size": 500}
    file = tmp_path / "albert.json"
    file.write_text(json.dumps(sizes | {"model_type": "albert"}))
    described = trainwright.describe_model(file, sequence=64).document
    asked = {"cluster": "dgx-h100", "devices": 4, "global_batch": 16, "sequence": 64}

    def weights(**degrees: object) -> list[float]:
        found = trainwright.estimate(file, micro_batch=1, zero=0, **degrees, **asked).document
        return [rank.weight_bytes / 2 for rank in found.memory]

    assert weights(dp=4) == [described.parameters_total]
    halves = weights(pp=2, dp=2, schedule="1f1b")
    block = max(row.parameters for row in described.layers)
    assert sum(halves) > described.parameters_total + block  # each half has one of its own
    plan = trainwright.plan(file, pp=2, schedule="1f1b", micro_batch=1, **asked)
    assert plan.status in ("optimal", "gap")
    assert "traced" in plan.document.warnings[-1]
    swept = trainwright.sweep(file, schedule="1f1b", micro_batch=1, **asked | {"devices": "2,4"})
    assert [row.devices for row in swept.document.rows] == [2, 4]
    assert "traced" in swept.document.warnings[-1]
    again = trainwright.what_if(plan.document, devices=2)
    assert again.status in ("optimal", "gap")


def test_an_encoder_without_images_holds_its_parameters_in_layers_of_its_own() -> None:
    from trainwright.lab.torch_library import trace_model
    from trainwright.model import RunShape

    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    document = {"model_type": "vipllava", "vision_feature_layers": [-1]}
    document["vision_config"] = vision | {"model_type": "clip_vision_model"}
    document["text_config"] = SMALL | {"model_type": "llama"}
    graph = trace_model(document, run=RunShape(microbatch_size=1, sequence_length=32))
    assert graph.num_parameters == count(document).parameters
    kinds = list(graph.kinds)
    front = [graph.classes[layer] for layer in graph.layers[: kinds.index("embedding")]]
    blocks = [layer for layer in front if layer.num_parameters == 4 * 33 * 32 + 2 * 32 * 64 + 224]
    assert len(blocks) == 3 and not any(layer.model_flops for layer in front)
    assert graph.layers[len(front) :] and graph.classes[graph.layers[-1]].model_flops


def trace(document: dict, tokens: int = 32):
    from trainwright.lab.torch_library import trace_model
    from trainwright.model import RunShape

    return trace_model(document, run=RunShape(microbatch_size=1, sequence_length=tokens))


EVERY = {"frozen_kinds": (LayerKind.EMBEDDING,), "num_frozen_blocks": 2}
ADAPTERS = {"rank": 4, "targets": ("query", "value", "down"), "dropout": 0.1}


@pytest.mark.parametrize(
    "tuning",
    [Tuning(num_frozen_blocks=2), Tuning(**EVERY), Tuning(low_rank=LowRank(**ADAPTERS))],
)
def test_what_is_frozen_of_a_traced_model_saves_what_our_formulas_say(tuning: Tuning) -> None:
    from trainwright.formats.hf_config import TARGETS, read_config
    from trainwright.lab.torch_library import trace_model
    from trainwright.model import RunShape, layer_graph

    document = SMALL | {"model_type": "llama", "num_hidden_layers": 4, "vocab_size": 256}
    run = RunShape(microbatch_size=1, sequence_length=32)
    traced = trace_model(document, run=run, tuning=tuning, modules=TARGETS)
    config = read_config(document, name="x").config
    ours = layer_graph(replace(config, tuning=tuning), run)
    assert traced.num_trainable_parameters == ours.num_trainable_parameters
    assert traced.num_parameters == ours.num_parameters
    assert traced.model_step_flops == pytest.approx(ours.model_step_flops, rel=2e-3)
    pairs = zip(traced.layers, ours.layers, strict=False)  # the trace has no loss
    for found, layer in ((traced.classes[a], ours.classes[b]) for a, b in pairs):
        assert found.forward_flops == layer.forward_flops
        assert found.has_backward == layer.has_backward


def test_a_traced_model_lays_adapters_over_few_bits_and_names_what_it_has(tmp_path) -> None:
    file = tmp_path / "xglm.json"
    sizes = {"d_model": 64, "ffn_dim": 128, "num_layers": 4, "attention_heads": 4}
    file.write_text(json.dumps(sizes | {"model_type": "xglm", "vocab_size": 500}))
    asked = {"cluster": "dgx-h100", "devices": 1, "global_batch": 1, "sequence": 64}
    asked |= {"micro_batch": 1, "dp": 1}

    def memory(**options: object):
        (rank,) = trainwright.estimate(file, **options, **asked).document.memory
        return rank

    whole, light = memory(), memory(lora_rank=8)
    small = memory(lora_rank=8, weight_bits=4)
    assert light.optimizer_bytes < whole.optimizer_bytes / 10
    assert small.weight_bytes < light.weight_bytes
    assert memory(freeze_blocks=2).optimizer_bytes < whole.optimizer_bytes
    with pytest.raises(InvalidInput, match=r"must be of fc1, fc2, .*, or all, got"):
        memory(lora_rank=8, lora_targets=["other"])
    with pytest.raises(InvalidInput, match="freeze: must be one of"):
        memory(freeze=["encoder_block"])


def test_what_asks_values_that_nothing_stands_for_is_not_traced() -> None:
    with pytest.raises(UnsupportedFeature, match="cannot be traced"):
        trace({"model_type": "gemma4_unified_assistant"})


def test_how_many_bytes_are_read_as_one_is_told_with_the_data() -> None:
    """BLT's own small model says it by how unsure it is: it is held, and does no work."""
    graph = trace({"model_type": "blt", "patch_size": 4})
    idle = [graph.classes[each] for each in graph.layers if graph.classes[each].is_idle]
    assert graph.num_parameters == count({"model_type": "blt"}).parameters
    assert sum(layer.num_parameters for layer in idle) > 0


def test_frames_that_are_told_as_one_are_as_wide_as_the_first_product_takes() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    encoder = sizes | {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    document = {"model_type": "granite_speech5_ctc", "encoder_config": encoder}
    assert trace(document).num_parameters == count(document).parameters


def test_waves_have_the_channel_of_their_first_convolution_where_a_class_wants_it() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    document = {"model_type": "omniasr_ctc", "encoder_config": sizes | {"num_attention_heads": 4}}
    assert trace(document).num_parameters == count(document).parameters


def test_shared_experts_are_no_routed_ones_whatever_their_class() -> None:
    import torch

    from trainwright.lab import torch_library

    outer = torch.nn.Module()
    for name in ("experts", "shared_experts"):
        made = type("SomeExperts", (torch.nn.Module,), {})()
        made.weight = torch.nn.Parameter(torch.zeros(2, 4, 4))
        outer.add_module(name, made)
    assert [*torch_library._expert_modules(outer)] == ["experts"]


def test_of_what_takes_images_alone_the_part_with_its_head_is_traced() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = sizes | {"intermediate_size": 128, "image_size": 28, "patch_size": 14}
    former = sizes | {"intermediate_size": 128, "encoder_hidden_size": 64}
    text = sizes | {"model_type": "opt", "ffn_dim": 128, "vocab_size": 500}
    text |= {"word_embed_proj_dim": 64}
    document = {"model_type": "blip-2", "vision_config": vision, "qformer_config": former}
    graph = trace(document | {"text_config": text})
    alone = trace(text)
    assert graph.num_parameters == count(document | {"text_config": text}).parameters
    assert graph.num_parameters > alone.num_parameters
    assert graph.model_flops == alone.model_flops


def test_what_follows_from_token_ids_is_known_and_choices_are_made_in_turn() -> None:
    import torch

    from trainwright.lab.torch_values import KnownValues, ValuesFromPython

    with torch.device("meta"), ValuesFromPython(), KnownValues():
        ids = torch.tensor([[5, 0, 7, 0]])
        kept = ids != 0
        assert (ids.is_meta, kept.sum().item(), kept.nonzero().tolist()) == (
            True,
            2,
            [[0, 0], [0, 2]],
        )
        features = torch.empty(1, 4, 8)
        assert features[kept].shape == (2, 8)
        scores = features @ torch.empty(8, 3)
        chosen = scores.topk(2).indices
        spread = torch.zeros(4, 3).scatter(1, chosen[0], 1)
        assert spread.sum(0).tolist() == [3, 3, 2]  # of 8 choices among 3
        lengths = kept.sum(-1)
        lengths[0] = scores.long()[0, 0, 0]  # written over by what is unknown
        assert lengths.item() == 0
        assert bool((scores > 0).any())
    with torch.device("meta"), KnownValues(truth=False):
        assert not bool((torch.empty(3) > 0).any())


def test_a_recurrence_run_token_by_token_is_traced_over_few(monkeypatch) -> None:
    from trainwright.lab import torch_library

    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 500}
    document = sizes | {"model_type": "mamba", "time_step_rank": 4}
    whole = trace(document, 40)
    monkeypatch.setattr(torch_library, "MOST_OPERATORS", 150)
    carried = trace(document, 40)
    assert carried.num_parameters == whole.num_parameters
    assert carried.model_flops == pytest.approx(whole.model_flops, rel=0.01)
    assert [c.kind for c in carried.classes] == [c.kind for c in whole.classes]
    for few, all_of_it in zip(carried.classes, whole.classes, strict=True):
        for one, other in zip(few.operators, all_of_it.operators, strict=True):
            assert one.forward.read_bytes == pytest.approx(other.forward.read_bytes, rel=0.01)
            saved = [tensor.elements for tensor in one.saved]
            assert saved == pytest.approx([tensor.elements for tensor in other.saved], rel=0.01)


def test_experts_that_seek_their_tokens_take_equal_shares_of_them() -> None:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "num_experts": 8}
    sizes |= {"num_layers": 2, "num_decoder_layers": 2, "vocab_size": 500}
    sizes |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    document = sizes | {"model_type": "switch_transformers"}
    graph = trace(document)
    assert graph.num_parameters == count(document).parameters
    kinds = zip(graph.kinds, graph.layers, strict=True)
    blocks = [graph.classes[layer].model_flops for kind, layer in kinds if kind == "block"]
    # A token visits one expert, as large as a dense layer: the router's product comes on top.
    assert 32 * 2 * 64 * 8 in {one - other for one in blocks for other in blocks}


def test_experts_that_do_nothing_stand_in_the_deepest_of_their_stacks() -> None:
    """LongCat's: weights of gates for all, of outputs for those that compute."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_layers": 1, "ffn_hidden_size": 96}
    latent = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
    few = {"n_routed_experts": 8, "zero_expert_num": 8, "moe_topk": 2, "vocab_size": 500}
    document = {"model_type": "longcat_flash", **sizes, **latent, **few}
    document |= {"qk_rope_head_dim": 8, "expert_ffn_hidden_size": 32}
    found = count(document)
    routed = (2 * 16 + 8) * 64 * 32
    assert found.parameters - found.active_parameters == routed - routed * 2 // 16


def test_shares_of_experts_cost_what_a_product_per_row_costs() -> None:
    from trainwright.lab import torch_library

    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
    document = SMALL | experts | {"model_type": "olmoe"}
    with torch_library._quiet():
        module = torch_library._build(document, "olmoe")
        torch_library._batch_experts(module)
        batched = torch_library._pass(module, 16, most=10_000).flops
        for inner, number in torch_library._expert_modules(module).values():
            share = torch_library.functools.partial(torch_library._in_shares, inner, number, 3)
            inner.forward = share
        assert torch_library._pass(module, 16, most=10_000).flops == batched


@pytest.mark.parametrize("kind", ["wav2vec2", "wav2vec2-bert", "hubert", "deberta", "xlnet"])
def test_all_layers_of_what_hears_or_computes_in_single_precision_do_work(kind: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    sizes |= {"num_hidden_layers": 2, "d_model": 64, "n_head": 4, "d_inner": 128, "n_layer": 2}
    sizes |= {"encoder_layers": 2, "decoder_layers": 2, "num_conv_pos_embeddings": 16}
    document = sizes | {"model_type": kind, "num_conv_pos_embedding_groups": 4}
    graph = trace(document)
    assert graph.num_parameters == count(document).parameters
    blocks = [c for c in map(graph.classes.__getitem__, graph.layers) if c.num_parameters > 30_000]
    assert len(blocks) >= 2
    assert not any(block.is_idle for block in blocks)


@pytest.mark.skipif(find_spec("torchaudio") is not None, reason="torchaudio is installed")
def test_a_class_that_needs_another_library_says_which() -> None:
    with pytest.raises(UnsupportedFeature, match="requires the torchaudio library"):
        count({"model_type": "higgs_audio_v2_tokenizer"})


def test_what_the_library_says_on_a_second_line_is_told_with_the_first() -> None:
    with pytest.raises(InvalidInput, match=r"must be 0, got 256$"):
        count({"model_type": "gemma4_assistant"})


def test_a_class_that_the_library_lacks_is_named_beside_the_one_that_is_counted() -> None:
    drafts = SMALL | {"model_type": "llama", "architectures": ["LlamaForCausalLMOfMine"]}
    notes = trainwright.describe_model(drafts, sequence=32).document.notes
    said = "what LlamaForCausalLMOfMine adds or leaves out is not known: counted is the library's"
    assert any(said in note and "LlamaForCausalLM" in note for note in notes)
    plain = drafts | {"architectures": ["LlamaForCausalLM"]}
    assert not any(
        "not known" in n for n in trainwright.describe_model(plain, sequence=32).document.notes
    )
