"""Names of models and tokenizers in files of jobs, as what the catalog calls them.

Hubs and frameworks spell the same model in many ways: `Qwen/Qwen3-30B-A3B-Instruct-2507`,
`qwen3_30B_A3B.yaml`, `torchtune.models.llama3_1.llama3_1_8b`. A name is brought into one form
(lower case, one sign between words, without what changes no size: instruct, base, chat, a date);
the catalog's names are brought into the same form. A model's own fine-tunes have its sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, product, zip_longest
from typing import Final

from trainwright.formats.catalog import model_entries, model_names

# What a name may have beside the model that sizes do not depend on.
_ADDED: Final = re.compile(
    r"[-_ .](?:instruct|chat|base|it|hf|fp16|bf16|fp8|bnb|4bit|8bit|dequantized|preview|"
    r"checkpoints?|pretrain(?:ed)?|thinking|v0\.[1-9]|v1\.0|v1\.5|2507|2501|1106|0324|0528|tuned|"
    r"intermediate|step|alignment|mid|training|sft|beta|alpha|original|unsloth|awq|gptq|full|qlora|dpo|orpo|constitutional|ai|deduped)"
    r"(?=$|[-_ .])"
)
# Releases with the sizes of another, and what publishers call the models of the catalog.
_SAME: Final = {
    "llama3.1": "llama3", "llama3.3": "llama3", "meta-llama3.1": "llama3", "meta-llama3": "llama3",
    "llama-3.1": "llama3", "llama-3.3": "llama3", "llama-3": "llama3", "llama-2": "llama2",
    "meta-llama-3.1": "llama3", "meta-llama-3": "llama3", "meta-llama-2": "llama2",
    "qwen2.5-coder": "qwen2.5", "qwen2.5-math": "qwen2.5", "qwen3-coder": "qwen3",
    "gemma1.1": "gemma", "llama-3.2": "llama3.2",
    "tinyllama-v1.1": "tinyllama-1.1b", "tinyllama": "tinyllama-1.1b",
    "tinyllama-1.1b-v1.0": "tinyllama-1.1b", "codellama": "llama2", "code-llama2": "llama2",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3", "deepseek-v3-671b": "deepseek-v3",
    "deepseek-v2-16b": "deepseek-v2-lite", "deepseek-v3-16b": "deepseek-v2-lite",
    "deepseek-v3-236b": "deepseek-v2", "grok1": "grok-1",
    "mistral-7b-v0.3": "mistral-7b", "phi4-14b": "phi4", "smollm": "smollm2",
    "zephyr-7b-gemma": "gemma-7b", "zephyr-7b": "mistral-7b", "llama-7b": "llama2-7b",
    "openhermes2.5-mistral-7b": "mistral-7b", "llama-13b": "llama2-13b",
    "deepseek-r1-distill-qwen": "qwen2.5", "deepseek-r1-distill-llama": "llama3",
}  # fmt: skip


def catalog_name(name: str) -> str | None:
    """The catalog's name of a model that a file names; None where it has none."""
    known = {_form(own): own for own in reversed(model_names())}
    for entry in model_entries():
        published = entry.source.split("huggingface.co/")[-1].split("/blob/")[0]
        known.setdefault(_form(published), entry.name)
    for wanted in _forms(name):
        for word in _spellings(wanted):
            if word in known:
                return known[word]
    return None


def _forms(name: str) -> Iterator[str]:
    """The forms that a name may mean: in a component, `_` may be the point of a number."""
    if "torchtune.models." not in name:
        yield _form(name)
        return
    plain = re.sub(r"^q?lora_", "", name.rpartition(".")[2])
    parts = re.split(r"(?<=\d)_(?=\d)", plain)
    for signs in product("_.", repeat=len(parts) - 1):
        yield _form("".join(chain.from_iterable(zip_longest(parts, signs, fillvalue=""))))


def _spellings(word: str) -> tuple[str, ...]:
    """A form and the same with the name of its release replaced, the longest first."""
    found = [word]
    for given, same in sorted(_SAME.items(), key=lambda each: -len(each[0])):
        if word == given or word.startswith(f"{given}-"):
            found.append(_squeezed(same + word[len(given) :]))
            break
    return tuple(dict.fromkeys((*found, *(each.replace("-", "") for each in found))))


def _form(name: str) -> str:
    """One spelling of a name: without its publisher, its ending, and what changes no size."""
    plain = name.strip().rstrip("/").rpartition("/")[2]
    plain = re.sub(r"\.(?:ya?ml|json|toml)$", "", plain).lower()
    before = ""
    while before != plain:
        before, plain = plain, _ADDED.sub("", plain)
    return _squeezed(plain)


def _squeezed(word: str) -> str:
    """One sign between words, none before the number of a release: gemma2-2b, gemma-2b."""
    word = re.sub(r"[-_ ]+", "-", word).strip("-")
    return re.sub(r"^([a-z]+|gpt-oss)-(?=\d(?:\.\d+)?(?:-|$))", r"\1", word)


# Sizes of vocabularies
# ---------------------
# What `len(tokenizer)` is, which a trainer pads further. From the files of the tokenizers.

_KINDS: Final = {
    "gpt2bpetokenizer": 50_257,
    "bertwordpiecelowercase": 30_522,
    "bertwordpiececase": 28_996,
    "llama2tokenizer": 32_000,
    "llama3tokenizer": 128_256,
}
_TOKENIZERS: Final = (
    (r"gpt2(?:-.*)?", 50_257),
    (r".*gpt-neox-20b.*|pythia-.*|20b_tokenizer.*", 50_277),
    (r"(?:meta-)?llama-?2.*|.*llama-7b.*|tinyllama.*", 32_000),
    (r"(?:meta-)?llama-?3.*", 128_256),
    (r"mixtral-.*|mistral-7b(?:-instruct)?(?:-v0\.[12])?", 32_000),
    (r"mistral-7b(?:-instruct)?-v0\.3", 32_768),
    (r"qwen2\.5-.*", 151_665),
    (r"qwen3-.*", 151_669),
    (r"deepseek-(?:v3|r1).*", 128_815),
    (r"bloom.*|bigscience/tokenizer", 250_680),
    (r"byte-level-bpe-tokenizer-no-norm-250k.*", 250_680),
    (r"falcon-.*", 65_024),
    (r"t5-.*", 32_100),
    (r"bert-.*-uncased", 30_522),
    (r"bert-.*-cased", 28_996),
)


def vocabulary_of(kind: str | None, name: str | None) -> int | None:
    """The size of a tokenizer's vocabulary: by the hub's name, else by its kind.

    None where neither is known: it has to be given.
    """
    if name is not None:
        whole = name.rstrip("/").lower()
        for pattern, size in _TOKENIZERS:
            if any(re.fullmatch(pattern, word) for word in (whole, whole.rpartition("/")[2])):
                return size
    return _KINDS.get((kind or "").lower())
