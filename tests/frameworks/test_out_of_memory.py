"""Messages of jobs whose memory ran out: which rank, which phase, how many bytes."""

from pathlib import Path

import pytest

from trainwright.frameworks.jobs.detect import pasted_in
from trainwright.frameworks.read_job import failure_of, job_format, open_stated, stated_in
from trainwright.frameworks.training_logs import read_out_of_memory
from trainwright.plans.status import OutOfMemory, Phase
from trainwright.units import GIB, MIB

NEW = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/opt/train.py", line 90, in <module>
[rank5]:     main()
[rank5]:   File "/opt/train.py", line 61, in train
[rank5]:     loss.backward()
[rank5]:   File "/opt/torch/autograd/graph.py", line 823, in _engine_run_backward
[rank5]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 5 has a total \
capacity of 79.11 GiB of which 1.44 GiB is free. Including non-PyTorch memory, this process has \
77.65 GiB memory in use. Of the allocated memory 71.02 GiB is allocated by PyTorch, and 4.31 GiB \
is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting \
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
"""
OLD = """\
Traceback (most recent call last):
  File "pretrain_gpt.py", line 126, in <module>
    pretrain(train_valid_test_datasets_provider, model_provider, forward_step)
  File "megatron/training.py", line 141, in pretrain
    model, optimizer, lr_scheduler = setup_model_and_optimizer(model_provider)
RuntimeError: CUDA out of memory. Tried to allocate 288.00 MiB (GPU 0; 39.59 GiB total capacity; \
37.20 GiB already allocated; 120.19 MiB free; 37.66 GiB reserved in total by PyTorch)
"""


def test_the_message_of_today_is_read_in_full() -> None:
    assert read_out_of_memory(NEW) == OutOfMemory(
        rank=5,
        gpu=5,
        phase=Phase.BACKWARD,
        tried_bytes=3.91 * GIB,
        capacity_bytes=79.11 * GIB,
        free_bytes=1.44 * GIB,
        in_use_bytes=77.65 * GIB,
        allocated_bytes=71.02 * GIB,
        reserved_bytes=71.02 * GIB + 4.31 * GIB,
    )


# As they stand in public issues, shortened: what was said, and where it came from.
DEEPSPEED = """\
.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.01 GiB. GPU 6 has a total capacty of \
79.33 GiB of which 6.37 GiB is free. Including non-PyTorch memory, this process has 72.95 GiB \
memory in use. Of the allocated memory 72.18 GiB is allocated by PyTorch, and 3.01 MiB is reserved \
by PyTorch but unallocated.
    self.optimizer = self._configure_zero_optimizer(basic_optimizer)
  File "deepspeed/runtime/engine.py", line 1503, in _configure_zero_optimizer
    optimizer = DeepSpeedZeroOptimizer(
"""  # github.com/shibing624/MedicalGPT issue 318
TRL = """\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total \
capacity of 9.68 GiB of which 95.75 MiB is free. Including non-PyTorch memory, this process has \
9.54 GiB memory in use. Of the allocated memory 6.61 GiB is allocated by PyTorch, and 2.57 GiB is \
reserved by PyTorch but unallocated.
[rank0]: Traceback (most recent call last):
[rank0]:   File "transformers/trainer.py", line 3782, in training_step
[rank0]:     loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
[rank0]:   File "transformers/models/llama/modeling_llama.py", line 316, in forward
"""  # github.com/huggingface/trl issue 3436
MEGATRON = """\
  File "megatron/training.py", line 265, in backward_step
    fp32_allreduce=args.fp32_allreduce)
  File "megatron/model/distributed.py", line 53, in allreduce_params
    coalesced = _flatten_dense_tensors(grads)
RuntimeError: CUDA out of memory. Tried to allocate 2.29 GiB (GPU 0; 31.72 GiB total capacity; \
19.22 GiB already allocated; 1.88 GiB free; 28.32 GiB reserved in total by PyTorch)
"""  # github.com/NVIDIA/Megatron-LM issue 60
VOCABULARY = """\
  File "megatron/model/gpt_model.py", line 60, in post_language_model_processing
    loss = mpu.vocab_parallel_cross_entropy(output.float(), labels)
RuntimeError: CUDA out of memory. Tried to allocate 9.33 GiB (GPU 0; 10.76 GiB total capacity; \
5.17 GiB already allocated; 4.48 GiB free; 5.28 GiB reserved in total by PyTorch)
"""  # github.com/NVIDIA/Megatron-LM issue 92


@pytest.mark.parametrize(
    ("text", "rank", "gpu", "phase", "capacity"),
    [
        (DEEPSPEED, None, 6, Phase.INITIALISATION, 79.33),
        (TRL, 0, 0, Phase.FORWARD, 9.68),
        (MEGATRON, None, 0, Phase.BACKWARD, 31.72),
        (VOCABULARY, None, 0, Phase.LOSS, 10.76),
    ],
    ids=["deepspeed", "trl", "megatron", "vocabulary"],
)
def test_messages_of_public_issues_say_where_they_come_from(
    text: str, rank: int | None, gpu: int, phase: Phase, capacity: float
) -> None:
    found = read_out_of_memory(text)
    assert found is not None
    assert (found.rank, found.gpu, found.phase) == (rank, gpu, phase)
    assert found.capacity_bytes == capacity * GIB


def test_a_trace_is_no_script(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text('  File "pretrain_gpt2.py", line 115, in <module>\n' + MEGATRON)
    assert job_format(log) is None
    failed = failure_of(log)
    assert failed is not None
    assert failed.phase is Phase.BACKWARD


def test_the_message_until_2023_is_read_in_full() -> None:
    found = read_out_of_memory(OLD)
    assert found == OutOfMemory(
        gpu=0,
        phase=Phase.INITIALISATION,
        tried_bytes=288 * MIB,
        capacity_bytes=39.59 * GIB,
        free_bytes=120.19 * MIB,
        allocated_bytes=37.2 * GIB,
        reserved_bytes=37.66 * GIB,
    )
    assert found.missing_bytes == (288 - 120.19) * MIB


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        ("optimizer.step()\n  File adamw.py, in _multi_tensor_adamw", Phase.OPTIMIZER),
        ("outputs = model(x)\n in forward\n  loss_utils.py, in ForCausalLMLoss", Phase.LOSS),
        ("outputs = model(x)\n File modeling_llama.py, line 3, in forward", Phase.FORWARD),
        ("save_checkpoint(state)", Phase.CHECKPOINT),
        ("something()", None),
    ],
)
def test_the_innermost_frame_that_tells_decides_the_phase(frame: str, phase: Phase | None) -> None:
    text = f"Traceback (most recent call last):\n{frame}\nOutOfMemoryError: CUDA out of memory. "
    found = read_out_of_memory(text + "Tried to allocate 1.00 GiB.")
    assert found is not None
    assert (found.phase, found.tried_bytes, found.free_bytes) == (phase, GIB, None)


def test_other_logs_say_of_none() -> None:
    assert read_out_of_memory("iteration 10: out of 100 steps, memory: 42.96GiB(45.2%)") is None


def test_a_device_that_is_full_has_nothing_free_and_nobody_holds_more_than_there_is() -> None:
    """WSL prints 2^64 bytes, in GiB, for what a process holds (axolotl issue 998)."""
    found = read_out_of_memory(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
        "total capacty of 24.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this "
        "process has 17179869184.00 GiB memory in use. Of the allocated memory 23.01 GiB is "
        "allocated by PyTorch, and 121.23 MiB is reserved by PyTorch but unallocated."
    )
    assert found is not None
    assert (found.free_bytes, found.in_use_bytes) == (0.0, None)
    assert found.missing_bytes == 20 * MIB


def test_what_xla_says_before_the_first_step_is_read() -> None:
    found = read_out_of_memory(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent "
        "error. Ran out of memory in memory space hbm. Used 21.95G of 15.48G hbm.\n"
        " Exceeded hbm capacity by 6.47G.\n"  # LargeWorldModel/LWM issue 60
    )
    assert found is not None
    assert found.capacity_bytes == 15.48 * GIB
    assert found.missing_bytes == pytest.approx(6.47 * GIB)
    of_a_gpu = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."
    assert read_out_of_memory(of_a_gpu) == OutOfMemory(tried_bytes=8 * GIB)
    assert read_out_of_memory("RESOURCE_EXHAUSTED: quota of requests") is None


SAID = "Of the allocated memory 30.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
DIED = f"OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. {SAID}PyTorch but un"


@pytest.mark.parametrize(
    ("text", "rank", "gpu", "phase"),
    [
        (  # lines that srun labels, awslabs/awsome-distributed-ai issue 220
            "3:   File adamw.py, line 608, in _multi_tensor_adamw\n3: torch.cuda." + DIED,
            3,
            None,
            Phase.OPTIMIZER,
        ),
        (  # weights are read before anything trains, axolotl issue 998
            f"[ERROR] [PID:34] [RANK:1] CUDA out of memory. {DIED}\n"
            "Traceback (most recent call last):\n  File x.py, in _load_state_dict_into_meta_model",
            1,
            None,
            Phase.INITIALISATION,
        ),
        (  # a frame that is drawn and folded, DeepSpeed issue 3448
            "╭──── Traceback (most recent call last) ────╮\n│ deepspeed/engine.py:268 in │\n"
            f"│ __init__   │\n│ ❱  268 │ │   self._configure_model() │\n╰───╯\n{DIED}",
            None,
            None,
            Phase.INITIALISATION,
        ),
        (  # LlamaFactory issue 7532
            f"  File zero/stage3.py, line 947, in _optimizer_step\ntorch.cuda.{DIED}",
            None,
            None,
            Phase.OPTIMIZER,
        ),
        (DIED.replace("CUDA", "NPU").replace(". Of", " (NPU 3; 1.00 GiB free). Of"), None, 3, None),
    ],
    ids=["srun", "loading", "rich", "deepspeed", "npu"],
)
def test_more_programs_say_rank_and_phase_in_their_own_way(
    text: str, rank: int | None, gpu: int | None, phase: Phase | None
) -> None:
    found = read_out_of_memory(text)
    assert found is not None
    assert (found.rank, found.gpu, found.phase) == (rank, gpu, phase)
    assert found.tried_bytes == GIB


def test_of_several_processes_of_a_container_the_one_that_ran_out_holds_the_most() -> None:
    said = "GPU 0 has a total capacity of 39.00 GiB of which 93.81 MiB is free. Process 3 has "
    said += "398.00 MiB memory in use. Process 7 has 32.50 GiB memory in use. "
    found = read_out_of_memory(DIED.replace("Of the", said + "Of the"))
    assert found is not None
    assert found.in_use_bytes == 32.5 * GIB
    alone = read_out_of_memory(DIED.replace("Of the", said.replace("32.50", "2.50") + "Of the"))
    assert alone is not None
    assert alone.in_use_bytes is None  # less than its tensors: it is not said


@pytest.mark.parametrize(
    ("text", "rank", "gpu", "phase"),
    [
        (  # axolotl issue 1717
            "[rank1]:     return run_backward(\n[rank1]:   File graph.py, line 1, in backward\n"
            "[rank1]: RuntimeError: CUDA error: out of memory\n[rank1]: CUDA kernel errors might",
            1,
            None,
            Phase.BACKWARD,
        ),
        (  # Megatron-Bridge issue 771
            "Training ...\n[2025-09-24 16:15:28] node-26:3000032:3004399 [4] include/alloc.h:228 "
            "NCCL WARN Cuda failure 2 'out of memory'",
            None,
            4,
            None,
        ),
        (
            "    out = torch.addmm(bias, x, weight.t())\n[rank2]: RuntimeError: CUDA error: "
            "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            2,
            None,
            None,
        ),
        (  # NVIDIA/nccl, alloc.h
            "Training ...\nnode-2:71:93 [1] include/alloc.h:224 NCCL WARN Failed to CUDA calloc "
            "async 608 bytes",
            None,
            1,
            None,
        ),
        (  # llama-cookbook issue 45
            "    state = model.state_dict()\n"
            "OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
            None,
            None,
            Phase.CHECKPOINT,
        ),
    ],
    ids=["driver", "nccl", "cublas", "nccl-buffer", "too-many"],
)
def test_where_no_bytes_are_told_a_segment_of_the_allocator_is_missing_at_least(
    text: str, rank: int | None, gpu: int | None, phase: Phase | None
) -> None:
    found = read_out_of_memory(text)
    assert found == OutOfMemory(rank=rank, gpu=gpu, phase=phase)
    assert found.missing_bytes == 2 * MIB
    commented = "\n".join(f"# {line}" for line in text.splitlines())
    assert "NCCL" in text or read_out_of_memory(commented) is None


def test_a_script_that_catches_the_error_has_not_failed() -> None:
    assert read_out_of_memory("try:\n    step()\nexcept torch.cuda.OutOfMemoryError:\n") is None


# Settings that stand in a log or in an issue, among other lines
# --------------------------------------------------------------

FACTORY = """\
### model
model_name_or_path: /nfs/Meta-Llama-3.1-8B-Instruct

### method
stage: sft
finetuning_type: lora
lora_target: all
deepspeed: examples/deepspeed/ds_z3_config.json

### train
cutoff_len: 15000
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Llama-2-70b-chat-hf
load_in_4bit: true
datasets:
  - path: yahma/alpaca-cleaned
    type: alpaca
adapter: qlora
sequence_len: 512
lora_r: 32
lora_target_linear: true
micro_batch_size: 1
gradient_checkpointing: true
deepspeed: ds.json
"""
ENGINE = '{\n  "zero_optimization": {"stage": 2},\n  "bf16": {"enabled": true}\n}\n'
ISSUE = (
    f"### System Info\n- `llamafactory` version: 0.9.1\n\n```yaml\n{FACTORY}```\n\n```\n{NEW}```\n"
)
LOG = f"[2024-04-17 01:02:03] [INFO] starting\n{AXOLOTL}\n{OLD}\nMy file of DeepSpeed:\n{ENGINE}"


def test_an_issue_is_read_by_the_settings_in_its_fence(tmp_path: Path) -> None:
    log = tmp_path / "issue.md"
    log.write_text(ISSUE)
    assert job_format(log) == "llamafactory"
    job = open_stated(None, log)
    assert (job.run.sequence, job.run.micro_batch, job.run.lora_rank) == (15000, 2, 8)
    assert "the settings are those of llamafactory that stand in it" in job.warnings[0]
    failed = failure_of(log)
    assert failed is not None
    assert failed.phase is Phase.BACKWARD


def test_an_issue_that_comes_as_text_is_read_alike() -> None:
    job = stated_in(ISSUE, "pasted.txt")
    assert (job.framework, job.run.sequence) == ("llamafactory", 15000)
    assert "that stand in it" in job.warnings[0]


def test_settings_in_a_log_take_the_engine_that_stands_beside_them(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(LOG)
    found = pasted_in(LOG)
    assert found is not None
    assert (found.format, found.left) == ("axolotl", ())
    run = open_stated("log", log).run
    assert (run.zero, run.weight_bits, run.lora_rank, run.sequence) == (2, 4, 32, 512)
    assert not run.unknown


def test_settings_that_are_left_out_are_named() -> None:
    found = pasted_in(f"```\n{FACTORY}```\n\n```\ndistributed_type: FSDP\nnum_processes: 3\n```\n")
    assert found is not None
    assert (found.format, found.left) == ("llamafactory", ("accelerate",))


@pytest.mark.parametrize(
    "text",
    [
        NEW,
        OLD,
        f"```\n{FACTORY}```\nand now\n```\n{FACTORY.replace('15000', '8192')}```\n",
        "base_model: a name, said in a sentence.\nNothing else is there.\n",
        '{"loss": 1.25, "grad_norm": 0.5}\n' * 50,
        "step: 1 loss: 2.5\n" * 50,
    ],
    ids=["trace", "old trace", "two of them", "prose", "lines of JSON", "lines of steps"],
)
def test_what_states_no_single_job_is_none(text: str) -> None:
    assert pasted_in(text) is None


def test_settings_that_stand_twice_are_one() -> None:
    found = pasted_in(f"```\n{AXOLOTL}```\nand once more\n{AXOLOTL}")
    assert found is not None
    assert found.format == "axolotl"


def test_a_log_is_not_edited(tmp_path: Path) -> None:
    from trainwright.frameworks.jobs import Beside
    from trainwright.frameworks.jobs.edit import job_text

    made = job_text(None, tmp_path / "job.log", LOG, Beside(), lambda text: pytest.fail(text))
    assert (made.dialect, made.can_edit) == ("axolotl", False)


COMMAND = """\
accelerate launch --config_file=recipes/zero3.yaml src/sft.py \\
    --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \\
    --max_seq_length 16384 \\
    --per_device_train_batch_size 16 \\
    --gradient_checkpointing --bf16
"""


def test_a_command_among_sentences_is_read(tmp_path: Path) -> None:
    log = tmp_path / "issue.md"
    log.write_text(f"I'm running the example, and it's out of memory.\n\n```\n{COMMAND}```\nWhy?\n")
    assert job_format(log) == "trl"
    run = open_stated(None, log).run
    assert (run.sequence, run.micro_batch, run.zero) == (16384, 16, 3)


def test_quotes_of_an_answer_are_taken_off() -> None:
    quoted = "".join(f"> {line}\n" for line in f"see here:\n```\n{FACTORY}```".splitlines())
    found = pasted_in(quoted)
    assert found is not None
    assert found.format == "llamafactory"
    ticked = pasted_in(f"still the same error.\n\n`{AXOLOTL.rstrip()}`\n")
    assert ticked is not None
    assert ticked.format == "axolotl"


@pytest.mark.parametrize("name", ["run.sh", "train.py", "config.yaml", "notes.toml"])
def test_files_of_settings_and_programs_are_read_as_such(name: str) -> None:
    assert pasted_in(f"I'm a comment\n```\n{AXOLOTL}```\n{COMMAND}", name) is None


def test_a_script_without_an_ending_is_read_as_one() -> None:
    assert pasted_in(f"export NCCL_DEBUG=INFO\n{COMMAND}", "launch") is None
