"""Arithmetic of bash: whole numbers of 64 bits, with variables, assignments and unknown operands.

Precedence climbing over the operators of the manual's section 6.5. An operand that is not known is
a private character (see `values`); what is computed from one is that character too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trainwright.frameworks.shell.values import has_holes

Number = int | str  # a str is one character that stands for what is unknown

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+#[\w@]+|\d+)(?![\w\U000f0000-\U0010ffff])"
    r"|(?P<name>[A-Za-z_]\w*)(?P<index>\[)?(?![\U000f0000-\U0010ffff])"
    r"|(?P<open>[\w.\U000f0000-\U0010ffff]*[\U000f0000-\U0010ffff][\w.\U000f0000-\U0010ffff]*)"
    r"|(?P<sign><<=|>>=|\*\*|\+\+|--|[-+*/%&|^]=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^!~?:=(),]))"
)
_ASSIGN: Final = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="})
_BINARY: Final = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11,
}  # fmt: skip


class BadArithmetic(Exception):
    """Not an expression, or a division by zero: bash stops the command with an error."""


@dataclass(frozen=True, slots=True)
class Names:
    """How an expression reads and writes variables; an index is text, None where there is none."""

    get: Callable[[str, str | None], Number]
    put: Callable[[str, str | None, Number], None]


def wrapped(number: int) -> int:
    """A number as 64 bits with a sign hold it."""
    return (number + 2**63) % 2**64 - 2**63


def divided(left: int, right: int, sign: str) -> int:
    """The quotient (`/`), cut towards zero, or what it leaves (`%`)."""
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return wrapped(quotient if sign == "/" else left - quotient * right)


def calculate(text: str, names: Names) -> Number:
    """The value of an expression; raises `BadArithmetic`."""
    if text.isascii() and (plain := text.strip()).isdigit() and plain[:1] != "0":
        return wrapped(int(plain)) if len(plain) < 20 else _number(plain)
    reading = _Reading(text, names)
    if reading.sign is None and reading.at_end:
        return 0
    value = reading.sequence()
    if not reading.at_end:
        raise BadArithmetic
    return value


def _number(text: str) -> int:
    if len(text) > 64:
        raise BadArithmetic
    try:
        if "#" in text:
            base, digits = text.split("#", 1)
            return wrapped(int(digits, int(base)))
        if text[:2] in ("0x", "0X"):
            return wrapped(int(text, 16))
        return wrapped(int(text, 8) if len(text) > 1 and text[0] == "0" else int(text))
    except ValueError:
        raise BadArithmetic from None


class _Reading:
    """The expression, one token ahead."""

    def __init__(self, text: str, names: Names) -> None:
        self._text = text
        self._names = names
        self._at = 0
        self._idle = 0  # > 0 in a branch that is not taken: nothing is assigned there
        self.next()

    def next(self) -> None:
        self.sign: str | None = None
        self.number: Number | None = None
        self.name: str | None = None
        self.index: str | None = None
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            self.at_end = not self._text[self._at :].strip()
            if not self.at_end:
                raise BadArithmetic
            return
        self.at_end = False
        self._at = found.end()
        if found["number"]:
            self.number = _number(found["number"])
        elif found["open"]:
            self.number = next(c for c in found["open"] if has_holes(c))
        elif found["name"]:
            self.name = found["name"]
            if found["index"]:
                self.index = self._inside_index()
        else:
            self.sign = found["sign"]

    def _inside_index(self) -> str:
        depth, start = 1, self._at
        while self._at < len(self._text) and depth:
            depth += {"[": 1, "]": -1}.get(self._text[self._at], 0)
            self._at += 1
        if depth:
            raise BadArithmetic
        return self._text[start : self._at - 1]

    def sequence(self) -> Number:
        value = self.assignment()
        while self.sign == ",":
            self.next()
            value = self.assignment()
        return value

    def assignment(self) -> Number:
        name, index = self.name, self.index
        if name is not None:
            mark = (self._at, self.name, self.index)
            self.next()
            if self.sign in _ASSIGN:
                sign = self.sign
                self.next()
                value = self.assignment()
                if sign is not None and sign != "=":
                    value = _binary(sign[:-1], self._names.get(name, index), value)
                return self._put(name, index, value)
            self._at, self.name, self.index = mark
            self.sign, self.number, self.at_end = None, None, False
        return self.choice()

    def _put(self, name: str, index: str | None, value: Number) -> Number:
        if not self._idle:
            self._names.put(name, index, value)
        return value

    def choice(self) -> Number:
        condition = self.binary(1)
        if self.sign != "?":
            return condition
        self.next()
        self._idle += condition == 0
        first = self.assignment()
        self._idle -= condition == 0
        if self.sign != ":":
            raise BadArithmetic
        self.next()
        is_first = not isinstance(condition, str) and condition != 0
        self._idle += is_first
        second = self.assignment()
        self._idle -= is_first
        if isinstance(condition, str):
            return first if first == second else condition
        return first if condition else second

    def binary(self, lowest: int) -> Number:
        left = self.unary()
        while self.sign is not None and _BINARY.get(self.sign, 0) >= lowest:
            sign = self.sign
            level = _BINARY[sign]
            self.next()
            skip = (sign == "&&" and left == 0) or (
                sign == "||" and not isinstance(left, str) and left != 0
            )
            self._idle += skip
            right = self.binary(level if sign == "**" else level + 1)
            self._idle -= skip
            try:
                left = _binary(sign, left, right)
            except BadArithmetic:
                if not self._idle:
                    raise
                left = 0
        return left

    def unary(self) -> Number:
        sign = self.sign
        if sign in ("++", "--"):
            self.next()
            if self.name is None:
                raise BadArithmetic
            name, index = self.name, self.index
            self.next()
            step = 1 if sign == "++" else -1
            return self._put(name, index, _binary("+", self._names.get(name, index), step))
        if sign in ("+", "-", "!", "~"):
            self.next()
            value = self.unary()
            if isinstance(value, str):
                return value
            return {"+": value, "-": wrapped(-value), "!": int(not value), "~": ~value}[sign]
        return self.primary()

    def primary(self) -> Number:
        if self.sign == "(":
            self.next()
            value = self.sequence()
            if self.sign != ")":
                raise BadArithmetic
            self.next()
            return value
        if self.number is not None:
            number = self.number
            self.next()
            return number
        if self.name is None:
            raise BadArithmetic
        name, index = self.name, self.index
        self.next()
        value = self._names.get(name, index)
        if self.sign in ("++", "--"):
            step = 1 if self.sign == "++" else -1
            self.next()
            self._put(name, index, _binary("+", value, step))
        return value


def _binary(sign: str, left: Number, right: Number) -> Number:
    if sign == "&&" and (left == 0 or right == 0):
        return 0
    if sign == "||" and any(not isinstance(side, str) and side for side in (left, right)):
        return 1
    if isinstance(left, str):
        return left
    if isinstance(right, str):
        return right
    if sign in ("/", "%"):
        if right == 0:
            raise BadArithmetic
        return divided(left, right, sign)
    if sign == "**":
        if right < 0:
            raise BadArithmetic
        return wrapped(pow(left, right, 2**64))
    return wrapped(int(_OPERATORS[sign](left, right)))


_OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "||": lambda a, b: bool(a or b),
    "&&": lambda a, b: bool(a and b),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
