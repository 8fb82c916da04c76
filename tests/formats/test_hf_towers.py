"""Models with an encoder, of images or before a decoder: its parameters, work and limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

import trainwright
from random_cases import every_third
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.document_json import decode, encode
from trainwright.formats.hf_config import read_config
from trainwright.formats.hf_decoders import ENCODER_DECODERS
from trainwright.formats.hf_towers import WRAPPERS
from trainwright.model import LayerKind, RunShape, TransformerConfig, count_parameters, layer_graph

TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "vocab_size": 300,
}
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
LLAVA = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": CLIP,
}
QWEN = {
    "model_type": "qwen3_vl",
    "text_config": {"model_type": "qwen3_vl_text", "head_dim": 16, **TEXT},
    "vision_config": {
        "depth": 4,
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 96,
        "out_hidden_size": 128,
        "deepstack_visual_indexes": [1],
        "num_position_embeddings": 64,
    },
}


def config_of(document: dict[str, Any], **stated: Any) -> TransformerConfig:
    return read_config({**document, **stated}, name="x").config


def with_images(config: TransformerConfig, images: int, pixels: int | None = None) -> Any:
    from dataclasses import replace

    towers = config.towers
    if pixels is not None:
        towers = tuple(tower.resized(pixels) for tower in towers)
    return replace(config, images=images, towers=towers)


def graph(config: TransformerConfig, **run: Any) -> Any:
    return layer_graph(
        config,
        RunShape(microbatch_size=1, sequence_length=64, vocabulary_multiple=1, **run),
    )


def test_an_encoder_is_counted_by_hand() -> None:
    h, ffn, patches = 64, 96, 16
    front = 3 * 8 * 8 * h + h + (patches + 1) * h
    block = 4 * h * h + 4 * h + 2 * h * ffn + ffn + h + 4 * h
    ends = 4 * h + (h * 128 + 128) + (128 * 128 + 128)
    text = count_parameters(read_config({"model_type": "llama", **TEXT}, name="x").config)
    assert count_parameters(config_of(LLAVA)) - text == front + 2 * block + ends


def test_the_encoder_is_that_which_its_section_names() -> None:
    """Pixtral's: RMS norms, gated blocks without biases, whose heads divide the hidden size."""
    sizes = {key: CLIP[key] for key in CLIP if key != "model_type"}
    vision = {"model_type": "pixtral", "head_dim": 999, **sizes}
    h, ffn, patch = 64, 96, 8
    block = 4 * h * h + 3 * h * ffn + 2 * h
    ends = 3 * patch**2 * h + h + (h * 128 + 128) + (128 * 128 + 128)
    text = count_parameters(read_config({"model_type": "llama", **TEXT}, name="x").config)
    assert count_parameters(config_of(LLAVA, vision_config=vision)) - text == 2 * block + ends


@pytest.mark.parametrize("kind", ["llava", "llava_next", "gemma3", "paligemma", "mistral3"])
def test_an_encoder_that_is_no_rule_of_a_wrapper_is_left_to_the_library(kind: str) -> None:
    vision = {**CLIP, "model_type": "siglip2_vision_model"}
    document = {"model_type": kind, "text_config": TEXT, "vision_config": vision}
    with pytest.raises(
        UnsupportedFeature, match=r'vision_config.model_type "siglip2_vision_model"'
    ):
        config_of(document)


def test_a_projector_that_joins_what_several_blocks_give_is_left_to_the_library() -> None:
    assert config_of(LLAVA, vision_feature_layer=[-2]) == config_of(LLAVA)
    with pytest.raises(UnsupportedFeature, match="vision_feature_layer: what several blocks"):
        config_of(LLAVA, vision_feature_layer=[-2, -5])


def test_phi_3_vision_has_the_published_parameters() -> None:
    """Phi-3-vision-128k-instruct: 4,146,621,440, of which CLIP's encoder has 303,507,456."""
    document = {
        "model_type": "phi3_v",
        "architectures": ["Phi3VForCausalLM"],
        "embd_layer": {"embedding_cls": "image", "use_hd_transform": True},
        "img_processor": {"name": "clip_vision_model", "image_dim_out": 1024},
    }
    config = config_of(document)
    assert count_parameters(config) == 4_146_621_440
    (tower,) = config.towers
    assert (tower.patches, tower.tokens) == (577, 144)
    document["embd_layer"] = {"use_hd_transform": False}
    with pytest.raises(UnsupportedFeature, match="use_hd_transform: false is not modelled"):
        config_of(document)


def test_the_encoder_of_kimi_k3_is_counted_by_the_tensors_of_its_checkpoint() -> None:
    """Heads wider than the hidden size, RMS norms, no biases; a norm behind the projector."""
    vision = {
        "vt_hidden_size": 1024,
        "vt_intermediate_size": 4096,
        "vt_num_attention_heads": 12,
        "vt_num_hidden_layers": 27,
        "qkv_hidden_size": 1536,
        "norm_type": "rmsnorm",
        "attn_bias": False,
        "linear_bias": False,
        "patch_embed_proj_bias": False,
        "mm_projector_type": "patchmergerv2",
    }
    text = {"model_type": "kimi_linear", "hidden_size": 7168}
    document = {"model_type": "kimi_k3", "text_config": text, "vision_config": vision}
    whole, alone = (count_parameters(config_of(each)) for each in (document, text))
    front = 3 * 14 * 14 * 1024 + 64 * 64 * 1024
    block = 4 * 1536 * 1024 + 2 * 1024 * 4096 + 2 * 1024
    assert whole - alone == front + 27 * block + 1024 + 4096 * (4096 + 7168) + 7168
    vision["attn_bias"] = True
    with pytest.raises(UnsupportedFeature, match="biases"):
        config_of(document)


def test_layers_of_images_stand_before_the_text() -> None:
    kinds = graph(config_of(QWEN)).kinds
    assert kinds[0] is LayerKind.PATCH_EMBEDDING
    assert kinds[1:5] == (LayerKind.ENCODER_BLOCK,) * 4
    assert kinds[5:7] == (LayerKind.PROJECTOR, LayerKind.EMBEDDING)


def test_without_images_an_encoder_does_no_work_and_keeps_its_parameters() -> None:
    config = config_of(QWEN)
    idle, busy = graph(config), graph(with_images(config, 1, 64))
    assert idle.num_parameters == busy.num_parameters
    text = read_config({"model_type": "qwen3", "head_dim": 16, **TEXT}, name="x").config
    assert idle.model_flops == graph(text).model_flops
    assert busy.model_flops > idle.model_flops


def test_work_follows_the_number_of_images_and_their_size() -> None:
    config = config_of(QWEN)
    text = graph(config).model_flops

    def images(count: int, pixels: int) -> float:
        return float(graph(with_images(config, count, pixels)).model_flops) - text

    assert images(3, 64) == pytest.approx(3 * images(1, 64))
    assert images(1, 128) > 4 * images(1, 64)  # each attends to all of its own patches


def test_the_summary_of_a_model_counts_its_images() -> None:
    def flops(**stated: Any) -> float:
        found = trainwright.describe_model(QWEN, sequence=2048, **stated).document
        return float(found.flops_forward_per_token)

    one, text = flops(images=1, image_size=256), flops()
    assert flops(images=2, image_size=256) - text == pytest.approx(2 * (one - text))
    with pytest.raises(InvalidInput, match="image-size: needs --images"):
        flops(image_size=256)
    with pytest.raises(InvalidInput, match="takes no images"):
        trainwright.describe_model("gpt2", images=1)


def test_tensor_devices_share_an_encoder() -> None:
    config = with_images(config_of(LLAVA), 2)
    alone, both = graph(config), graph(config, tensor_parallel=2, sequence_parallel=True)
    assert both.num_parameters == alone.num_parameters
    assert both.forward_flops == pytest.approx(alone.forward_flops, rel=0.1)  # 17 patches on two


def test_adapters_stand_beside_the_products_of_an_encoder() -> None:
    from dataclasses import replace

    from trainwright.model import LowRank, Tuning

    low_rank = LowRank(rank=4, targets=("query", "encoder_query", "encoder_up"))
    config = with_images(config_of(LLAVA), 1)
    tuned = graph(replace(config, tuning=Tuning(low_rank=low_rank)))
    text, images = 3 * 4 * (128 + 128), 2 * 4 * ((64 + 64) + (64 + 96))
    assert tuned.num_parameters - graph(config).num_parameters == text + images
    with pytest.raises(InvalidInput, match="encoder_query"):  # it sees no images
        graph(replace(config_of(LLAVA), tuning=Tuning(low_rank=low_rank)))


def test_heads_of_an_encoder_limit_the_tensor_degree() -> None:
    shape = RunShape(microbatch_size=1, sequence_length=64, tensor_parallel=8)
    faults = [f"{f.path} {f.problem}" for f in config_of(LLAVA).faults_at(shape)]
    assert any("4 heads" in fault and "vision encoder" in fault for fault in faults)


def test_images_need_an_encoder_and_room() -> None:
    job = {"cluster": "dgx-h100", "devices": 1, "global_batch": 1, "calibration": "none"}
    with pytest.raises(InvalidInput, match="takes no images"):
        trainwright.estimate("gpt2", **job, sequence=512, images=1)


def test_images_take_time_and_a_frozen_encoder_less(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN))
    job: dict[str, Any] = {"cluster": "dgx-h100", "devices": 1, "global_batch": 4}
    job |= {"sequence": 2048, "calibration": "none"}

    def seconds(**stated: Any) -> float:
        found = trainwright.estimate(path, **job, **stated).document
        assert found.step_time_s is not None
        return float(found.step_time_s)

    with pytest.raises(InvalidInput, match="leave room: 3 x 1024 tokens"):
        seconds(images=3)
    whole = seconds(images=2)
    frozen = seconds(images=2, freeze=["patch_embedding", "encoder_block", "projector"])
    assert seconds() < frozen < whole
    assert seconds(images=2, image_size=256) < whole


def test_a_plan_cuts_a_model_that_takes_images(tmp_path: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAVA))
    job: dict[str, Any] = {"cluster": "dgx-h100", "devices": 2, "global_batch": 4}
    job |= {"sequence": 64, "calibration": "none", "images": 1, "pp": "2"}
    found = trainwright.plan(path, **job, framework="any").document
    assert next(iter(found.stages)).layers[0] == 0
    run = trainwright.estimate(path, **job | {"pp": 2}).document
    assert found.step_time_s <= run.step_time_s


def test_an_encoder_is_written_and_read_back() -> None:
    config = with_images(config_of(QWEN), 2)
    assert decode(TransformerConfig, encode(config)) == config


def test_kimis_own_names_of_sizes_are_read() -> None:
    own = {"vt_hidden_size": 96, "vt_num_hidden_layers": 3, "vt_num_attention_heads": 4}
    own |= {"vt_intermediate_size": 128, "init_pos_emb_height": 8, "init_pos_emb_width": 4}
    stated = {"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2"}}
    found = read_config({**stated, "vision_config": own}, name="x")
    (tower,) = found.config.towers
    sizes = (tower.stack.num_layers, tower.stack.hidden_size, tower.stack.ffn_size)
    assert (sizes, tower.parameters, found.ignored) == ((3, 96, 128), (8 * 4 + 2) * 96, ())


@pytest.mark.torch
@pytest.mark.parametrize("kind", every_third(sorted(WRAPPERS | ENCODER_DECODERS)))
def test_parameters_are_those_that_the_library_builds(kind: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from trainwright.lab.torch_library import count_model

    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this version of the library has no {kind}")
    document = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    found = read_config({**document, "model_type": kind}, name=kind).config
    assert count_parameters(found) == count_model(document, tokens=8).parameters


@pytest.mark.torch
def test_flops_of_an_encoder_are_those_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import CLIPVisionConfig, CLIPVisionModel

    stated = {key: value for key, value in CLIP.items() if key != "model_type"}
    made = CLIPVisionConfig(**stated, attn_implementation="eager")
    with torch.device("meta"):
        module = CLIPVisionModel(made)
        pixels = torch.zeros(1, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        module(pixels)
    config = config_of(LLAVA)
    found = graph(with_images(config, 1))
    own = sum(
        found.classes[c].model_flops
        for c, kind in zip(found.layers, found.kinds, strict=True)
        if kind in (LayerKind.PATCH_EMBEDDING, LayerKind.ENCODER_BLOCK)
    )
    # Ours multiplies the patch of the class token too, which the library puts there as it is.
    assert own == pytest.approx(counter.get_total_flops() + 2 * 3 * 8 * 8 * 64, rel=1e-6)


# An encoder, and a decoder that attends to it
# --------------------------------------------

T5: dict[str, Any] = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "vocab_size": 500,
}
# Parameters as published with the checkpoints (t5-small, bart-large, whisper-tiny).
PUBLISHED = {"t5": 60_506_624, "bart": 406_291_456, "whisper": 37_760_640}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_an_encoder_and_its_decoder_have_the_published_parameters(kind: str) -> None:
    config = config_of({"model_type": kind, "is_encoder_decoder": True})
    assert count_parameters(config) == PUBLISHED[kind]
    assert decode(TransformerConfig, encode(config)) == config


def test_a_block_scores_its_tokens_with_all_of_the_encoder() -> None:
    layers = layer_graph(config_of(T5), RunShape(microbatch_size=2, sequence_length=32))
    blocks = [c for c in layers.classes if c.kind is LayerKind.BLOCK]
    rows, hidden, inner, ffn = 2 * 32, 64, 64, 96
    attention = 4 * hidden * inner + 2 * 32 * inner  # products, then scores and values
    assert blocks[-1].model_flops == 2 * rows * (2 * attention + 2 * hidden * ffn)
    encoder = [c for c in layers.classes if c.kind is LayerKind.ENCODER_BLOCK]
    assert encoder[-1].model_flops == 2 * rows * (attention + 2 * hidden * ffn)


def test_what_the_encoder_gave_goes_along_with_the_hidden_state() -> None:
    found = layer_graph(config_of(T5), RunShape(microbatch_size=2, sequence_length=32))
    sizes = [edge.bytes for edge in found.edges]
    one = 2 * 32 * 64 * 2.0
    assert sizes[:5] == [one] * 5  # embedding, three blocks, norm of the encoder
    assert sizes[5:8] == [2 * one] * 3
    kept = [t.name for c in found.classes for t in c.saved]
    assert "cross_attention.key_value" in kept
    assert found.shared_parameters()["word_embedding"] == (0, 5, 9)


def test_a_decoder_that_attends_to_an_encoder_is_cut_by_heads_and_not_along_the_sequence(
    tmp_path: Any,
) -> None:
    config = config_of(T5)
    whole = layer_graph(config, RunShape(microbatch_size=1, sequence_length=32))
    run = RunShape(microbatch_size=1, sequence_length=32, tensor_parallel=4, sequence_parallel=True)
    cut = layer_graph(config, run)
    assert cut.model_flops == whole.model_flops
    assert cut.forward_flops < 1.3 * whole.forward_flops
    with pytest.raises(InvalidInput, match="context_parallel: must be 1: blocks attend"):
        layer_graph(config, RunShape(microbatch_size=1, sequence_length=32, context_parallel=2))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(T5))
    with pytest.raises(InvalidInput, match="takes no images"):
        trainwright.describe_model(path, images=1)
    job: dict[str, Any] = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 16, "sequence": 32}
    assert trainwright.estimate(path, **job, pp=2).document.step_time_s > 0


def test_sound_passes_two_convolutions_before_the_encoder() -> None:
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 500}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = config_of({"model_type": "whisper", **sizes, **heads})
    found = layer_graph(config, RunShape(microbatch_size=1, sequence_length=16))
    taps = 3000 * 3 * 80 * 64 + 1500 * 3 * 64 * 64
    assert found.classes[found.layers[0]].model_flops == 2 * taps


@pytest.mark.torch
def test_flops_of_both_stacks_are_those_that_torch_counts() -> None:
    from trainwright.lab.torch_library import count_model

    bart = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 500}
    bart |= {"encoder_attention_heads": 4, "decoder_attention_heads": 8, "encoder_ffn_dim": 96}
    for document in (T5, {"model_type": "bart", **bart}):
        ours = trainwright.describe_model(document, sequence=32).document
        theirs = count_model(document, tokens=32)
        assert ours.flops_forward_per_token * 32 == theirs.forward_flops
        assert sorted((r.count, r.parameters) for r in ours.layers) == sorted(
            (r.count, r.parameters) for r in theirs.layers
        )


def test_an_encoder_recomputes_where_all_blocks_do_and_something_trains(tmp_path) -> None:
    text = {"model_type": "qwen3_vl_text", "hidden_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    text |= {"intermediate_size": 256, "vocab_size": 800}
    vision = {"depth": 4, "hidden_size": 128, "num_heads": 4, "intermediate_size": 256}
    vision |= {"out_hidden_size": 128, "deepstack_visual_indexes": [1]}
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"model_type": "qwen3_vl", "text_config": text, "vision_config": vision})
    )
    asked = {"cluster": "dgx-h100", "devices": 1, "global_batch": 4, "sequence": 2048, "images": 1}

    def run(recompute: str, **options: object) -> tuple[float, float]:
        found = trainwright.estimate(file, recompute=recompute, **options, **asked).document
        return found.memory[0].activation_bytes, found.step_time_s

    kept, whole, blocks = run("none"), run("full"), run("full:2")
    assert whole[0] < blocks[0] < kept[0]
    assert whole[1] > blocks[1] > kept[1]
    frozen = {"freeze": ("patch_embedding", "encoder_block")}
    assert run("full", **frozen) == run("full:2", **frozen)
