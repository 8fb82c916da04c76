"""Google's Gemma: heads wider than hidden over heads, gated GELU, a tied head.

Gemma 2 and 3 have a second norm after each half and attend within a window in most blocks; Gemma 3
norms queries and keys. Caps of logits cost next to nothing and are passed over. Defaults are those
of the public configuration classes (transformers 4.x).
"""

from __future__ import annotations

from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.hf_parts import Fields, activation, rotary_decoder, windows

_GELU = "gelu_pytorch_tanh"


def read_gemma(keys: KeyReader) -> Fields:
    """Fields of a `gemma` config."""
    return _decoder(keys, layers=28, hidden=3072, ffn=24576, heads=16, kv_heads=16)


def read_gemma2(keys: KeyReader) -> Fields:
    """Fields of a `gemma2` config: a window in every other block, beginning with the first."""
    decoder = _decoder(keys, layers=26, hidden=2304, ffn=9216, heads=8, kv_heads=4)
    keys.pass_over("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
    return _windowed(keys, decoder, every=2)


def read_gemma3(keys: KeyReader) -> Fields:
    """Fields of a `gemma3_text` config: one block in six attends in full, query and key norms."""
    decoder = _decoder(
        keys, layers=26, hidden=2304, ffn=9216, heads=8, kv_heads=4, vocabulary=262208
    )
    keys.pass_over("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
    keys.pass_over("rope_local_base_freq", "use_bidirectional_attention")
    every = keys.count("sliding_window_pattern", 6)
    return _windowed(keys, decoder, every=every) | {"query_key_norm": True}


def _decoder(
    keys: KeyReader,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocabulary: int = 256000,
) -> Fields:
    """What all three share."""
    bias = keys.flag("attention_bias", False)
    decoder = rotary_decoder(
        keys,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=vocabulary,
        head_size=256,
        activation_name=_GELU,
        tied=True,
    )
    keys.defaults.pop("hidden_act", None)  # older files have it beside the key that counts
    return {
        **decoder,
        "head_size": keys.count("head_size", 256),
        "activation": activation(keys, "hidden_activation", _GELU),
        "query_key_value_bias": bias,
        "attention_output_bias": bias,
    }


def _windowed(keys: KeyReader, decoder: Fields, *, every: int) -> Fields:
    """Every so manieth block attends in full, unless the file lists them; two norms a half."""
    fields = windows(keys, decoder, window=keys.nullable_count("sliding_window", 4096))
    if not keys.states("layer_types") and "sliding_window" in fields:
        fields["full_attention_layers"] = tuple(range(every - 1, decoder["num_layers"], every))
    return fields | {"sandwich_norm": True}
