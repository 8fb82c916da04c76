"""`trainwright codesign`: the best accelerator and the plans that train models on it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.chips import document as records
from trainwright.chips.design_times import FIGURES
from trainwright.chips.document import (
    count_figures,
    differences,
    front_points,
    layer_records,
    result_of,
    told,
)
from trainwright.chips.population import (
    COLUMNS,
    OBJECTIVES,
    Population,
    descending_area_search,
    design_rows,
    front,
    hypervolume,
    populate,
    recheck,
    write_designs,
)
from trainwright.chips.price import JobPricer
from trainwright.chips.request import (
    DEFAULT_GLOBAL_BATCH,
    CodesignQuestion,
    listed,
    question_of,
    request_of,
    surroundings_records,
)
from trainwright.chips.room import read_room
from trainwright.chips.room_answer import USUAL_GAP, answer, room_request
from trainwright.chips.search import CodesignOutcome, pricers, search, why_infeasible
from trainwright.chips.space import DieModel
from trainwright.chips.tables import plot_codesign
from trainwright.chips.technology import read_technology
from trainwright.chips.workload import Chain, ends_of_chip
from trainwright.cluster import Cluster, networked
from trainwright.commands.output import budget, check_output, emit, finish
from trainwright.commands.plan import plan
from trainwright.documents.open import Result
from trainwright.documents.printing import Report
from trainwright.errors import CheckFailed, InvalidInput, meant, one_of
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.execution.executor import executor_of
from trainwright.formats import codesign_document
from trainwright.formats.atomic_file import exists, read_bytes, write_bytes
from trainwright.formats.catalog import accelerator_names, accelerators, cluster_names
from trainwright.formats.document_json import FileJournal, content_hash, decode_document, encode
from trainwright.formats.json_text import parse_json
from trainwright.formats.records import NUMBER, TEXT, array_schema, object_schema, titled
from trainwright.options.clusters import ANY_FRAMEWORK
from trainwright.options.inputs import naming_options
from trainwright.options.option import Options
from trainwright.options.table import read, rows_of, verb
from trainwright.plans.status import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Prepared = Mapping[int, tuple[JobPricer, ...]]

DEFAULT_EPSILON: Final = 0.02
USUAL_FRONT: Final = 0.15  # of systems
SEARCHES: Final = ("exact", "descending-area")


class CodesignReport(Report[codesign_document.CodesignResult]):
    """The answer of `codesign`: the best design, its proof, the front."""

    __slots__ = ()

    @property
    def status(self) -> Status:
        """How much is proved."""
        return self.document.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What to work out beside the best design."""

    pareto: bool = True
    epsilon: float = DEFAULT_EPSILON
    details: bool = True  # operators, sensitivity, fixed strategies, real chips
    search: str = "exact"
    jobs: str | int | None = None
    journal: Path | None = None
    csv: Path | None = None
    recheck_sample: int = 0
    seed: int = 0


@verb
def codesign(
    models: Sequence[str | Path] | str | Path,
    *,
    devices: int,
    technology: str | Path | None = None,
    figures: Mapping[str, Any] | None = None,
    die: DieModel | Mapping[str, float] | None = None,
    extras: Extras | None = None,
    budget: Budget | None = None,
    least_area_share: float | None = None,
    ranges: Mapping[str, Sequence[int]] | None = None,
    energy: Mapping[str, float] | None = None,
    **options: Any,
) -> CodesignReport:
    """Search all chip designs within an area for the one that trains `models` fastest.

    `technology` is a file of what chips are made of, which goes after what is given beside it,
    `figures` state single ones by their names in it, {"memories.hbm3.stack_price": 250};
    `die` adds the rest of the die and its cost, `extras` say what to work out beside the best
    design, `budget` may hold a time limit. Everything else has a default.

    `memory`, `memory_bandwidth`, `link_bandwidth` (numbers in SI, or text with a unit) and
    `clock` (Hz) list values that the search chooses from, `micro_batch` sizes of a microbatch,
    `tp` tensor degrees, `recompute` of "none" and "full", `precision` of "bf16", "fp8" and
    "fp32", `schedule` families of pipelines ("1f1b" and others, all where nothing is said).
    `stacks` lists numbers of memory stacks in place of memory and its bandwidth; each stack
    brings `stack_memory`, `stack_bandwidth` and, of the chip's area, `stack_area` in mm².

    `node_devices` chips share links of `node_bandwidth` (one value or several of each), which
    tensor groups use; their exchanges hide under `tensor_overlap` of the compute, those of replicas
    under `gradient_overlap` of the last backward (gradients) and of the first forward (weights).
    `max_power` (watts) limits the
    power of a chip in its hungriest operator, `tdp` over a step. `weights` are shares of
    the models in `objective`. Areas are of cores, buffers and memory interfaces; `least_area_share`
    of the largest is the lower limit.
    `ranges` replaces values of num_tc, num_vc, width, depth or glb_mib, `energy` entries of the
    energy table.

    Raises `InvalidInput` with everything wrong with the request.
    """
    own = ("devices", "technology", "figures", "die", "extras", "budget")
    options = read("codesign", options, own=own)
    stated = {"least_area_share": least_area_share, "ranges": ranges, "energy": energy}
    options |= {name: value for name, value in stated.items() if value is not None}
    options |= _made_of(technology, figures, die)
    request, warnings = request_of(models, devices=devices, options=options)
    report = run_request(request, extras=extras or Extras(), budget=budget or NoLimit())
    document = report.document
    return CodesignReport(replace(document, warnings=(*warnings, *document.warnings)))


def run_request(
    request: codesign_document.CodesignRequest,
    *,
    extras: Extras,
    budget: Budget,
    prepared: Prepared | None = None,
) -> CodesignReport:
    """Answer a request, from options or from a document; `prepared` as for `search`."""
    if extras.search not in SEARCHES:
        raise InvalidInput.of("search", one_of(SEARCHES, extras.search))
    question = question_of(request)

    executor = executor_of(extras.jobs)
    journal = None if extras.journal is None else _journal(extras.journal, request)
    if extras.search == "exact":
        outcome = search(question, budget, prepared, executor=executor, journal=journal)
    else:
        outcome = descending_area_search(question, budget, prepared)
    document = replace(result_of(request, question, outcome), search=extras.search)
    if outcome.best is None:
        if outcome.status is Status.INFEASIBLE:
            document = replace(document, infeasible_because=why_infeasible(question))
        return CodesignReport(document)
    document = _with_best(document, question, outcome, extras, budget, prepared)
    if extras.recheck_sample:
        document = replace(document, recheck=_recheck(question, outcome, extras, budget))
    return CodesignReport(document)


def _with_best(
    document: codesign_document.CodesignResult,
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    extras: Extras,
    budget: Budget,
    prepared: Prepared | None,
) -> codesign_document.CodesignResult:
    best = outcome.best
    assert best is not None
    made = records.design_record(question, best)
    document = replace(
        document,
        best=made,
        warnings=tuple(records.of_reticle(question, made)),
        at_ends=tuple(
            ends_of_chip(document.request.rules, made.architecture, document.request.surroundings)
        ),
    )
    if extras.pareto and not budget.stopped:
        document = _with_front(document, question, outcome, extras, budget, prepared)
    elif extras.csv is not None:
        _write_csv(extras.csv, question, outcome, None)
    if extras.details and not budget.stopped:
        document = replace(
            document,
            fixed_strategies=tuple(records.fixed_strategies(question, best)),
            operators=tuple(records.operator_records(question, best)),
            layer_schedules=tuple(layer_records(question, best)),
            sensitivity=tuple(
                records.sensitivity_records(document.request, question, outcome, budget)
            ),
            real_chips=tuple(
                records.real_chip_records(question, accelerators(), best, document.request)
            ),
        )
    return document


def _with_front(
    document: codesign_document.CodesignResult,
    question: CodesignQuestion,
    outcome: CodesignOutcome,
    extras: Extras,
    budget: Budget,
    prepared: Prepared | None,
) -> codesign_document.CodesignResult:
    start_s = budget.cpu_s
    everything, finished = populate(
        question,
        budget,
        scale_s=outcome.scale_s,
        executor=executor_of(extras.jobs),
        journal=None if extras.journal is None else _journal(extras.journal, document.request),
        prepared=prepared,
    )
    if not finished:
        warning = (
            f"the front was interrupted and is of the {len(everything):,} designs priced so far; "
            "--journal FILE keeps them, and the same command goes on from there"
            if len(everything)
            else "the front was interrupted before a design was priced and is left out"
        )
        document = replace(document, warnings=(*document.warnings, warning))
    if not finished and not len(everything):
        return document
    if extras.csv is not None:
        _write_csv(extras.csv, question, outcome, everything)
    figures = everything.figures()
    best = everything.take(front(figures, epsilon=extras.epsilon))
    three = figures[:, [0, 1, 3]]
    exact = three[front(three)]
    return replace(
        document,
        pareto=tuple(front_points(question, best)),
        pareto_objectives=("tokens_per_s", *OBJECTIVES[1:]),
        pareto_epsilon=extras.epsilon,
        hypervolume=hypervolume(exact, np.nextafter(three.max(axis=0), np.inf)),
        front_s=budget.cpu_s - start_s,
    )


def _journal(
    path: Path, request: codesign_document.CodesignRequest | codesign_document.RoomRequest
) -> FileJournal:
    """The journal of a request; one about another request is refused."""
    return FileJournal(path, about=content_hash(encode(request)))


def _write_csv(
    path: Path, question: CodesignQuestion, outcome: CodesignOutcome, everything: object
) -> None:
    found = everything if isinstance(everything, Population) else None
    write_designs(path, COLUMNS, design_rows(question, outcome, found))


def _recheck(
    question: CodesignQuestion, outcome: CodesignOutcome, extras: Extras, budget: Budget
) -> codesign_document.RecheckRecord:
    found = recheck(question, outcome, budget, sample=extras.recheck_sample, seed=extras.seed)
    if found.contradictions:
        variant, design = found.contradictions[0]
        raise CheckFailed(
            f"{len(found.contradictions)} of {found.sampled} pruned designs contradict the search, "
            f"the first is design {design} of variant {variant}"
        )
    return codesign_document.RecheckRecord(
        sampled=found.sampled, confirmed=found.confirmed, seed=found.seed
    )


def recheck_document(path: str | Path, *, sample: int, seed: int, budget: Budget) -> CodesignReport:
    """Search a document's request again, price a sample of pruned designs, compare every figure.

    Of a search that its budget ended the bound must be no higher than the optimum and the best no
    lower. Raises `CheckFailed` with what differs.
    """
    value = parse_json(read_bytes(path, name="document"), source=str(path))
    stored = decode_document(
        value, {"codesign": codesign_document.CodesignResult}, source=str(path)
    )
    whole = stored.status in (Status.OPTIMAL, Status.INFEASIBLE) or stored.search != "exact"
    extras = Extras(
        pareto=bool(stored.pareto) and whole,
        epsilon=DEFAULT_EPSILON if stored.pareto_epsilon is None else stored.pareto_epsilon,
        details=bool(stored.operators or stored.sensitivity or stored.real_chips) and whole,
        search=stored.search,
        recheck_sample=sample if stored.search == "exact" else 0,
        seed=seed,
    )
    again = run_request(stored.request, extras=extras, budget=budget)
    if budget.stopped:
        return again
    found = again.document
    if (wrong := _wrong_with(stored, found, whole=whole)) is not None:
        raise CheckFailed(f"{path}: {wrong}")
    figures = sum(count_figures(getattr(stored, name)) for name in _checked(stored, whole))
    if found.recheck is None:
        return again
    checked = replace(found.recheck, figures=figures)
    return CodesignReport(replace(found, recheck=checked))


_NOT_CHECKED: Final = ("request", "search_s", "front_s", "recheck", "warnings", "format_version")


def _checked(stored: codesign_document.CodesignResult, whole: bool) -> tuple[str, ...]:
    """Keys of a document that its request settles; what was cut short has few."""
    if not whole:
        return ("objective", "candidates", "searched", "space_sha256")
    names = [each.name for each in fields(stored) if each.name not in _NOT_CHECKED]
    details = ("operators", "sensitivity", "real_chips", "layer_schedules", "fixed_strategies")
    front = ("pareto", "pareto_objectives", "pareto_epsilon", "hypervolume")
    absent = set() if stored.pareto else set(front)
    if not any(getattr(stored, name) for name in details[:3]):
        absent |= set(details)
    return tuple(name for name in names if name not in absent)


def _wrong_with(
    stored: codesign_document.CodesignResult,
    found: codesign_document.CodesignResult,
    *,
    whole: bool,
) -> str | None:
    every = (
        one
        for name in _checked(stored, whole)
        for one in differences(getattr(stored, name), getattr(found, name), name)
    )
    if (wrong := told(every, "its request gives")) is not None or whole:
        return wrong
    optimum = None if found.best is None else found.best.objective
    if stored.best is not None and (optimum is None or stored.best.objective < optimum * _NEAR):
        return f"best.objective: {stored.best.objective} is below the optimum, {optimum}"
    bound = stored.lower_bound
    if bound is not None and optimum is not None and bound * _NEAR > optimum:
        return f"lower_bound: {bound} is above the optimum, {optimum}"
    return None


_NEAR: Final = 1.0 - 1e-9


# `codesign --chip`: no search for a chip, the plan on one that exists
# --------------------------------------------------------------------
# The chip is an accelerator of the catalog in the network that the options of `codesign` describe,
# or a whole cluster: of the catalog, of a file, or of the design that an earlier search found. Each
# is planned by the planner of `trainwright plan`, so the answer is its own.

_TAKEN: Final = (
    "global_batch",
    "sequence",
    "micro_batch",
    "tp",
    "recompute",
    "schedule",
)
_OF_NETWORK: Final = ("link_bandwidth", "node_devices", "node_bandwidth")


def plan_on_chip(
    model: str | Path,
    *,
    chip: str,
    devices: int,
    budget: Budget | None = None,
    **options: Any,
) -> Result:
    """The best plan of `model` on `devices` chips of a kind: what `trainwright plan` gives.

    `chip` names an accelerator of the catalog, or a cluster (a name, a file or the document of a
    search) with its own network. Raises `InvalidInput` for an option that only a search for a chip
    has.
    """
    options = read("codesign", options, own=("chip", "devices", "budget"))
    for row in rows_of("codesign"):
        value = options.get(row.name)
        if row.name not in (*_TAKEN, *_OF_NETWORK) and value not in (None, (), row.usual):
            raise InvalidInput.of(row.flag, "must not be given: the chip is fixed")
    sizes = tuple(options.get("micro_batch") or (1,))
    degrees = tuple(options.get("tp") or ())
    with naming_options({"cluster": "chip"}):
        return plan(
            model,
            devices=devices,
            cluster=cluster_of(chip, devices=devices, options=options),
            framework=ANY_FRAMEWORK,
            global_batch=options.get("global_batch") or DEFAULT_GLOBAL_BATCH,
            sequence=options.get("sequence"),
            micro_batch=_span("micro-batch", sizes),
            tp=_span("tp", degrees) if degrees else None,
            recompute=",".join(options.get("recompute") or ("none", "full")),
            schedule=",".join(options.get("schedule") or ()) or None,
            budget=budget,
        )


def cluster_of(chip: str, *, devices: int, options: Options) -> str | Cluster:
    """The cluster of a chip: its nodes of `node_devices`, links between them; a name as it is."""
    known = accelerators()
    if chip not in known:
        _require_cluster(chip)
        if given := [name for name in _OF_NETWORK if options.get(name) is not None]:
            problem = f"must not be given: {chip} has a network of its own"
            raise InvalidInput.of(given[0].replace("_", "-"), problem)
        return chip
    (around, *more) = surroundings_records(
        {
            "link_bandwidth": options.get("link_bandwidth"),
            "node_devices": options.get("node_devices"),
            "node_bandwidth": options.get("node_bandwidth"),
        }
    )
    if more:
        several = next(n for n in _OF_NETWORK if len(listed(options.get(n))) > 1)
        problem = "must be a single value: the chip is fixed"
        raise InvalidInput.of(several.replace("_", "-"), problem)
    return networked(known[chip], around.surroundings(), num_devices=devices)


def _require_cluster(chip: str) -> None:
    """Raise `InvalidInput` where `chip` is neither a cluster nor a file."""
    if chip in cluster_names() or exists(chip):
        return
    known = (*accelerator_names(), *cluster_names())
    wanted = f"must be a file or one of {', '.join(known)}"
    raise InvalidInput.of("chip", f'{wanted}, got "{chip}"{meant(chip, known)}')


def _span(name: str, values: tuple[int, ...]) -> str:
    """A list of sizes as the planner takes it: from the least to the most of them."""
    least, most = min(values), max(values)
    doubling = tuple(least * 2**k for k in range((most // least).bit_length()))
    if tuple(sorted(set(values))) != doubling:
        raise InvalidInput.of(name, f"must double from value to value, got {list(values)}")
    return str(least) if least == most else f"{least}..{most}"


# The stages of a co-design apart, each from the files of the one before
# ----------------------------------------------------------------------
# `graph` writes the request and the layers of every model, `estimate` every product on every core
# configuration, `solve` searches. Together they give what `codesign` gives.

STAGES: Final = ("graph", "estimate", "solve")
GRAPH_FILE: Final = "graph.json"
ESTIMATES_FILE: Final = "estimates.npz"


def write_graph(
    folder: str | Path,
    models: Sequence[str | Path],
    *,
    devices: int,
    budget: Budget,
    technology: str | Path | None = None,
    figures: Mapping[str, Any] | None = None,
    die: DieModel | Mapping[str, float] | None = None,
    **options: Any,
) -> Report[codesign_document.StageResult]:
    """The first stage: the request and the layers it is about, in `folder`/graph.json."""
    start_s = budget.cpu_s
    options = read("codesign", options)
    options |= _made_of(technology, figures, die)
    request, _ = request_of(models, devices=devices, options=options)
    chains = tuple(_chains(question_of(request)))
    path = _folder(folder) / GRAPH_FILE
    Report(codesign_document.GraphResult(request=request, chains=chains)).save(path)
    kernels = sum(len(layer.kernels) for chain in chains for layer in chain.layers)
    return _stage("graph", path, {"chains": len(chains), "kernels": kernels}, budget, start_s)


def write_estimates(folder: str | Path, *, budget: Budget) -> Report[codesign_document.StageResult]:
    """The second stage: reads graph.json, writes `folder`/estimates.npz."""
    start_s = budget.cpu_s
    request = read_graph(folder).request
    question = question_of(request)
    found = {}
    for index, variant in enumerate(question.variants):
        for model, pricer in enumerate(pricers(question, variant)):
            for degree, figures in pricer.estimates().items():
                found[index, model, degree] = figures
    path = Path(folder) / ESTIMATES_FILE
    _save_estimates(path, found, about=_about(request))
    count = sum(figures[0].size for figures in found.values())
    return _stage("estimate", path, {"products": count}, budget, start_s)


def solve(folder: str | Path, *, extras: Extras, budget: Budget) -> CodesignReport:
    """The last stage: reads both files and searches."""
    request = read_graph(folder).request
    question = question_of(request)
    arrays = _load_estimates(Path(folder) / ESTIMATES_FILE, about=_about(request))
    prepared: dict[int, tuple[JobPricer, ...]] = {}
    for index, variant in enumerate(question.variants):
        prepared[index] = pricers(question, variant)
        for model, pricer in enumerate(prepared[index]):
            mine = {t: figures for (v, m, t), figures in arrays.items() if (v, m) == (index, model)}
            pricer.load(mine)
    return run_request(request, extras=extras, budget=budget, prepared=prepared)


def read_graph(folder: str | Path) -> codesign_document.GraphResult:
    """The document of the first stage; raises `InvalidInput` where it is not there."""
    path = Path(folder) / GRAPH_FILE
    value = parse_json(read_bytes(path, name="artifacts"), source=str(path))
    return decode_document(
        value, {"codesign-graph": codesign_document.GraphResult}, source=str(path)
    )


# Estimates between two stages: one NumPy archive, about one request

_ABOUT: Final = "about"

_Key = tuple[int, int, int]  # variant, model, tensor degree


def estimates_schema() -> dict[str, Any]:
    """The JSON Schema of the archive, each array as lists of lists."""
    figures = array_schema(array_schema(NUMBER, least=1), least=1)
    arrays = {**array_schema(figures, least=len(FIGURES)), "maxItems": len(FIGURES)}
    said = f"{', '.join(FIGURES)} of each core configuration and product"
    root = {
        **object_schema({_ABOUT: {**TEXT, "description": "the hash of the request"}}),
        "patternProperties": {"^[0-9]+_[0-9]+_[0-9]+$": {**arrays, "description": said}},
        "additionalProperties": False,
    }
    about = "Estimates of `codesign --stage estimate`: arrays by variant, model and tensor degree."
    return titled("estimates.npz", root, about=about)


def _save_estimates(path: Path, estimates: Mapping[_Key, NDArray[Any]], *, about: str) -> None:
    """Write the archive whole; raises `InvalidInput` where it cannot be written."""
    data = BytesIO()
    named = {"_".join(map(str, key)): figures for key, figures in estimates.items()}
    np.savez_compressed(data, **{_ABOUT: np.array(about)}, **named)  # type: ignore[arg-type]
    write_bytes(path, data.getvalue())


def _load_estimates(path: Path, *, about: str) -> dict[_Key, NDArray[Any]]:
    """Read an archive; raises `InvalidInput` where it is none, or about another request."""
    data = read_bytes(path, name="estimates")
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
            told = str(arrays.pop(_ABOUT))
            keys = {name: _key(name) for name in arrays}
    except (ValueError, KeyError, OSError, zipfile.BadZipFile):
        problem = f'must be an archive of the stage estimate: "{path}"; run that stage again'
        raise InvalidInput.of("estimates", problem) from None
    if told != about:
        problem = f'is about another request: "{path}"; run the stage estimate again'
        raise InvalidInput.of("estimates", problem)
    return {keys[name]: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}


def _key(name: str) -> _Key:
    variant, model, degree = map(int, name.split("_"))
    return variant, model, degree


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f'cannot be made, {error.strerror}: "{path}"'
        raise InvalidInput.of("artifacts", problem) from None
    return path


def _about(request: codesign_document.CodesignRequest) -> str:
    return content_hash(encode(request))


def _stage(
    stage: str, path: Path, counts: dict[str, int], budget: Budget, start_s: float
) -> Report[codesign_document.StageResult]:
    spent_s = budget.cpu_s - start_s
    return Report(
        codesign_document.StageResult(stage=stage, file=str(path), counts=counts, stage_s=spent_s)
    )


def _chains(question: CodesignQuestion) -> Iterator[codesign_document.ChainRecord]:
    sizes = {variant.microbatch_size: variant for variant in question.variants}
    for size, variant in sizes.items():
        for job in question.jobs_of(variant):
            for degree in sorted(set(job.tensor_degrees)):
                yield codesign_document.ChainRecord(
                    model=job.name,
                    tensor_parallel=degree,
                    microbatch_size=size,
                    layers=tuple(_layers(job.chain(degree))),
                )


def _layers(chain: Chain) -> Iterator[codesign_document.LayerRecord]:
    counts = chain.class_counts.tolist()
    for layer, kernels, count in zip(chain.graph.classes, chain.kernels, counts, strict=True):
        yield codesign_document.LayerRecord(
            kind=str(layer.kind),
            count=count,
            parameters=layer.num_parameters,
            kernels=tuple(
                codesign_document.KernelRecord(
                    operator=kernel.operator,
                    phase=str(kernel.phase),
                    products=tuple((p.batch, p.m, p.n, p.k) for p in kernel.products),
                    share=kernel.share,
                    flops=kernel.flops,
                    lane_cycles=kernel.lane_cycles,
                    memory_bytes=kernel.memory_bytes,
                )
                for kernel in kernels
            ),
        )


# Whole systems: chips and the machine room around them
# -----------------------------------------------------


def machine_room(
    models: Sequence[str | Path] | str | Path,
    *,
    devices: int,
    aim: str = "time",
    room: str | Path | None = None,
    max_dollars: float | None = None,
    max_watts: float | None = None,
    max_silicon_mm2: float | None = None,
    gap: float | None = None,
    front: float | None = USUAL_FRONT,
    journal: str | Path | None = None,
    technology: str | Path | None = None,
    figures: Mapping[str, Any] | None = None,
    die: DieModel | Mapping[str, float] | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> Report[codesign_document.RoomResult]:
    """Search designs and systems of up to `devices` chips together, by `aim` of a token.

    `aim` is "time", "cost" or "energy", `room` a file of axes and prices (usual ones where absent).
    `max_dollars`, `max_watts` and `max_silicon_mm2` limit the whole system. The answer is at most
    `gap` (0.01) from the best, with a certificate; beside it stand systems that no system beats
    by more than `front` in time, cost and power (None: no front). `journal` is a file of what is
    done, from which a search that was ended goes on. Other options are those of
    `codesign`, one value of each. Raises `InvalidInput` with everything wrong with the request.
    """
    options = read(
        "codesign", options, own=("devices", "aim", "room", "gap", "front", "journal", "budget")
    )
    for row in rows_of("codesign"):
        if row.name in _SETTLED_BY_ROOM and options.get(row.name) not in (None, (), row.usual):
            raise InvalidInput.of(row.flag, _STATED_BY_ROOM)
    options = {**options, "schedule": ("1f1b",)} if not options.get("schedule") else options
    options |= _made_of(technology, figures, die)
    if options["technology"].package_watts is not None:
        raise InvalidInput.of("package", _STATED_BY_ROOM)
    chips, warnings = request_of(models, devices=devices, options=options)
    path = None if room is None else Path(room)
    request = room_request(
        chips,
        read_room(path, devices=devices, made_of=options["technology"]),
        aim=aim,
        gap=USUAL_GAP if gap is None else gap,
        front=front,
        dollars=max_dollars,
        watts=max_watts,
        silicon_mm2=max_silicon_mm2,
    )
    kept = None if journal is None else _journal(Path(journal), request)
    found = answer(request, budget or NoLimit(), journal=kept)
    return Report(replace(found, warnings=(*warnings, *found.warnings)))


def _recheck_of(path: Path, *, sample: int, seed: int, budget: Budget) -> Report[Any]:
    """The document checked as its kind is."""
    from trainwright.chips.room_answer import recheck

    value = parse_json(read_bytes(path, name="document"), source=str(path))
    if not (isinstance(value, dict) and value.get("kind") == "machine-room"):
        return recheck_document(path, sample=sample, seed=seed, budget=budget)
    stored = decode_document(
        value, {"machine-room": codesign_document.RoomResult}, source=str(path)
    )
    return Report(recheck(stored, sample=sample, seed=seed, budget=budget))


# `trainwright codesign`
# ----------------------


def command(
    models: tuple[str, ...] = (),
    *,
    devices: int | None = None,
    chip: str | None = None,
    defect_density: float | None = None,
    technology: Path | None = None,
    figures: Mapping[str, Any] | None = None,
    aim: str | None = None,
    room: Path | None = None,
    budget_money: float | None = None,
    budget_power: float | None = None,
    budget_area: float | None = None,
    gap: float | None = None,
    sample: int | None = None,
    recheck: Path | None = None,
    figure: Path | None = None,
    stage: str | None = None,
    artifacts: Path | None = None,
    output: Path | None = None,
    as_json: bool = False,
    time_limit: float | None = None,
    **options: Any,
) -> None:
    """Search, go through one stage of the search, or prove an earlier one again."""
    given_extras = {name: options.pop(name) for name in _EXTRAS if options.get(name) is not None}
    options = {name: value for name, value in options.items() if name not in _EXTRAS}
    no_front = bool(options.pop("no_pareto", False))
    extras = Extras(pareto=not no_front, recheck_sample=sample or 0, **given_extras)
    check_output(output, recheck, *models)
    check_output(figure, output, extras.csv, document=False)
    check_output(extras.csv, output, *models, document=False)
    if stage is not None and stage not in STAGES:
        raise InvalidInput.of("stage", one_of(STAGES, stage))
    if (stage is None) != (artifacts is None):
        missing = "stage" if stage is None else "artifacts"
        raise InvalidInput.of(missing, "must be given: --stage and --artifacts go together")
    if chip is not None:
        _refuse(
            "must not be given with --chip: the chip is fixed",
            {
                "stage": stage,
                "recheck": recheck,
                "sample": sample,
                "journal": extras.journal,
                "csv": extras.csv,
                "figure": figure,
                "defect-density": defect_density,
                "technology": technology,
                "set": figures,
                "jobs": extras.jobs,
            },
        )
    of_room: dict[str, Any] = {
        "aim": aim,
        "room": room,
        "max_dollars": budget_money,
        "max_watts": budget_power,
        "max_silicon_mm2": budget_area,
        "gap": gap,
    }
    of_room = {name: value for name, value in of_room.items() if value is not None}
    if of_room and (chip is not None or stage is not None or recheck is not None):
        beside = "chip" if chip is not None else "stage" if stage is not None else "recheck"
        raise InvalidInput.of(beside, _NOT_OF_SYSTEMS)
    if of_room:
        usual, near = Extras(), given_extras.pop("epsilon", USUAL_FRONT)
        of_room |= {"front": None if no_front else near}
        of_room |= {"journal": given_extras.pop("journal", None)}
        changed: dict[str, object] = {
            name: value for name, value in given_extras.items() if value != getattr(usual, name)
        }
        _refuse(_NOT_OF_SYSTEMS, {**changed, "sample": sample, "figure": figure})
    alone = recheck is not None or stage in ("estimate", "solve")
    if alone and models:
        raise InvalidInput.of("model", "must not be given: the file holds the request")
    if not alone and (not models or devices is None):
        raise InvalidInput.of("devices" if models else "model", "must be given")
    if alone:
        of_file = {"technology": technology, "set": figures, "defect-density": defect_density}
        _refuse("must not be given: the file holds the request", of_file)
    result: Report[Any]
    with budget(time_limit) as allowed:
        if recheck is not None:
            result = _recheck_of(recheck, sample=sample or 1000, seed=extras.seed, budget=allowed)
        elif stage == "estimate" and artifacts is not None:
            result = write_estimates(artifacts, budget=allowed)
        elif stage == "solve" and artifacts is not None:
            result = solve(artifacts, extras=extras, budget=allowed)
        else:
            assert devices is not None
            asked: dict[str, Any] = {"devices": devices, "budget": allowed, **options}
            made: dict[str, Any] = {"technology": technology, "figures": figures}
            if defect_density is not None:
                made["die"] = {"defects_per_mm2": defect_density}
            if chip is not None:
                if len(models) > 1:
                    raise InvalidInput.of("model", f"must be one with --chip, got {len(models)}")
                result = plan_on_chip(models[0], chip=chip, **asked)
            elif of_room:
                result = machine_room(models, **of_room, **made, **asked)
            elif artifacts is not None:
                result = write_graph(artifacts, models, **made, **asked)
            else:
                result = codesign(models, extras=extras, **made, **asked)
    if figure is not None:
        _draw(result, figure)
    emit(result, as_json=as_json, output=output)
    status = getattr(result.document, "status", None)
    finish(0 if status is None else status.exit_code, interrupted=allowed.interrupted)


_EXTRAS: Final = ("epsilon", "search", "jobs", "journal", "csv", "seed")


# Axes of a room, and limits of one chip: budgets of a room are of all its chips.
_SETTLED_BY_ROOM: Final = (
    *("memory", "memory_bandwidth", "stacks", "stack_memory", "stack_bandwidth"),
    *("node_devices", "node_bandwidth", "link_bandwidth", "max_power", "tdp"),
)
_NOT_OF_SYSTEMS: Final = "must not be given where whole systems are sought"
_STATED_BY_ROOM: Final = f"{_NOT_OF_SYSTEMS}: --room or --budget-power states it for all chips"


def _refuse(why: str, given: Mapping[str, object]) -> None:
    """What another kind of search has."""
    if named := [name for name, value in given.items() if value is not None]:
        raise InvalidInput.of(named[0], why)


def _draw(result: Report[Any], path: Path) -> None:
    if (
        not isinstance(result.document, codesign_document.CodesignResult)
        or result.document.best is None
    ):
        raise InvalidInput.of("figure", "needs a best design to draw")
    plot_codesign(result.document, path)


def _made_of(
    technology: str | Path | None,
    figures: Mapping[str, Any] | None,
    die: DieModel | Mapping[str, float] | None,
) -> dict[str, Any]:
    """What chips are made of, as options: of a file, of single figures, and of the die."""
    own = asdict(die) if is_dataclass(die) and not isinstance(die, type) else die
    path = None if technology is None else Path(technology)
    made_of = read_technology(path, figures)
    read_room(None, devices=1, made_of=made_of)  # what it says of a room is checked in any search
    return {"die": own, "technology": made_of}
