"""Patterns of bash: what `case`, `[[ == ]]` and `${name%…}` match with, and regular expressions.

A pattern is text in which `*`, `?` and `[…]` are special unless a backslash is before them
(`expand` puts one before what is quoted); `@(a|b)`, `?(a)`, `+(x)` and `*(x)` are understood where
the repeated part is a single character (bash manual, 3.5.8.1).

Python's matcher backtracks. What a pattern may cost is bounded beforehand: with k stars a text of
n letters takes at most about n^k steps, and repeated groups are not tried at all.
"""

from __future__ import annotations

import functools
import re
from typing import Final

_MOST_STEPS: Final = 2_000_000
_SPECIAL: Final = re.compile(r"[*?\[\\]|[@?*+!]\(")
_CLASSES: Final = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z",
    "space": r"\s", "blank": r" \t", "xdigit": "0-9a-fA-F", "punct": r"!-/:-@\[-`{-~",
    "word": r"\w",
}  # fmt: skip
_CLASS: Final = re.compile(r"\[:(\w+):\]")


class TooCostly(Exception):
    """Matching could take very long, or the pattern is one that is not understood."""


def literal(pattern: str) -> str | None:
    """The text that a pattern stands for, None where it has special characters."""
    if _SPECIAL.search(pattern) is None:
        return pattern
    plain = re.sub(r"\\(.)", "", pattern, flags=re.DOTALL)
    return None if _SPECIAL.search(plain) else re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str, lazy: bool) -> tuple[re.Pattern[str], int]:
    """The regular expression of a pattern, and how many stars it has."""
    out: list[str] = []
    stars = at = 0
    more = "?" if lazy else ""
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\" and at + 1 < len(pattern):
            out.append(re.escape(pattern[at + 1]))
            at += 2
        elif letter in "@?*+!" and pattern.startswith("(", at + 1):
            end = _closing(pattern, at + 1)
            group, quantity = _group(letter, pattern[at + 2 : end], more)
            stars += quantity
            out.append(group)
            at = end + 1
        elif letter == "*":
            if not out or out[-1] != ".*" + more:  # ** is *
                out.append(".*" + more)
                stars += 1
            at += 1
        elif letter == "?":
            out.append(".")
            at += 1
        elif letter == "[" and (end := _end_of_set(pattern, at)):
            out.append(_set(pattern[at + 1 : end]))
            at = end + 1
        else:
            out.append(re.escape(letter))
            at += 1
    try:
        return re.compile("".join(out), re.DOTALL), stars
    except re.error:
        raise TooCostly from None


def _closing(pattern: str, at: int) -> int:
    depth = 0
    for k in range(at, len(pattern)):
        depth += {"(": 1, ")": -1}.get(pattern[k], 0)
        if depth == 0:
            return k
    raise TooCostly


def _group(sign: str, inside: str, more: str) -> tuple[str, int]:
    parts = inside.split("|")
    if sign == "!" or any(_SPECIAL.search(p) and not _is_one_letter(p) for p in parts):
        raise TooCostly
    found = [_compiled(part, bool(more))[0].pattern for part in parts]
    group = "(?:" + "|".join(found) + ")"
    if sign == "@":
        return group, 0
    if sign == "?":
        return group + "?" + more, 0
    if len(parts) > 1 or not _is_one_letter(parts[0]):
        raise TooCostly
    return found[0] + sign + more, 1


def _is_one_letter(part: str) -> bool:
    return len(part) == 1 or (part.startswith("[") and _end_of_set(part, 0) == len(part) - 1)


def _end_of_set(pattern: str, at: int) -> int:
    """The index of the bracket that closes a set, 0 where none does."""
    end = at + 1
    if pattern.startswith(("!", "^"), end):
        end += 1
    if pattern.startswith("]", end):
        end += 1
    while end < len(pattern):
        if found := _CLASS.match(pattern, end):
            end = found.end()
        elif pattern[end] == "]":
            return end
        else:
            end += 2 if pattern[end] == "\\" else 1
    return 0


def _set(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    body = _CLASS.sub(lambda found: f"\0{found[1]}\0", inside[1:] if negated else inside)
    body = re.sub(r"\\(.)", r"\1", body)
    body = re.sub(r"[\\\[\]^&~|]", lambda found: "\\" + found[0], body)
    body = re.sub("\0(\\w+)\0", lambda found: _CLASSES.get(found[1], ""), body)
    return f"[{'^' if negated else ''}{body}]"


def _checked(pattern: str, text: str, *, lazy: bool = False, more: int = 0) -> re.Pattern[str]:
    found, stars = _compiled(pattern, lazy)
    if (len(text) + 1) ** max(1, stars + more) > _MOST_STEPS:
        raise TooCostly
    return found


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern matches a whole text; raises `TooCostly`."""
    plain = literal(pattern)
    if plain is not None:
        return plain == text
    return _checked(pattern, text).fullmatch(text) is not None


def without_prefix(pattern: str, text: str, *, longest: bool) -> str:
    """The text without the beginning that matches; raises `TooCostly`."""
    plain = literal(pattern)
    if plain is not None:
        return text.removeprefix(plain)
    found = _checked(pattern, text, lazy=not longest).match(text)
    return text[found.end() :] if found else text


def without_suffix(pattern: str, text: str, *, longest: bool) -> str:
    """The text without the end that matches; raises `TooCostly`."""
    plain = literal(pattern)
    if plain is not None:
        return text.removesuffix(plain)
    expression = _checked(pattern, text, more=1)
    starts = range(len(text) + 1)
    for start in starts if longest else reversed(starts):
        if expression.fullmatch(text, start):
            return text[:start]
    return text


def replaced(pattern: str, text: str, by: str, *, everywhere: bool) -> str:
    """The text with what matches replaced; `#` or `%` before the pattern ties it to an end.

    Raises `TooCostly`.
    """
    tied = pattern[:1] if pattern[:1] in ("#", "%") and not everywhere else ""
    pattern = pattern[1:] if tied else pattern
    if not pattern:
        return {"#": by + text, "%": text + by}.get(tied, text)
    plain = literal(pattern)
    if plain is not None and not tied:
        return text.replace(plain, by, -1 if everywhere else 1)
    expression = _checked(pattern, text, more=1)
    if tied == "#":
        found = expression.match(text)
        return by + text[found.end() :] if found else text
    if tied == "%":
        for start in range(len(text) + 1):
            if expression.fullmatch(text, start):
                return text[:start] + by
        return text
    return expression.sub(lambda _: by, text, 0 if everywhere else 1)


def regular_expression(source: str, *, basic: bool = False) -> tuple[re.Pattern[str], int]:
    """A POSIX regular expression, extended or basic, and how many repetitions it has.

    Raises `TooCostly` for repeated groups and for what Python reads otherwise.
    """
    if basic:
        source = re.sub(
            r"\\([(){}+?|])|([(){}+?|])", lambda found: found[1] or "\\" + found[2], source
        )
    body = re.sub(r"\[:(\w+):\]", lambda found: _CLASSES.get(found[1], ""), source)
    outside = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "", body)
    repeated = len(re.findall(r"[*+?{]", outside))
    if re.search(r"\)[*+{]|[*+?}][*+?{]|\(\?|\\[0-9]", body) or repeated > 4:
        raise TooCostly
    try:
        return re.compile(body), repeated
    except (re.error, OverflowError):
        raise TooCostly from None


def searched(source: str, text: str, *, basic: bool = False) -> re.Match[str] | None:
    """Where a regular expression is found in a text; raises `TooCostly`."""
    expression, repeated = regular_expression(source, basic=basic)
    if (len(text) + 1) ** max(1, repeated + 1) > _MOST_STEPS:
        raise TooCostly
    return expression.search(text)
