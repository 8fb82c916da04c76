"""Every way trainwright refuses, as one tree.

TrainwrightError
├── InvalidInput         a file, an option or an argument breaks a rule (exit 2)
├── UnsupportedFeature   legal, but not something this part can do; names what can (exit 2)
│   ├── Inexpressible    a plan asks a framework for what it cannot say; names those that can
│   └── MissingExtra     an optional dependency is not installed; names the extra (exit 2)
├── Infeasible           proved: nothing fits; carries what binds and the cheapest fixes (exit 3)
├── CheckFailed          a check the user asked for did not hold (exit 4)
└── Contradiction        two proofs exclude each other: a defect, never hidden (exit 1)

Search code returns "no solution" as a value; only the front door raises `Infeasible`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final


class TrainwrightError(Exception):
    """Base of all errors raised on purpose."""

    exit_code: ClassVar[int] = 1


class Contradiction(TrainwrightError):
    """Two proofs exclude each other: a defect here or in a solver, which is never hidden."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule: where (`path`), and what was wanted and found (`problem`)."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class InvalidInput(TrainwrightError):
    """Input that breaks a rule; carries every fault found, in document order."""

    exit_code = 2

    def __init__(self, faults: Iterable[Fault], *, source: str | None = None) -> None:
        self.faults = tuple(faults)
        self.source = source
        assert self.faults, "an InvalidInput names at least one fault"
        super().__init__("\n".join(map(str, self.faults)))

    @classmethod
    def of(cls, path: str, problem: str, *, source: str | None = None) -> InvalidInput:
        """Build the error of a single fault."""
        return cls((Fault(path, problem),), source=source)


@contextmanager
def sourced(source: str | None) -> Iterator[None]:
    """Say of faults found within where what they are about comes from."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(error.faults, source=source) from None


def refuse(faults: Iterable[Fault]) -> None:
    """Raise `InvalidInput` with these faults, if there are any."""
    if found := tuple(faults):
        raise InvalidInput(found)


# Words of which one must be given, with the one that was meant where another is like it.


def one_of(known: Iterable[str], given: object) -> str:
    """What is wrong with a word that is none of the known ones."""
    names = [*known]
    return f'must be one of {", ".join(names)}, got "{given}"{meant(given, names)}'


def meant(given: object, known: Iterable[str]) -> str:
    """What a refusal ends with: the known word that is most like the one given, if any is.

    Case, dashes and underscores do not matter. A known word with the one given between dashes is
    most like it, then one that differs in few letters, then one that holds it.
    """
    import difflib  # which only mistakes need

    folded: dict[str, str] = {}
    for each in known:
        folded.setdefault(_folded(each), each)
    word = _folded(str(given))
    near = [own for own in folded if word in own.split("-")]
    near = near or difflib.get_close_matches(word, folded, n=1, cutoff=_LIKE)
    if not near and len(word) >= _LEAST_PART:
        near = [own for own in folded if word in own]
    return f'; did you mean "{folded[near[0]]}"?' if near else ""


_LEAST_PART: Final = 3  # letters
_LIKE: Final = 0.65  # of difflib's ratio: fp7 is like fp8, joint is not like intra


def _folded(word: str) -> str:
    return word.lower().replace("_", "-")


# What numbers may be, at the birth of the value that has them; what is None says nothing.


def too_low(of: object, least: int, *names: str, under: str = "") -> Iterator[Fault]:
    """Of the named attributes, counts below the least one; `under` is what paths begin with."""
    return _broken(of, names, f"must be >= {least}", lambda value: value >= least, under)


def not_positive(of: object, *names: str, under: str = "") -> Iterator[Fault]:
    """Of the named attributes, numbers that are not finite and above 0."""
    return _broken(of, names, "must be finite and > 0", lambda value: 0 < value < math.inf, under)


def negative(of: object, *names: str, under: str = "") -> Iterator[Fault]:
    """Of the named attributes, numbers that are not finite and at least 0."""
    return _broken(of, names, "must be finite and >= 0", lambda value: 0 <= value < math.inf, under)


def _broken(
    of: object, names: Iterable[str], rule: str, holds: Callable[[float], bool], under: str
) -> Iterator[Fault]:
    for name in names:
        value = getattr(of, name)
        if value is not None and not holds(value):
            yield Fault(f"{under}{name}", f"{rule}, got {value}")


class UnsupportedFeature(TrainwrightError):
    """A legal request that the chosen part cannot serve; `alternative` names one that can."""

    exit_code = 2

    def __init__(self, feature: str, *, alternative: str | None = None) -> None:
        self.feature = feature
        self.alternative = alternative
        super().__init__(feature if alternative is None else f"{feature}; {alternative}")


class Inexpressible(UnsupportedFeature):
    """A framework cannot express a plan; carries everything it cannot, and who can."""

    def __init__(
        self,
        target: str,
        faults: Iterable[Fault],
        *,
        alternatives: Iterable[str],
        replan: str | None = None,
    ) -> None:
        self.target = target
        self.faults = tuple(faults)
        self.alternatives = tuple(alternatives)
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        who = ", ".join(self.alternatives) or "none"
        super().__init__(
            f"{target} cannot express this plan:{lines}",
            alternative=f"targets that can express all of it: {who}; plan what it runs with "
            f"{replan or f'--framework {target}'}",
        )


def how_to_install(extra: str) -> str:
    """The command that adds an extra: of a checkout, as the package is on no index."""
    return f"pip install '.[{extra}]' in a checkout of trainwright"


class MissingExtra(UnsupportedFeature):
    """An optional dependency is needed and not installed."""

    def __init__(self, feature: str, *, extra: str) -> None:
        self.extra = extra
        super().__init__(feature, alternative=f"install it with: {how_to_install(extra)}")


class Infeasible(TrainwrightError):
    """Proved: no plan fits. `binding` says what cannot fit, `fixes` what would change that."""

    exit_code = 3

    def __init__(self, binding: str, *, fixes: Iterable[str] = ()) -> None:
        self.binding = binding
        self.fixes = tuple(fixes)
        super().__init__("\n".join((binding, *(f"fix: {fix}" for fix in self.fixes))))


class CheckFailed(TrainwrightError):
    """A requested check (`verify`, `--fail-on`) did not hold."""

    exit_code = 4
