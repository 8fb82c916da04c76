"""Messages of jobs whose memory ran out: which rank, which phase, how many bytes."""

import pytest

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
        phase=Phase.BACKWARD,
        tried_bytes=3.91 * GIB,
        capacity_bytes=79.11 * GIB,
        free_bytes=1.44 * GIB,
        in_use_bytes=77.65 * GIB,
        allocated_bytes=71.02 * GIB,
        reserved_bytes=71.02 * GIB + 4.31 * GIB,
    )


def test_the_message_until_2023_is_read_in_full() -> None:
    found = read_out_of_memory(OLD)
    assert found == OutOfMemory(
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
