"""Which model families are read from a `config.json`, and by which function.

A function returns the fields of `TransformerConfig`, and leaves faults and defaults in the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainwright.formats import hf_deepseek as deepseek
from trainwright.formats import hf_gemma as gemma
from trainwright.formats import hf_layer_norm_families as layer_norm
from trainwright.formats import hf_mixture_families as mixture
from trainwright.formats import hf_rotary_families as rotary
from trainwright.formats.hf_keys import KeyReader
from trainwright.formats.hf_parts import Fields

FAMILIES: Final[dict[str, Callable[[KeyReader], Fields]]] = {
    "gpt2": layer_norm.read_gpt2,
    "gpt_neo": layer_norm.read_gpt_neo,
    "opt": layer_norm.read_opt,
    "bloom": layer_norm.read_bloom,
    "mpt": layer_norm.read_mpt,
    "bert": layer_norm.read_bert,
    "nemotron": layer_norm.read_nemotron,
    "llama": rotary.read_llama,
    "mistral": rotary.read_mistral,
    "qwen2": rotary.read_qwen2,
    "qwen3": rotary.read_qwen3,
    "phi3": rotary.read_phi3,
    "granite": rotary.read_granite,
    "gemma": gemma.read_gemma,
    "gemma2": gemma.read_gemma2,
    "gemma3_text": gemma.read_gemma3,
    "mixtral": mixture.read_mixtral,
    "qwen2_moe": mixture.read_qwen2_moe,
    "qwen3_moe": mixture.read_qwen3_moe,
    "gpt_oss": mixture.read_gpt_oss,
    "grok-1": mixture.read_grok,
    "deepseek_v2": deepseek.read_deepseek_v2,
    "deepseek_v3": deepseek.read_deepseek_v3,
    "kimi_k2": deepseek.read_kimi_k2,
}

# Other names under which the same architectures are published.
ALIASES: Final = {"grok": "grok-1", "grok1": "grok-1", "grok_1": "grok-1", "gpt-oss": "gpt_oss"}
