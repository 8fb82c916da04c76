"""Times one layer at a time on the device at hand: forward, input gradient, weight gradient.

Each pass is forward, the gradient of the inputs alone, then all gradients; the weight gradient is
what the last needs beyond the second. The device is waited for between them, so a time includes
what the host needs to start the kernels, as it does where no graph is captured. Warm-up first;
medians of as many passes as the share of the time allows, three at least. The sum into a gradient
buffer, the optimizer and all collectives are left out.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from trainwright.errors import UnsupportedFeature
from trainwright.measuring.layer_memory import count_bytes, outputs_of
from trainwright.measuring.layer_modules import RunnableLayer, make_layer
from trainwright.profile.layer_timing import LayerTiming

if TYPE_CHECKING:
    from trainwright.model import LayerKind, RunShape, TransformerConfig

CPU: Final = "cpu"
CUDA: Final = "cuda"
_LEAST_PASSES: Final = 3
_MOST_PASSES: Final = 50
_WARM_UP_PASSES: Final = {CPU: 1, CUDA: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where layers are timed: torch's name for it, its own, and its free memory."""

    kind: str
    name: str
    available_bytes: float

    def wait(self) -> None:
        """Until all work given to it is done."""
        if self.kind == CUDA:
            torch.cuda.synchronize()


def torch_version() -> str:
    """The version of torch that times."""
    return str(torch.__version__)


def find_device(kind: str | None) -> Device:
    """The device asked for, or CUDA where there is one, else the CPU.

    Raises `UnsupportedFeature` where CUDA was asked for and torch finds none.
    """
    there = torch.cuda.is_available()
    if kind == CUDA and not there:
        raise UnsupportedFeature(
            f"torch {torch_version()} finds no CUDA device here", alternative="use --device cpu"
        )
    if kind == CUDA or (kind is None and there):
        free_bytes, _ = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return Device(kind=CUDA, name=name, available_bytes=float(free_bytes))
    name = f"CPU {platform.machine()}, {torch.get_num_threads()} threads"
    return Device(kind=CPU, name=name, available_bytes=_available_bytes())


def time_layer(
    kind: LayerKind,
    config: TransformerConfig,
    run: RunShape,
    *,
    device: Device,
    time_limit_s: float,
) -> LayerTiming:
    """Time one layer at `run` for about `time_limit_s`; `config` holds the choices of its block.

    Without any time left one pass is timed. Raises `UnsupportedFeature` where the device's memory
    does not suffice.
    """
    try:
        layer = make_layer(kind, config, run, device=device.kind)
        return _timed(layer, device, time_limit_s)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise UnsupportedFeature(
            f"a layer of kind {kind} at tensor degree {run.tensor_parallel} is too large for the "
            f"memory of {device.name}",
            alternative="use a smaller --micro-batch or --sequence, or a larger --tensor",
        ) from None
    finally:
        if device.kind == CUDA:
            torch.cuda.empty_cache()


def _timed(layer: RunnableLayer, device: Device, time_limit_s: float) -> LayerTiming:
    start_s = time.perf_counter()
    held = count_bytes(layer)  # also the first pass of the warm-up
    least = _LEAST_PASSES if time_limit_s > 0 else 1
    for _ in range(_WARM_UP_PASSES[device.kind]):
        if time_limit_s > 0:
            _pass(layer, device)
    passes: list[tuple[float, float, float]] = []
    while len(passes) < least or (
        len(passes) < _MOST_PASSES and time.perf_counter() - start_s < time_limit_s
    ):
        passes.append(_pass(layer, device))
    forward_s, first_s, both_s = (statistics.median(column) for column in zip(*passes, strict=True))
    return LayerTiming(
        forward_s=forward_s,
        input_grad_s=first_s,
        weight_grad_s=max(0.0, both_s - first_s),
        spread=_spread([forward + both for forward, _, both in passes]),
        num_repeats=len(passes),
        input_bytes=held.input_bytes,
        saved_until_input_grad_bytes=held.saved_until_input_grad_bytes,
        saved_until_weight_grad_bytes=held.saved_until_weight_grad_bytes,
        transient_bytes=held.transient_bytes,
    )


def _pass(layer: RunnableLayer, device: Device) -> tuple[float, float, float]:
    """Seconds of forward, of the input gradient, and of all gradients."""
    inputs = [layer.inputs] if layer.inputs.requires_grad else []
    weights = list(layer.module.parameters())
    device.wait()
    begun_s = time.perf_counter()
    outputs = outputs_of(layer)
    device.wait()
    forward_s = time.perf_counter() - begun_s
    seeds = [torch.ones_like(t) for t in outputs]

    def gradients_s(wanted: list[torch.Tensor]) -> float:
        if not wanted:
            return 0.0
        device.wait()
        begun_s = time.perf_counter()
        torch.autograd.grad(outputs, wanted, seeds, retain_graph=True)
        device.wait()
        return time.perf_counter() - begun_s

    first_s = gradients_s(inputs)
    return forward_s, first_s, gradients_s([*inputs, *weights]) if weights else first_s


def _spread(times_s: list[float]) -> float | None:
    """The distance between the quartiles over the median."""
    if len(times_s) < 2:
        return None
    low_s, middle_s, high_s = statistics.quantiles(times_s, n=4, method="inclusive")
    return (high_s - low_s) / middle_s


def _out_of_memory(error: Exception) -> bool:
    """Whether an allocator gave up; torch's for the CPU has no exception of its own."""
    told = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in told


def _available_bytes() -> float:
    """Main memory that can be had without swapping; Linux says so, others are asked for all."""
    readers: tuple[Callable[[], float], ...] = (_linux_available_bytes, _physical_bytes)
    for read in readers:
        try:
            return read()
        except (OSError, ValueError, StopIteration):
            continue
    return float("inf")


def _linux_available_bytes() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def _physical_bytes() -> float:
    import os

    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
