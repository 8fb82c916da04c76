"""What the browser may ask and what it is told: every field typed and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from trainwright.api.explore import Question

_NAME: Final = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
MOST_DEVICES: Final = 65_536
GIB: Final = 2**30
GB: Final = 1e9


class Ask(BaseModel):
    """A question; `model` is a name of the catalog, `config` the content of a config.json.

    The search ends after `time_limit_s`, and after the server's own limit in any case.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, _NAME] | None = None
    config: dict[str, Any] | None = None
    cluster: Annotated[str, _NAME]
    devices: Annotated[int, Field(strict=True, ge=1, le=MOST_DEVICES)]
    global_batch: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    sequence: Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
    memory_gib: Annotated[float, Field(ge=1, le=4096, allow_inf_nan=False)] | None = None
    bandwidth_gb_per_s: Annotated[float, Field(ge=0.01, le=1e5, allow_inf_nan=False)] | None = None
    framework: Annotated[str, _NAME] | None = None
    time_limit_s: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)] | None = None

    @property
    def question(self) -> Question:
        """In SI units, as the api takes it."""
        bandwidth = self.bandwidth_gb_per_s
        return Question(
            model=self.model,
            config=self.config,
            cluster=self.cluster,
            devices=self.devices,
            global_batch=self.global_batch,
            sequence=self.sequence,
            memory_bytes=None if self.memory_gib is None else self.memory_gib * GIB,
            bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * GB,
            framework=self.framework,
        )


class Answered(BaseModel):
    """A plan that was made: under which id it can be fetched, its document, its command.

    Where it is not complete, time was up before the search was over.
    """

    id: str
    is_complete: bool
    document: dict[str, Any]
    command: str
    command_note: str


class Problem(BaseModel):
    """One broken rule: where, and what was wanted and found."""

    path: str
    problem: str


class Refused(BaseModel):
    """Why there is no answer."""

    faults: list[Problem]


class ModelItem(BaseModel):
    """A model of the catalog."""

    name: str
    num_parameters: int
    max_positions: int


class ClusterItem(BaseModel):
    """A cluster of the catalog and where its sliders start."""

    name: str
    accelerator: str
    devices: int
    devices_per_node: int
    most_devices: int
    memory_gib: float
    bandwidth_gb_per_s: float


class Choices(BaseModel):
    """Everything that can be chosen."""

    models: list[ModelItem]
    clusters: list[ClusterItem]
    frameworks: list[str]
