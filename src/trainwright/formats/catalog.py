"""What is built in: models, accelerators and clusters, as data files inside the package.

A name that is not built in may be a path: `open_model` and `open_cluster` take either, and a model
may also be a hub id that the local cache holds, or the folder of a low-rank adapter.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput, meant
from trainwright.formats.atomic_file import exists, read_bytes
from trainwright.formats.document_json import carried, decode
from trainwright.formats.json_text import parse_json
from trainwright.model import TRAIN_ALL, Tuning, layer_graph
from trainwright.plans.plan import KnownLayout, Parallelism
from trainwright.units import MIB

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Cluster
    from trainwright.formats.codesign_document import FoundChip
    from trainwright.formats.hf_config import ModelDescription
    from trainwright.model import TransformerConfig

LARGEST_DOCUMENT: Final = 64 * MIB  # of a co-design; cluster files are far smaller
_ACCELERATORS = "accelerators"
_ENDINGS: Final = (".json", ".toml", ".yaml", ".yml", ".csv")  # of what is meant as a file
_MANY: Final = 20  # names that are not listed where one is suggested
_FEW: Final = 3  # suggestions


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A built-in thing: its name and where its figures come from."""

    name: str
    source: str


def model_names() -> tuple[str, ...]:
    """The built-in models, sorted."""
    return _stems("trainwright.model")


def cluster_names() -> tuple[str, ...]:
    """The built-in clusters, sorted."""
    return tuple(stem for stem in _stems("trainwright.cluster") if stem != _ACCELERATORS)


def accelerator_names() -> tuple[str, ...]:
    """The built-in accelerators, in catalog order."""
    return tuple(accelerators())


@cache
def model_entries() -> tuple[CatalogEntry, ...]:
    """The built-in models with their sources."""
    return tuple(_entry("trainwright.model", name) for name in model_names())


def cluster_entries() -> tuple[CatalogEntry, ...]:
    """The built-in clusters with their sources."""
    return tuple(_entry("trainwright.cluster", name) for name in cluster_names())


@cache
def model(name: str) -> ModelDescription:
    """A built-in model; raises `InvalidInput` naming the nearest where there is none."""
    return changed_model(name, {})


def changed_model(name: str, changes: Mapping[str, Any]) -> ModelDescription:
    """A built-in model with other values of keys of its `config.json`; raises as `model`.

    A table among `changes` replaces only those keys of the same table that it has.
    """
    from trainwright.formats.hf_config import read_config  # start-up: a profile has no config

    _require(name, model_names(), what="model")
    document = _read("trainwright.model", name)
    # TOML has no null: keys that the original file sets to null are listed beside the others.
    config = document["config"] | dict.fromkeys(document.get("null", ()))
    for key, value in changes.items():
        own = config.get(key)
        is_table = isinstance(own, dict) and isinstance(value, dict)
        config[key] = {**own, **value} if is_table else value
    found = read_config(config, name=name, source=document["source"])
    # Constants of a built-in model are known by its name: what documents carry of it has none.
    plain = replace(found.config, rotary_base=None, rotary_scaling=None, norm_epsilon=None)
    return replace(found, config=plain)


def constants_of(name: str, config: TransformerConfig) -> Mapping[str, float]:
    """The base of rotary positions and the epsilon of norms, where the model's file has them.

    The file is that which was read, else that of the built-in model of the name, where `config` is
    that model, whatever of it trains.
    """
    stated = {"rope_theta": config.rotary_base, "rms_norm_eps": config.norm_epsilon}
    if own := {key: value for key, value in stated.items() if value is not None}:
        return own
    if name not in model_names() or replace(config, tuning=TRAIN_ALL) != model(name).config:
        return {}
    file = _read("trainwright.model", name)["config"]
    return {key: float(file[key]) for key in stated if key in file}


@cache
def accelerators() -> dict[str, Accelerator]:
    """All built-in accelerators by name."""
    from trainwright.formats.cluster_toml import make_accelerators

    return make_accelerators(_read("trainwright.cluster", _ACCELERATORS))


def accelerator(name: str) -> Accelerator:
    """A built-in accelerator; raises `InvalidInput` naming the nearest where there is none."""
    _require(name, accelerators(), what="accelerator")
    return accelerators()[name]


@cache
def cluster(name: str) -> Cluster:
    """A built-in cluster of one node; raises `InvalidInput` naming the nearest."""
    from trainwright.formats.cluster_toml import make_cluster

    _require(name, cluster_names(), what="cluster")
    document = _read("trainwright.cluster", name)
    return make_cluster(document, name=name, accelerators=accelerators())


@cache
def known_layouts() -> tuple[KnownLayout, ...]:
    """Layouts that were published of runs, in no order."""
    file = resources.files("trainwright.plans") / "known_layouts.toml"
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(
        _layout(row, by=by, source=source)
        for name, rows in document["layouts"].items()
        for by, source in (document["sources"][name],)
        for row in rows
    )


def _layout(row: list[Any], *, by: str, source: str) -> KnownLayout:
    model, billions, has_experts, device, devices, sequence, t, p, c, e, *zero = row
    return KnownLayout(
        model=model,
        parameters=billions * 1e9,
        has_experts=has_experts,
        device=device,
        num_devices=devices,
        sequence_length=sequence,
        parallelism=Parallelism(
            tensor=t,
            pipeline=p,
            data=devices // (t * p * c),
            context=c,
            expert=e,
            zero_stage=zero[0] if zero else 1,
            sequence_parallel=t > 1,
        ),
        by=by,
        source=source,
    )


def open_model(name_or_path: str) -> ModelDescription:
    """A built-in model, the `config.json` (or its folder) at a path, or a hub id in the cache.

    A folder with the `adapter_config.json` of the peft library is its base model with adapters.
    Raises `InvalidInput` where there is none; nothing is downloaded.
    """
    from trainwright.formats.hf_config import is_adapter

    if name_or_path not in model_names() and is_adapter(Path(name_or_path)):
        return _adapted(Path(name_or_path))
    return _whole_model(name_or_path)


def _whole_model(name_or_path: str) -> ModelDescription:
    from trainwright.formats.hf_config import cached_config, hub_cache, is_hub_id, load_config

    if name_or_path in model_names():
        return model(name_or_path)
    if exists(name_or_path):
        return load_config(Path(name_or_path))
    if is_hub_id(name_or_path):
        same = _model_published_as(name_or_path)
        found = load_config(cached_config(name_or_path, cache=hub_cache(), instead=same))
        return replace(found, name=name_or_path.rpartition("/")[2])
    return model(name_or_path)


def _adapted(folder: Path) -> ModelDescription:
    """The base model that an adapter's file names, with the adapters."""
    from trainwright.formats.hf_config import load_adapter

    base, low_rank = load_adapter(folder)
    found = _whole_model(base)
    config = replace(found.config, tuning=Tuning(low_rank=low_rank))
    layer_graph(config)  # refuses unknown targets
    return replace(found, name=folder.resolve().name, config=config)


def _model_published_as(hub_id: str) -> str | None:
    """The built-in model whose source is the page of a hub id."""
    page = f"huggingface.co/{hub_id}/".lower()
    fitting = (entry.name for entry in model_entries() if page in entry.source.lower())
    return next(fitting, None)


def open_cluster(name_or_path: str) -> Cluster:
    """A built-in cluster, the cluster file at a path, or the chips of a co-design document."""
    from trainwright.cluster import Cluster

    found = open_cluster_or_chip(name_or_path)
    return found if isinstance(found, Cluster) else found.cluster


def open_cluster_or_chip(name_or_path: str) -> Cluster | FoundChip:
    """Like `open_cluster`, with what else the search of a co-design document knows of its chip.

    A file is a document where it is named or begins as JSON, else a cluster file. A document of
    another kind stands for the cluster that it carries, as that was sized and priced.
    """
    if not name_or_path or name_or_path in cluster_names() or not exists(name_or_path):
        return cluster(name_or_path)
    path = Path(name_or_path)
    data = read_bytes(path, name="cluster", most=LARGEST_DOCUMENT)
    if path.suffix == ".json" or data.lstrip().startswith(b"{"):
        from trainwright.cluster import Cluster
        from trainwright.formats.codesign_document import CHIPS, FoundChip, read_chip

        value = parse_json(data, source=name_or_path)
        if isinstance(value, dict) and value.get("kind") not in CHIPS:
            own = carried(value, "cluster", source=name_or_path)
            within = "request.cluster.content"
            found = decode(Cluster, own.content, path=within, source=name_or_path)
            return FoundChip(cluster=found, num_devices=found.num_devices)
        return read_chip(value, source=name_or_path)
    from trainwright.formats.cluster_toml import parse_cluster

    return parse_cluster(data, path, accelerators=accelerators())


def _stems(package: str) -> tuple[str, ...]:
    folder = resources.files(package) / "catalog"
    return tuple(
        sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))
    )


def _read(package: str, stem: str) -> dict[str, Any]:
    file = resources.files(package) / "catalog" / f"{stem}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _entry(package: str, name: str) -> CatalogEntry:
    return CatalogEntry(name=name, source=str(_read(package, name)["source"]))


def _require(name: str, known: Iterable[str], *, what: str) -> None:
    names = list(known)
    if name in names:
        return
    if name.endswith(_ENDINGS) or "/" in name:
        problem = f'there is no such file or folder: "{name}"; built in are: trainwright catalog'
        raise InvalidInput.of(what, f"{problem} {what}s")
    near = _near(name, names, what=what)
    hint = f"; did you mean {' or '.join(map(_quoted, near))}?" if near else meant(name, names)
    wanted = f"one of {', '.join(names)}"
    if len(names) > _MANY:
        wanted = f"a name of: trainwright catalog {what}s"
    raise InvalidInput.of(what, f'must be a file or {wanted}, got "{name}"{hint}')


def _near(name: str, names: list[str], *, what: str) -> list[str]:
    """Names that hold the one given, or clusters of the device that is named."""
    if not name:
        return []  # it is held by every name
    lower = name.lower()
    if holding := [known for known in names if lower in known.lower()]:
        return holding[:_FEW]
    if what == "cluster":
        devices = {known: _read("trainwright.cluster", known)["device_kind"] for known in names}
        if of_device := [known for known in names if lower in devices[known].lower()]:
            return of_device[:_FEW]
    return []


def _quoted(name: str) -> str:
    return f'"{name}"'
