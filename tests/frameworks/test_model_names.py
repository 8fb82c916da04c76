"""Names of models as hubs and frameworks spell them."""

import pytest

from trainwright.frameworks.jobs.megatron_model import vocabulary_of
from trainwright.frameworks.jobs.settings import catalog_name


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2-1.5B-Instruct", "qwen2-1.5b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-3.2-1B", "llama3.2-1b"),
        ("NousResearch/Llama-2-7b-hf", "llama2-7b"),
        ("NousResearch/Meta-Llama-3-8B", "llama3-8b"),
        ("casperhansen/llama-3-70b-fp16", "llama3-70b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("mistral-community/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("axolotl-ai-co/gpt-oss-120b-dequantized", "gpt-oss-120b"),
        ("TinyLlama/TinyLlama_v1.1", "tinyllama-1.1b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("01-ai/Yi-34B-Chat", "yi-34b"),
        ("google/gemma-2b-it", "gemma-2b"),
        ("google/gemma-2-2b-it", "gemma2-2b"),
        ("deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("torchtune.models.llama3_1.llama3_1_8b", "llama3-8b"),
        ("torchtune.models.llama3.qlora_llama3_8b", "llama3-8b"),
        ("torchtune.models.qwen2_5.qwen2_5_7b_base", "qwen2.5-7b"),
        ("torchtune.models.phi3.phi3_mini", "phi3-mini"),
        ("torchtune.models.qwen2.lora_qwen2_0_5b", "qwen2-0.5b"),
        ("torchtune.models.qwen2_5.qwen2_5_1_5b_instruct", "qwen2.5-1.5b"),
        ("torchtune.models.llama3_2.llama3_2_1b", "llama3.2-1b"),
        ("torchtune.models.phi4.phi4_14b", "phi4"),
        ("alignment-handbook/zephyr-7b-sft-full", "mistral-7b"),
        ("HuggingFaceH4/zephyr-7b-gemma-sft-v0.1", "gemma-7b"),
        ("teknium/OpenHermes-2.5-Mistral-7B", "mistral-7b"),
        ("HuggingFaceTB/SmolLM-360M", "smollm2-360m"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("huggyllama/llama-7b", "llama2-7b"),
        ("llama3.1_405B.yaml", "llama3-405b"),
        ("mixtral_8x7B_v0.1", "mixtral-8x7b"),
        ("gpt_oss_120B", "gpt-oss-120b"),
        ("qwen3_30B_A3B", "qwen3-30b-a3b"),
        ("llama2-70b", "llama2-70b"),
        ("nvidia/Qwen3-30B-A3B-NVFP4", "qwen3-30b-a3b"),
        ("axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16", "llama4-scout"),
        ("llama4_17B16E", "llama4-scout"),
        ("qwen3_5_35B_A3B", "qwen3.5-35b-a3b"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
        ("EleutherAI/pythia-12b-deduped", "pythia-12b"),
        ("google/gemma-3-1b-it", "gemma3-1b"),
        ("gpt2-medium", "gpt2-medium"),
        ("allenai/Olmo-3-7B-Instruct-SFT", "olmo3-7b"),
        ("nemotron_3_nano", "nemotron-3-nano-30b-a3b"),
        ("NVIDIA-Nemotron-3-Nano-4B", None),
        ("mistralai/Magistral-Small-2509", None),
        ("Qwen/Qwen3-5B", None),
        ("someone/a-model-of-my-own", None),
        ("llama3-32b", None),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-vl-30b-a3b"),
    ],
)
def test_a_model_is_known_by_what_others_call_it(name: str, known: str | None) -> None:
    assert catalog_name(name) == known


def test_a_vocabulary_is_that_of_a_known_tokenizer_or_none() -> None:
    assert vocabulary_of("GPT2BPETokenizer", None) == 50_257
    assert vocabulary_of("HuggingFaceTokenizer", "meta-llama/Meta-Llama-3-8B") == 128_256
    assert vocabulary_of("HuggingFaceTokenizer", "/data/my-tokenizer") is None
    assert vocabulary_of("GPTSentencePieceTokenizer", "/data/tokenizer.model") is None
