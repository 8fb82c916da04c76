"""Models that take images or sound beside text: which text family they wrap, and their encoder.

Every encoder is a rule over the keys of `vision_config`, every projector one over its sizes and
those of the text. Defaults are those of the public configuration classes of transformers 5. Where
images may have any size, one of `IMAGE_PIXELS` a side is assumed until a run says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from trainwright.errors import UnsupportedFeature
from trainwright.formats.hf_decoders import refuse_flags, sound_front
from trainwright.formats.hf_keys import KeyReader, activation
from trainwright.formats.json_text import show_value
from trainwright.model import Norm, Projection, Tower, TransformerConfig

IMAGE_PIXELS: Final = 1024

# Text families inside wrappers, under the names that their files give them, and what they, or those
# around them, take where a file is silent and the family alone takes something else.
TEXT_FAMILIES: Final = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_moe_text": "glm4_moe",
}
_QWEN2_VL: Final[dict[str, object]] = {
    "num_layers": 80,
    "hidden_size": 8192,
    "ffn_size": 29568,
    "num_heads": 64,
    "num_kv_heads": 8,
    "vocabulary_size": 152064,
}
TEXT_DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_moe_text": {
        "ffn_size": 5632,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_size": 128,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 4,
        "num_experts": 60,
    },
    "glm4v_moe_text": {"vocabulary_size": 151424, "attention_bias": True},
    "voxtral": {
        "num_layers": 30,
        "hidden_size": 3072,
        "ffn_size": 8192,
        "num_kv_heads": 8,
        "head_size": 128,
        "vocabulary_size": 131072,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """A stack of image blocks as read, with what its projector needs to know."""

    stack: TransformerConfig
    patch_pixels: int
    channels: int
    frames: int = 1
    patch_bias: bool = True
    image_pixels: int | None = None
    class_tokens: int = 0
    parameters: int = 0

    @property
    def hidden(self) -> int:
        """Width of the stack."""
        return self.stack.hidden_size

    def tower(
        self,
        *,
        projector: tuple[Projection, ...],
        merge: int = 1,
        tokens: int | None = None,
        parameters: int = 0,
    ) -> Tower:
        """The tower whose projector takes squares of `merge` patches a side, or gives `tokens`."""
        side = (self.image_pixels or IMAGE_PIXELS) // self.patch_pixels
        patches = (max(1, side // merge) * merge) ** 2
        return Tower(
            name="vision",
            stack=self.stack,
            patch_features=self.channels * self.frames * self.patch_pixels**2,
            patches=patches + self.class_tokens,
            tokens=tokens or max(1, patches // merge**2),
            patch_bias=self.patch_bias,
            parameters=self.parameters + parameters,
            projector=projector,
            patch_pixels=None if self.image_pixels else self.patch_pixels,
            merge=merge,
        )


_LONG: Final = ("num_hidden_layers", "num_attention_heads", "num_channels")
_SHORT: Final = ("depth", "num_heads", "in_channels")  # as Qwen's files call them


def _stack(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    names: tuple[str, str, str] = _LONG,
    hidden_key: str = "hidden_size",
    ffn_key: str = "intermediate_size",
    act_key: str = "hidden_act",
    act: str = "gelu_pytorch_tanh",
    norm: Norm = Norm.LAYER,
    biased: bool = True,
    gated: bool = False,
    qkv_bias: bool | None = None,
    whole: int | None = None,
) -> TransformerConfig:
    """Blocks that attend to all patches of their image; counts are the defaults of their keys.

    Without an `ffn_key` that width is as given. All heads are as wide as the hidden size, or
    `whole`.
    """
    num_heads, width = keys.count(names[1], heads), keys.count(hidden_key, hidden)
    if (whole or width) % num_heads:
        keys.refuse(hidden_key, f"must be a multiple of the {num_heads} heads, got {width}")
        num_heads = 1
    return TransformerConfig(
        family="vision",
        num_layers=keys.count(names[0], layers),
        hidden_size=width,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=(whole or width) // num_heads,
        ffn_size=keys.count(ffn_key, ffn) if ffn_key else ffn,
        vocabulary_size=1,
        norm=norm,
        activation=activation(keys, act_key, act),
        gated=gated,
        causal=False,
        query_key_value_bias=biased if qkv_bias is None else qkv_bias,
        attention_output_bias=biased,
        mlp_bias=biased,
        attention_dropout=keys.fraction("attention_dropout", 0.0),
    )


def _of_one_size(
    keys: KeyReader,
    stack: TransformerConfig,
    *,
    patch: int,
    pixels: int,
    class_token: bool = False,
    norms: int = 1,
    parameters: int = 0,
) -> _Encoder:
    """Images of one side, a learned vector per position, `norms` with bias around the stack.

    A class token stands before the patches, whose product has no bias then.
    """
    patch, pixels = keys.side("patch_size", patch), keys.side("image_size", pixels)
    positions = (pixels // patch) ** 2 + class_token
    return _Encoder(
        stack=stack,
        patch_pixels=patch,
        channels=keys.count("num_channels", 3),
        patch_bias=not class_token,
        image_pixels=pixels,
        class_tokens=int(class_token),
        parameters=(class_token + positions + 2 * norms) * stack.hidden_size + parameters,
    )


def _of_any_size(
    keys: KeyReader,
    stack: TransformerConfig,
    *,
    patch: int,
    names: tuple[str, str, str] = _LONG,
    frames: int = 1,
    bias: bool = False,
    parameters: int = 0,
) -> _Encoder:
    """Images of any size; a patch takes so many `frames` where Qwen's key does not say."""
    return _Encoder(
        stack=stack,
        patch_pixels=keys.count("patch_size", patch),
        channels=keys.count(names[2], 3),
        frames=keys.count("temporal_patch_size", frames) if names is _SHORT else frames,
        patch_bias=bias,
        parameters=parameters,
    )


# Encoders
# --------


def _clip(keys: KeyReader) -> _Encoder:
    keys.pass_over("projection_dim", "vocab_size")
    stack = _stack(keys, layers=12, hidden=768, heads=12, ffn=3072, act="quick_gelu")
    return _of_one_size(keys, stack, patch=32, pixels=224, class_token=True, norms=2)


def _siglip(keys: KeyReader) -> _Encoder:
    keys.pass_over("projection_dim", "vocab_size", "num_image_tokens", "projector_hidden_act")
    stack = _stack(keys, layers=12, hidden=768, heads=12, ffn=3072)
    h, ffn = stack.hidden_size, stack.ffn_size
    # A query that pools: itself, attention with biases, a norm and a feed-forward part.
    pooling = h + 4 * h * h + 4 * h + 2 * h + 2 * h * ffn + ffn + h
    pools = keys.flag("vision_use_head", True)
    return _of_one_size(keys, stack, patch=16, pixels=224, parameters=pooling if pools else 0)


def _idefics3(keys: KeyReader) -> _Encoder:
    keys.pass_over("max_image_size", "size", "use_base_siglip", "tie_word_embeddings")
    stack = _stack(keys, layers=12, hidden=1152, heads=16, ffn=3072)
    return _of_one_size(keys, stack, patch=32, pixels=224)


def _llama4(keys: KeyReader) -> _Encoder:
    keys.pass_over("multi_modal_projector_bias", "projector_dropout", "vision_feature_layer")
    keys.pass_over("vision_feature_select_strategy", "rope_parameters")
    stack = _stack(keys, layers=34, hidden=768, heads=16, ffn=5632, act="gelu")
    return _of_one_size(keys, stack, patch=14, pixels=448, class_token=True, norms=2)


def _pixtral(keys: KeyReader) -> _Encoder:
    keys.pass_over("head_dim", "image_size", "vocab_size", "max_image_tiles", "tile_size")
    stack = _stack(
        keys,
        layers=24,
        hidden=1024,
        heads=16,
        ffn=4096,
        act="gelu",
        norm=Norm.RMS,
        biased=False,
        gated=True,
    )
    return _of_any_size(keys, stack, patch=16, parameters=stack.hidden_size)


# What Kimi's own files call the sizes of their encoder, and what says nothing of its cost.
_KIMI_KEYS: Final = {
    "num_hidden_layers": "vt_num_hidden_layers",
    "num_attention_heads": "vt_num_attention_heads",
    "hidden_size": "vt_hidden_size",
    "intermediate_size": "vt_intermediate_size",
    "pos_emb_height": "init_pos_emb_height",
    "pos_emb_width": "init_pos_emb_width",
}
_KIMI_SILENT: Final = (
    *("pos_emb_time", "merge_type", "pos_emb_type", "video_attn_type"),
    *("init_pos_emb_time", "projector_hidden_act", "projector_ln_eps", "mm_projector_type"),
    *("mm_hidden_size", "text_hidden_size", "activation_func", "mlp_type"),
    "pos_emb_interpolation_mode",
)


def _kimi(keys: KeyReader) -> _Encoder:
    keys.pass_over(*_KIMI_SILENT)
    if keys.states("vt_hidden_size"):
        keys.spell(_KIMI_KEYS)
    norm, linear, attention, patch = Norm.LAYER, True, True, True
    if keys.states("norm_type"):
        norm = Norm.RMS if keys.text("norm_type", "") == "rmsnorm" else Norm.LAYER
        linear, attention = keys.flag("linear_bias", True), keys.flag("attn_bias", True)
        patch = keys.flag("patch_embed_proj_bias", True)
    if linear != attention:
        raise UnsupportedFeature("biases of products and of attention that differ are not modelled")
    whole = keys.optional_count("qkv_hidden_size")
    stack = _stack(
        keys,
        layers=27,
        hidden=1152,
        heads=16,
        ffn=4304,
        norm=norm,
        biased=linear,
        whole=whole,
    )
    height, width = keys.count("pos_emb_height", 64), keys.count("pos_emb_width", 64)
    own = (height * width + 1 + norm.has_bias) * stack.hidden_size
    return _of_any_size(keys, stack, patch=14, bias=patch, parameters=own)


def _qwen2_vl(keys: KeyReader) -> _Encoder:
    keys.pass_over("hidden_size", "in_chans", "spatial_patch_size")
    stack = _stack(
        keys,
        layers=32,
        hidden=1280,
        heads=16,
        ffn=int(keys.count("embed_dim", 1280) * keys.ratio("mlp_ratio", 4)),
        names=_SHORT,
        hidden_key="embed_dim",
        ffn_key="",
        act="quick_gelu",
    )
    return _of_any_size(keys, stack, patch=14, names=_SHORT, frames=2)


def _qwen2_5_vl(keys: KeyReader) -> _Encoder:
    keys.pass_over("in_chans", "spatial_patch_size", "tokens_per_second")
    stack = _stack(
        keys,
        layers=32,
        hidden=3584,
        heads=16,
        ffn=3420,
        names=_SHORT,
        act="silu",
        norm=Norm.RMS,
        gated=True,
    )
    full = keys.counts("fullatt_block_indexes", (7, 15, 23, 31))
    patch = keys.count("patch_size", 14)
    stack = replace(
        stack,
        sliding_window=(keys.count("window_size", 112) // patch) ** 2,
        chunked=True,
        full_attention_layers=tuple(i for i in full if i < stack.num_layers),
    )
    return _of_any_size(keys, stack, patch=14, names=_SHORT, frames=2)


def _qwen3_vl(keys: KeyReader) -> _Encoder:
    stack = _stack(keys, layers=27, hidden=1152, heads=16, ffn=4304, names=_SHORT)
    own = keys.count("num_position_embeddings", 2304) * stack.hidden_size
    return _of_any_size(keys, stack, patch=16, names=_SHORT, frames=2, bias=True, parameters=own)


def _glm4v(keys: KeyReader) -> _Encoder:
    stack = _stack(
        keys,
        layers=24,
        hidden=1536,
        heads=12,
        ffn=4096,
        names=_SHORT,
        ffn_key="out_hidden_size",
        act="silu",
        norm=Norm.RMS,
        biased=False,
        gated=True,
        qkv_bias=keys.flag("attention_bias", False),
    )
    patch, pixels = keys.count("patch_size", 14), keys.count("image_size", 336)
    own = ((pixels // patch) ** 2 + 2) * stack.hidden_size
    return _of_any_size(keys, stack, patch=14, names=_SHORT, frames=2, bias=True, parameters=own)


def _gemma4_vision(keys: KeyReader) -> _Encoder:
    keys.pass_over("use_clipped_linears", "standardize", "max_position_embeddings", "num_kv_heads")
    keys.pass_over("global_head_dim", "default_output_length", "vision_soft_tokens_per_image")
    stack = _stack(
        keys,
        layers=16,
        hidden=768,
        heads=12,
        ffn=3072,
        act_key="hidden_activation",
        norm=Norm.RMS,
        biased=keys.stated_flag("attention_bias"),
        gated=True,
    )
    stack = replace(stack, head_size=keys.count("head_dim", 64), query_key_norm=True)
    own = 2 * keys.count("position_embedding_size", 10240) * stack.hidden_size
    stack = replace(stack, sandwich_norm=True)
    return _of_any_size(keys, stack, patch=16, parameters=own)


def _internvl_vision(keys: KeyReader) -> _Encoder:
    keys.pass_over("projection_dropout", "layer_scale_init_value", "hidden_dropout")
    refuse_flags(keys, "use_mask_token")
    norm = Norm.RMS if keys.text("norm_type", "layer_norm") == "rms_norm" else Norm.LAYER
    if norm is Norm.LAYER:
        refuse_flags(keys, "use_qk_norm")  # those are of the other kind
    whole = norm is Norm.RMS and keys.flag("use_qk_norm", False)
    stack = _stack(
        keys,
        layers=24,
        hidden=1024,
        heads=16,
        ffn=4096,
        act="gelu",
        norm=norm,
        qkv_bias=keys.flag("attention_bias", False),
    )
    stack = replace(stack, query_key_norm=whole, query_key_norm_whole=whole, layer_scale=True)
    last = int(not keys.flag("use_mean_pooling", True))
    found = _of_one_size(keys, stack, patch=14, pixels=448, class_token=True, norms=last)
    if not keys.flag("use_absolute_position_embeddings", True):
        raise UnsupportedFeature("use_absolute_position_embeddings: false is not modelled")
    return replace(found, patch_bias=True)


# Encoders under the names that sections of files give them.
_CLIP, _SIGLIP, _PIXTRAL = "clip_vision_model", "siglip_vision_model", "pixtral"
_NAMED_ENCODERS: Final = {_CLIP: _clip, _SIGLIP: _siglip, _PIXTRAL: _pixtral}

# Wrappers: the encoder, and the projector between it and the text
# ----------------------------------------------------------------


def _two_layers(
    inputs: int,
    inner: int,
    outputs: int,
    *,
    bias: bool = True,
    norm: Norm | None = None,
    norm_width: int | None = None,
    names: tuple[str, str] = ("linear_1", "linear_2"),
) -> tuple[Projection, ...]:
    """A product, an activation, another product."""
    first = Projection(
        name=names[0],
        inputs=inputs,
        outputs=inner,
        bias=bias,
        norm=norm,
        norm_width=norm_width,
        activation=True,
    )
    return (first, Projection(name=names[1], inputs=inner, outputs=outputs, bias=bias))


def _named(vision: KeyReader, usual: str, *others: str) -> str:
    """The encoder that a section names, the `usual` one where it is silent.

    Raises `UnsupportedFeature` for one that is none of these.
    """
    kind = vision.text("model_type", usual)
    vision.defaults.pop(f"{vision.prefix}model_type", None)
    if kind not in (usual, *others):
        raise UnsupportedFeature(
            f'{vision.prefix}model_type "{kind}" is not modelled here',
            alternative=f"{', '.join((usual, *others))} is",
        )
    return kind


def _of_one_block(keys: KeyReader) -> None:
    """Raise `UnsupportedFeature` where the projector joins what several blocks give."""
    field = "vision_feature_layer"
    stated = keys.value(field, -1)
    keys.defaults.pop(f"{keys.prefix}{field}", None)
    if isinstance(stated, list) and len(stated) > 1:
        raise UnsupportedFeature(f"{field}: what several blocks give is not modelled")


def _llava(
    keys: KeyReader, vision: KeyReader, text: TransformerConfig, *, usual: str = _CLIP
) -> Tower:
    keys.pass_over("projector_hidden_act", "image_seq_length")
    keys.pass_over("vision_feature_select_strategy", "image_grid_pinpoints", "vision_aspect_ratio")
    _of_one_block(keys)
    found = _NAMED_ENCODERS[_named(vision, usual, *_NAMED_ENCODERS)](vision)
    bias = keys.flag("multimodal_projector_bias", True)
    h = text.hidden_size
    return found.tower(projector=_two_layers(found.hidden, h, h, bias=bias))


def _llava_next(
    keys: KeyReader, vision: KeyReader, text: TransformerConfig, *, usual: str = _CLIP
) -> Tower:
    """As before, with a learned vector at the end of each row of tiles."""
    tower = _llava(keys, vision, text, usual=usual)
    return replace(tower, parameters=tower.parameters + text.hidden_size)


def _phi3_vision(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    """CLIP's large encoder on tiles of one size, whatever its section says; squares are merged.

    A vector stands at the end of each row of tiles and one between the whole image and its tiles.
    """
    vision.pass_over("image_dim_out", "model_name", "name", "num_img_tokens", "layer_idx")
    vision.pass_over("type_feature", "num_img_crops", "image_size", "patch_size")
    layer = keys.section("embd_layer")
    layer.pass_over("embedding_cls", "hd_transform_order", "image_embd_layer", "projection_cls")
    for flag in ("use_hd_transform", "with_learnable_separator"):
        if not layer.flag(flag, True):
            raise UnsupportedFeature(f"embd_layer.{flag}: false is not modelled")
    large = KeyReader(
        {
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "patch_size": 14,
            "image_size": 336,
        }
    )
    found, merge, h = _clip(large), 2, text.hidden_size
    wide = found.hidden * merge**2
    return found.tower(projector=_two_layers(wide, h, h), merge=merge, parameters=2 * wide)


def _gemma3(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    _named(vision, _SIGLIP)
    found = _siglip(vision)
    tokens = keys.count("mm_tokens_per_image", 256)
    product = Projection(
        name="mm_input_projection",
        inputs=found.hidden,
        outputs=text.hidden_size,
        bias=False,
        norm=Norm.RMS,
    )
    return found.tower(projector=(product,), tokens=tokens)


def _paligemma(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    _named(vision, _SIGLIP)
    found = _siglip(vision)
    keys.pass_over("hidden_size", "num_image_tokens")
    out = keys.count("projection_dim", 2048)
    return found.tower(projector=(Projection(name="linear", inputs=found.hidden, outputs=out),))


def _mistral3(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    keys.pass_over("projector_hidden_act")
    _of_one_block(keys)
    _named(vision, _PIXTRAL)
    found, merge = _pixtral(vision), keys.count("spatial_merge_size", 2)
    bias, h = keys.flag("multimodal_projector_bias", False), text.hidden_size
    merging = Projection(
        name="merging_layer",
        inputs=found.hidden * merge**2,
        outputs=found.hidden,
        bias=False,
        norm=Norm.RMS,
        norm_width=found.hidden,
    )
    products = (merging, *_two_layers(found.hidden, h, h, bias=bias))
    return found.tower(projector=products, merge=merge)


def _idefics(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    found, scale = _idefics3(vision), keys.count("scale_factor", 2)
    product = Projection(
        name="connector", inputs=found.hidden * scale**2, outputs=text.hidden_size, bias=False
    )
    return found.tower(projector=(product,), merge=scale)


def _qwen(
    read: Callable[[KeyReader], _Encoder], norm: Norm
) -> Callable[[KeyReader, KeyReader, TransformerConfig], Tower]:
    def tower(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
        found, merge = read(vision), vision.count("spatial_merge_size", 2)
        field = "hidden_size" if read is _qwen2_vl else "out_hidden_size"
        wide, out = found.hidden * merge**2, vision.count(field, 3584)
        merger = _two_layers(wide, wide, out, norm=norm, norm_width=found.hidden)
        deep = (
            len(vision.counts("deepstack_visual_indexes", (8, 16, 24))) if read is _qwen3_vl else 0
        )
        further: tuple[Projection, ...] = ()
        for at in range(deep):  # features of earlier blocks, merged alike
            names = (f"deepstack_{at}_1", f"deepstack_{at}_2")
            further += _two_layers(wide, wide, out, norm=norm, names=names)
        return found.tower(projector=(*merger, *further), merge=merge)

    return tower


def _qwen35(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    vision.pass_over("deepstack_visual_indexes")
    found, merge = _qwen3_vl(vision), vision.count("spatial_merge_size", 2)
    wide, out = found.hidden * merge**2, vision.count("out_hidden_size", 3584)
    return found.tower(
        projector=_two_layers(wide, wide, out, norm=Norm.LAYER, norm_width=found.hidden),
        merge=merge,
    )


def _glm(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    found, merge = _glm4v(vision), vision.count("spatial_merge_size", 2)
    out, inner = vision.count("out_hidden_size", 4096), vision.count("intermediate_size", 13696)
    h = found.hidden
    products = (
        Projection(name="downsample", inputs=h * merge**2, outputs=out),
        Projection(
            name="merger_proj",
            inputs=out,
            outputs=out,
            bias=False,
            norm_after=Norm.LAYER,
            activation=True,
        ),
        Projection(
            name="merger_gate_up",
            inputs=out,
            outputs=inner,
            bias=False,
            gated=True,
            activation=True,
        ),
        Projection(name="merger_down", inputs=inner, outputs=out, bias=False),
    )
    return found.tower(projector=products, merge=merge)


def _llama4_wrapper(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    found = _llama4(vision)
    merge = _merged(vision, "pixel_shuffle_ratio")
    inner = vision.count("projector_input_dim", 4096)
    out = vision.count("projector_output_dim", 4096)
    given = vision.count("vision_output_dim", 7680)
    adapter = Projection(
        name="adapter_1",
        inputs=found.stack.ffn_size,
        outputs=inner,
        bias=False,
        activation=True,
    )
    products = (
        adapter,
        Projection(name="adapter_2", inputs=out, outputs=out, bias=False),
        Projection(name="linear_1", inputs=given, outputs=text.hidden_size, bias=False),
    )
    return found.tower(projector=products, merge=merge)


def _merged(keys: KeyReader, field: str) -> int:
    """Patches a side that become one, of the share of a side that is left."""
    ratio = keys.value(field, 0.5)
    if not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        keys.refuse(field, f"must be a number in (0, 1], got {show_value(ratio)}")
        return 1
    return int(1 / ratio)


def _kimi_wrapper(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    found, merge = _kimi(vision), vision.side("merge_kernel_size", 2)
    keys.pass_over("projection_layer_norm_eps")
    if vision.value("mm_projector_type", "") == "patchmergerv2":  # its norm stands last
        wide, h = found.hidden * merge**2, text.hidden_size
        first, second = _two_layers(wide, wide, h, bias=False)
        return found.tower(projector=(first, replace(second, norm_after=Norm.RMS)), merge=merge)
    vision.defaults.pop(f"{vision.prefix}mm_projector_type", None)
    normed = keys.count("projection_hidden_size", found.hidden)
    wide = found.hidden * merge**2
    return found.tower(
        projector=_two_layers(wide, wide, text.hidden_size, norm=Norm.LAYER, norm_width=normed),
        merge=merge,
    )


def _gemma4(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    """Patches are averaged in squares; what comes of one is normed and widened."""
    keys.pass_over("vision_soft_tokens_per_image")
    found, merge = _gemma4_vision(vision), vision.count("pooling_kernel_size", 3)
    product = Projection(
        name="embedding_projection",
        inputs=found.hidden,
        outputs=text.hidden_size,
        bias=False,
        norm=Norm.WITHOUT_WEIGHT,
    )
    return found.tower(projector=(product,), merge=merge)


def _internvl(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    keys.pass_over("projector_hidden_act", "vision_feature_layer", "image_seq_length")
    keys.pass_over("vision_feature_select_strategy")
    found, merge = _internvl_vision(vision), _merged(keys, "downsample_ratio")
    wide, h = found.hidden * merge**2, text.hidden_size
    return found.tower(projector=_two_layers(wide, h, h, norm=Norm.LAYER), merge=merge)


def _cohere(keys: KeyReader, vision: KeyReader, text: TransformerConfig) -> Tower:
    _named(vision, _SIGLIP)
    found, merge = _siglip(vision), keys.count("downsample_factor", 2)
    inner = keys.count("alignment_intermediate_size", 36864)
    if inner % 2:
        keys.refuse(
            "alignment_intermediate_size", f"must be even (a gate and a value), got {inner}"
        )
    products = (
        Projection(
            name="linear_1",
            inputs=found.hidden * merge**2,
            outputs=inner // 2,
            gated=True,
            activation=True,
        ),
        Projection(name="linear_2", inputs=inner // 2, outputs=text.hidden_size),
    )
    return found.tower(projector=products, merge=merge)


def _sound(
    sizes: tuple[str, str, str], *, averaged: int = 1, joined: bool = False, two: bool = True
) -> Callable[[KeyReader, KeyReader, TransformerConfig], Tower]:
    """Whisper's encoder; of its rows so many are averaged, for one or `two` products.

    Where rows are `joined`, as many are one as make up the feed-forward width. `sizes` are the keys
    of layers, heads and feed-forward width.
    """

    def tower(keys: KeyReader, sound: KeyReader, text: TransformerConfig) -> Tower:
        bias = not joined
        if keys.states("projector_bias"):
            bias = keys.flag("projector_bias", bias)
        keys.pass_over("projector_hidden_act", "projector_bias", "hidden_size")
        sound.pass_over("scale_embedding", "vocab_size", "encoder_layerdrop", "layerdrop")
        sound.pass_over(
            "hidden_dropout", "num_layers", "head_size", "num_kv_heads", "max_positions"
        )
        layers, heads, ffn = sizes
        stack = _stack(
            sound,
            layers=32,
            hidden=1280,
            heads=20,
            ffn=5120,
            names=(layers, heads, "num_mel_bins"),
            ffn_key=ffn,
            act_key="activation_function",
            act="gelu",
        )
        front = sound_front(sound, hidden=stack.hidden_size, bins=128)
        wide, h = stack.ffn_size if joined else stack.hidden_size, text.hidden_size
        products: tuple[Projection, ...] = (Projection(name="linear", inputs=wide, outputs=h),)
        if two:
            products = _two_layers(wide, h, h, bias=bias)
        return Tower(
            name="sound",
            stack=replace(stack, key_bias=False),
            projector=products,
            **(front | {"tokens": front["tokens"] * stack.hidden_size // (averaged * wide)}),
        )

    return tower


_OWN_KEYS: Final = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
_USUAL_KEYS: Final = ("num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """A wrapped family: its text where the section names none, its tower, and how it ties its head.

    Where the file's top is silent the head is `tied`, or as the text says where it `asks_text`; the
    `text_alone` says it whatever stands at the top.
    Sizes of a `flat` one may stand at the top. Where a file has no section for images, the encoder
    is that of its class, unless the wrapper has a `default_encoder` of its own, which is not known
    here, or the encoder is `optional`.
    """

    text: str
    tower: Callable[[KeyReader, KeyReader, TransformerConfig], Tower]
    tied: bool = False
    asks_text: bool = False
    text_alone: bool = False
    flat: bool = False
    default_encoder: bool = False
    optional: bool = False
    section: str = "vision_config"

    @property
    def needed(self) -> tuple[str, ...]:
        """Sections that a file must have."""
        return ("text_config",) * (not self.flat) + (self.section,) * self.default_encoder


_QWEN3_VL: Final = _qwen(_qwen3_vl, Norm.LAYER)
WRAPPERS: Final[dict[str, Wrapper]] = {
    "llava": Wrapper(text="llama", tower=_llava, asks_text=True, default_encoder=True),
    "llava_next": Wrapper(text="llama", tower=_llava_next, default_encoder=True),
    "llava_onevision": Wrapper(
        text="qwen2",
        tower=partial(_llava_next, usual=_SIGLIP),
        asks_text=True,
        default_encoder=True,
    ),
    "gemma3": Wrapper(text="gemma3_text", tower=_gemma3, tied=True),
    "paligemma": Wrapper(text="gemma", tower=_paligemma, tied=True, default_encoder=True),
    "mistral3": Wrapper(text="mistral", tower=_mistral3, tied=True, default_encoder=True),
    "idefics3": Wrapper(text="llama", tower=_idefics),
    "smolvlm": Wrapper(text="llama", tower=_idefics),
    "qwen2_vl": Wrapper(
        text="qwen2_vl_text", tower=_qwen(_qwen2_vl, Norm.LAYER), asks_text=True, flat=True
    ),
    "qwen2_5_vl": Wrapper(
        text="qwen2_5_vl_text", tower=_qwen(_qwen2_5_vl, Norm.RMS), asks_text=True, flat=True
    ),
    "qwen3_vl": Wrapper(text="qwen3", tower=_QWEN3_VL),
    "qwen3_vl_moe": Wrapper(text="qwen3_vl_moe_text", tower=_QWEN3_VL),
    "qwen3_5": Wrapper(text="qwen3_5_text", tower=_qwen35),
    "qwen3_5_moe": Wrapper(text="qwen3_5_moe_text", tower=_qwen35),
    "glm4v": Wrapper(text="glm4v_text", tower=_glm, asks_text=True),
    "glm4v_moe": Wrapper(text="glm4v_moe_text", tower=_glm, asks_text=True),
    "glm46v": Wrapper(text="glm4v_text", tower=_glm),
    "cohere2_vision": Wrapper(text="cohere2", tower=_cohere, tied=True, default_encoder=True),
    "llama4": Wrapper(text="llama4_text", tower=_llama4_wrapper, text_alone=True),
    "qwen2_audio": Wrapper(
        text="qwen2", tower=_sound(_OWN_KEYS, averaged=2, two=False), section="audio_config"
    ),
    "audioflamingo3": Wrapper(
        text="qwen2", tower=_sound(_USUAL_KEYS, averaged=2), section="audio_config"
    ),
    "voxtral": Wrapper(
        text="llama", tower=_sound(_USUAL_KEYS, joined=True), section="audio_config"
    ),
    "gemma4": Wrapper(text="gemma4_text", tower=_gemma4, tied=True, optional=True),
    "internvl": Wrapper(text="qwen2", tower=_internvl, tied=True),
    "kimi_k25": Wrapper(text="deepseek_v3", tower=_kimi_wrapper, tied=True),
    "kimi_k3": Wrapper(text="kimi_linear", tower=_kimi_wrapper),
    "phi3_v": Wrapper(text="phi3", tower=_phi3_vision, flat=True, section="img_processor"),
}
