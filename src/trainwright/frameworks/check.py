"""Exported files through the framework's own parser, where it is installed.

This module is the only one of the exporters that imports a framework, and it does so when asked.
What a parser does not look at is ours to check (`frameworks.megatron_rules`, the capability table).
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright.errors import CheckFailed, MissingExtra, UnsupportedFeature
from trainwright.frameworks.megatron import megatron_fields

if TYPE_CHECKING:
    from trainwright.plans.job import ExportBundle, Job

_OF_CORE: Final = frozenset({"megatron", "megatron-bridge", "primus"})


def check_bundle(bundle: ExportBundle, job: Job) -> str:
    """What the parser said, in a line.

    Raises `CheckFailed` with its message, `MissingExtra` where it is not installed, and
    `UnsupportedFeature` for targets whose parser cannot run here.
    """
    if bundle.target in _OF_CORE:
        return _checked(bundle, "megatron.core", lambda: _in_megatron(job))
    if bundle.target == "accelerate":
        return _checked(bundle, "accelerate", lambda: _in_accelerate(bundle))
    raise UnsupportedFeature(
        f"the parser of {bundle.target} is not run from here",
        alternative="the files' own launch script runs it; checked here: megatron, accelerate",
    )


def _checked(bundle: ExportBundle, package: str, parse: Callable[[], str]) -> str:
    top = package.partition(".")[0]
    if find_spec(top) is None:
        raise MissingExtra(f"checking files for {bundle.target} needs {top}", extra="exports")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a framework's advice, not a verdict
            return parse()
    except (AssertionError, ValueError, TypeError, NotImplementedError) as error:
        raise CheckFailed(f"{package} refuses the files: {error}") from error


def _in_megatron(job: Job) -> str:
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    fields = megatron_fields(job)
    values = {name: value for name, value in fields.model.items() if value is not None}
    if job.degrees.pipeline > 1:
        import torch

        values["pipeline_dtype"] = torch.bfloat16
    values["bias_activation_fusion"] = False  # kernels of the device, which is not here
    if fields.latent:
        latent = {name: value for name, value in fields.latent.items() if value is not None}
        made = MLATransformerConfig(**values, **latent)
    else:
        made = TransformerConfig(**values)
    return f"megatron-core accepts {type(made).__name__} with {len(values)} fields"


def _in_accelerate(bundle: ExportBundle) -> str:
    from accelerate.commands.config.config_args import load_config_from_file

    (name,) = (name for name in bundle.files if name.endswith(".yaml"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(bundle.files[name], encoding="utf-8")
        made = load_config_from_file(str(path))
    return f"accelerate accepts {type(made).__name__} for {made.num_processes} processes"
