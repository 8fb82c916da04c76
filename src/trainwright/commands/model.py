"""`trainwright model`: what a model is, on one screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.commands.output import check_output, emit
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput, UnsupportedFeature, how_to_install
from trainwright.formats.document_json import content_hash, decode
from trainwright.options import inputs
from trainwright.options.option import Options
from trainwright.plans.plan import Embedded
from trainwright.profile import Profile, ProfileFile

if TYPE_CHECKING:
    from trainwright.documents.model_summary import ModelSummary
    from trainwright.lab.torch_library import CountedModel

SEQUENCE = 4096


def describe_model(
    model: str | Path | Mapping[str, Any],
    *,
    sequence: int = SEQUENCE,
    images: int = 0,
    image_size: int | None = None,
    mtp_layers: int | None = None,
) -> Report[ModelSummary]:
    """Parameters, layers, FLOPs and cache of a model at sequences of `sequence` tokens.

    FLOPs are those of text, and of the encoder where a sequence has `images` (`image_size` pixels a
    side where the model takes any). Of the layers that predict further tokens, which are counted
    apart, there are `mtp_layers`, or all.

    `model` is a catalog name, the path of a `config.json` or its folder, a hub id in the local
    cache, the content of such a file, or a document of this command. A type that no formula of ours
    describes is built by the transformers library without content and counted, where the extra
    `[torch]` is installed.
    Raises `InvalidInput` for a file that breaks a rule, `UnsupportedFeature` for a type that
    nothing here knows.

        describe_model("llama3-8b").document.parameters_total
    """
    from trainwright.documents.model_summary import summary_of
    from trainwright.formats.catalog import open_model
    from trainwright.formats.hf_config import read_config
    from trainwright.options.run import config_predicting, config_with_images

    carried = _carried(model)
    if carried is not None:
        model = carried.content
    kept = carried or _description(model)
    try:
        if isinstance(model, (str, Path)):
            found = open_model(str(model))
        else:
            found = read_config(model, name=kept.name if kept else "model")
    except UnsupportedFeature as error:
        summary = _by_library(model, error, sequence_length=sequence)
        if images:
            problem = f"must be 0: {summary.model_type} is only counted, with text alone"
            raise InvalidInput.of("images", problem) from None
        if mtp_layers and summary.parameters_mtp:
            problem = f"must be 0 or absent: {summary.model_type} is only counted"
            raise InvalidInput.of("mtp-layers", problem) from None
        if mtp_layers is not None:
            summary = replace(summary, parameters_mtp=0)
        return Report(replace(summary, description=kept))
    config = config_predicting(found.config, mtp_layers, name=found.name)
    if images or image_size is not None:
        config = config_with_images(
            config,
            name=found.name,
            count=images,
            pixels=image_size,
            sequence=sequence,
        )
    found = replace(found, config=config)
    summary = summary_of(found, sequence_length=sequence)
    return Report(replace(summary, description=kept, images=images, image_size=image_size))


def _carried(model: object) -> Embedded | None:
    """What a document of this command describes; None of any other input."""
    if not isinstance(model, (str, Path)) or Path(model).suffix != ".json":
        return None
    _, content = _content(model)
    if content is None or content.get("kind") != "model" or "description" not in content:
        return None
    return decode(Embedded, content["description"], path="description", source=str(model))


def _description(model: str | Path | Mapping[str, Any]) -> Embedded | None:
    """A description as documents carry it; None of a built-in model, adapters, or what is no JSON.

    NaN is none, which files of the hub may hold.
    """
    from trainwright.formats.catalog import model_names
    from trainwright.formats.hf_config import is_adapter

    if isinstance(model, (str, Path)) and (str(model) in model_names() or is_adapter(Path(model))):
        return None
    name, found = _content(model)
    if found is None:
        return None
    try:
        content = json.loads(json.dumps(dict(found), allow_nan=False))
    except (TypeError, ValueError):
        return None
    return Embedded(kind="config", name=name, sha256=content_hash(content), content=content)


# What the library itself counts
# ------------------------------


def _by_library(
    model: str | Path | Mapping[str, Any], refusal: UnsupportedFeature, *, sequence_length: int
) -> ModelSummary:
    name, document = _unread(model, refusal, verb="counted")
    from trainwright.lab.torch_library import count_model

    return _summary(name, count_model(document, tokens=sequence_length), document)


def _unread(
    model: str | Path | Mapping[str, Any], refusal: UnsupportedFeature, *, verb: str
) -> tuple[str, Mapping[str, Any]]:
    """The name and the content of a file that no rule of ours reads, where the library may.

    Raises the `refusal`, with what to install where the library is missing.
    """
    name, document = _content(model)
    if document is None or document.keys().isdisjoint(("model_type", "architectures")):
        raise refusal  # which is about another kind of file
    if not (find_spec("torch") and find_spec("transformers")):
        missing = f"to have it {verb}: {how_to_install('torch')}"
        raise UnsupportedFeature(refusal.feature, alternative=missing) from None
    return name, document


def open_model_of(
    model: str | Path | Profile | ProfileFile,
    options: Options,
    *,
    given: Mapping[str, float] | None = None,
) -> inputs.ProfileInput | inputs.ModelInput | inputs.PlacementInput:
    """What the argument MODEL of `plan`, `estimate` and a sweep means: the one road to it.

    A file or a name is read as `resolve_input` does, with the options `point`, `time_unit` and
    `cluster`, and the fields of a setting that are `given`; what no rule reads is traced.
    """
    try:
        return inputs.resolve_input(
            model,
            point=options.get("point"),
            given=given,
            time_unit=options.get("time_unit"),
            on_cluster=options.get("cluster") is not None,
        )
    except UnsupportedFeature as refusal:
        return _traced(model, refusal, options)


def _traced(model: object, refusal: UnsupportedFeature, options: Options) -> inputs.ProfileInput:
    """A model that no rule reads as a profile: the library builds it, its layers are traced.

    They are priced on the cluster at sequences of `--sequence` and microbatches of 1, 2 and 4, or
    as `--micro-batch` says, with the parts frozen that options freeze, and not cut over tensor,
    context or expert groups. Raises the `refusal` where `model` is no file or no cluster is given,
    `UnsupportedFeature` where it cannot be traced.
    """
    from trainwright.costing.measured import profile_of_graph
    from trainwright.formats.hf_config import TARGETS
    from trainwright.model import RunShape
    from trainwright.options.clusters import opened
    from trainwright.options.run import OPTION_OF, TUNING_OPTIONS, tuning_asked, tuning_suffix

    given, length = options.get("cluster"), options.get("sequence")
    if not isinstance(model, (str, Path)) or given is None:
        raise refusal
    name, document = _unread(model, refusal, verb="traced")
    from trainwright.lab.torch_library import foreign_class, known_type, trace_model

    kind = known_type(document)
    if kind is None:
        raise refusal
    if not isinstance(length, int):
        raise InvalidInput.of("sequence", "must be given for a model that is traced")
    cluster, size = opened(given).cluster, options.get("micro_batch")
    runs = (
        RunShape(microbatch_size=each, sequence_length=length)
        for each in ((size,) if isinstance(size, int) else _TRACED_SIZES)
    )
    tuning = tuning_asked(options, None)
    with inputs.naming_options(OPTION_OF):
        graphs = [trace_model(document, run=run, tuning=tuning, modules=TARGETS) for run in runs]
    name += tuning_suffix(options)
    profiles = tuple(profile_of_graph(graph, cluster) for graph in graphs)
    made = inputs.profile_input(
        ProfileFile(profiles=profiles), name=name, point=None, on_cluster=True
    )
    told = [f"{name}: no rule reads {kind}, its layers are traced from the library's module"]
    if (other := foreign_class(document)) is not None:
        told.append(f"{name}: what {other} adds or leaves out beside it is not known")
    layers = [graphs[0].classes[each] for each in graphs[0].layers]
    if idle := sum(layer.num_parameters for layer in layers if layer.is_idle):
        told.insert(0, f"{name}: {idle:,} parameters are held and do no work, with text alone")
    return replace(made, warnings=tuple(told), used=TUNING_OPTIONS)


_TRACED_SIZES = (1, 2, 4)  # sequences of a microbatch


def _content(
    model: str | Path | Mapping[str, Any],
) -> tuple[str, Mapping[str, Any] | None]:
    """The name and the content of a file; no content where the model is a name of the catalog."""
    if not isinstance(model, (str, Path)):
        return "model", model
    from trainwright.formats.hf_config import config_document

    return config_document(str(model))


def _summary(name: str, counted: CountedModel, document: Mapping[str, Any]) -> ModelSummary:
    from trainwright.documents.model_summary import LayersOfKind, ModelPart, ModelSummary
    from trainwright.lab.torch_library import foreign_class

    flops, notes = counted.forward_flops, []
    stated = document.get("model_type")
    if isinstance(stated, str) and stated != counted.model_type:
        own = f'model_type "{stated}" is not the library\'s'
        notes.append(f"{own}: counted is its class {counted.class_name}")
    elif (other := foreign_class(document)) is not None:
        own = f"what {other} adds or leaves out is not known"
        notes.append(f"{own}: counted is the library's class {counted.class_name}")
    if flops is None:
        # Two FLOPs for each parameter that a token meets; attention's scores are missing.
        flops = 2 * counted.active_parameters * counted.tokens
        notes.append(
            f"FLOPs are two per active parameter, for a pass without content fails: {counted.note}"
        )
    per_token = flops / counted.tokens
    return ModelSummary(
        name=name,
        model_type=counted.model_type,
        counted_by=f"transformers ({counted.class_name}, without content)",
        parameters_total=counted.parameters,
        parameters_active=counted.active_parameters,
        parameters_mtp=counted.mtp_parameters(document),
        parts=tuple(ModelPart(name=part, parameters=count) for part, count in counted.parts),
        layers=tuple(
            LayersOfKind(
                kind=f"{row.path}: {row.class_name}{' with experts' if row.experts else ''}",
                count=row.count,
                parameters=row.parameters,
            )
            for row in counted.layers
        ),
        sequence_length=counted.tokens,
        flops_forward_per_token=per_token,
        flops_backward_per_token=2 * per_token,
        cache_bytes=None,
        limits=(
            "tensor, context and expert parallel: none, of layers that are traced",
            "pipeline: between any two layers, with a copy of what these share in each stage",
        ),
        notes=tuple(notes),
    )


# `trainwright model`
# -------------------


def command(
    model: str, *, output: Path | None = None, as_json: bool = False, **options: Any
) -> None:
    """Print the screen."""
    check_output(output, model)
    emit(describe_model(model, **options), as_json=as_json, output=output)
