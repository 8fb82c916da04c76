"""Small tools of text that launch scripts call, computed here: nothing is ever run.

Each takes its arguments and what it reads, both known, and gives what it prints and its status,
or None for what it does not do: the output is then unknown, as that of any other program.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from trainwright.frameworks.shell import patterns
from trainwright.frameworks.shell.arithmetic import divided, wrapped
from trainwright.frameworks.shell.values import Budget
from trainwright.frameworks.shell.words import unescaped

Printed = tuple[str, int] | None
Tool = Callable[[Sequence[str], str], Printed]

READS_INPUT: Final = frozenset(
    {
        "cut", "tr", "wc", "head", "tail", "sort", "uniq", "sed", "grep", "egrep", "fgrep", "awk",
        "gawk", "xargs", "bc", "tac", "rev",
    }
)  # fmt: skip


def echo(arguments: Sequence[str]) -> str:
    """What `echo` prints."""
    end, escapes = "\n", False
    words = list(arguments)
    while words and re.fullmatch(r"-[neE]+", words[0]):
        end = "" if "n" in words[0] else end
        escapes = "e" in words[0]
        words.pop(0)
    text = " ".join(words)
    return (unescaped(text) if escapes else text) + end


_DIRECTIVE: Final = re.compile(r"%([-+ 0#]*)(\d{0,3})(?:\.(\d{1,3}))?([sdiqbcxXofge%])")


def printf(arguments: Sequence[str]) -> str | None:
    """What `printf` prints: the format again and again until no argument is left."""
    words = list(arguments)
    if words[:1] == ["--"]:
        words.pop(0)
    if not words or words[0].startswith("-v"):
        return None
    template = unescaped(words.pop(0))
    out: list[str] = []
    size = 0
    while True:
        left = len(words)
        try:
            out.append(_DIRECTIVE.sub(lambda found: _formatted(found, words), template))
        except (ValueError, OverflowError):
            return None
        size += len(out[-1])
        if size > Budget.LONGEST_TEXT:
            return None
        if not words or len(words) == left:
            return "".join(out)


def _formatted(found: re.Match[str], words: list[str]) -> str:
    flags, width, digits, kind = found.groups()
    if kind == "%":
        return "%"
    text = words.pop(0) if words else ""
    if kind in "sbqc":
        text = unescaped(text) if kind == "b" else shlex.quote(text) if kind == "q" else text
        text = text[:1] if kind == "c" else text if digits is None else text[: int(digits)]
        return text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))
    number = float(text or 0) if kind in "feg" else int(text or "0", 0)
    return f"%{flags}{width}{'.' + digits if digits else ''}{'d' if kind == 'i' else kind}" % number


def _options(arguments: Sequence[str], valued: str) -> tuple[dict[str, str], list[str]] | None:
    """Single-letter options with their values, and the rest."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return found, rest + words
        if len(word) > 1 and word[0] == "-" and not word.startswith("--"):
            for k, letter in enumerate(word[1:], 1):
                if letter in valued:
                    if k + 1 == len(word) and not words:
                        return None
                    found[letter] = word[k + 1 :] or words.pop(0)
                    break
                found[letter] = ""
        elif word.startswith("--") and len(word) > 2:
            return None
        else:
            rest.append(word)
    return found, rest


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _printed(lines: Sequence[str]) -> Printed:
    return "".join(f"{line}\n" for line in lines), 0


def _basename(arguments: Sequence[str], read: str) -> Printed:
    options = _options(arguments, "s")
    if options is None or not options[1]:
        return None
    given, names = options
    suffix = given.get("s", "")
    if "a" not in given and "s" not in given:
        suffix, names = names[1] if len(names) > 1 else "", names[:1]
    found = []
    for name in names:
        base = name.rstrip("/").rpartition("/")[2] or ("/" if name.startswith("/") else "")
        found.append(base.removesuffix(suffix) if base != suffix else base)
    return _printed(found)


def dirname(path: str) -> str:
    """The folder of a path, as the tool of that name prints it."""
    stripped = path.rstrip("/")
    if not stripped:
        return "/" if path else "."
    folder, slash, _ = stripped.rpartition("/")
    return (folder.rstrip("/") or "/") if slash else "."


def _dirname(arguments: Sequence[str], read: str) -> Printed:
    return _printed([dirname(each) for each in arguments if each != "--"])


def _ranges(text: str) -> list[tuple[int, int]] | None:
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{0,6})(-?)(\d{0,6})", part)
        if match is None or not part.strip("-"):
            return None
        first = int(match[1] or 1)
        found.append((first, int(match[3] or 10**9) if match[2] else first))
    return found


def _cut(arguments: Sequence[str], read: str) -> Printed:
    options = _options(arguments, "dfcb")
    if options is None or options[1]:
        return None
    given = options[0]
    ranges = _ranges(given.get("f") or given.get("c") or given.get("b") or "")
    if ranges is None:
        return None
    out = []
    for line in _lines(read):
        if "f" in given:
            separator = given.get("d", "\t")
            if not separator:
                return None
            parts: Sequence[str] = line.split(separator)
            if len(parts) == 1:
                if "s" not in given:
                    out.append(line)
                continue
        else:
            separator, parts = "", line
        kept = [part for k, part in enumerate(parts, 1) if any(a <= k <= b for a, b in ranges)]
        out.append(separator.join(kept))
    return _printed(out)


_TR_CLASSES: Final = {
    "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz",
    "[:digit:]": "0123456789",
    "[:space:]": " \t\n\r\f\v",
    "[:blank:]": " \t",
}
_TR_CLASSES["[:alpha:]"] = _TR_CLASSES["[:upper:]"] + _TR_CLASSES["[:lower:]"]
_TR_CLASSES["[:alnum:]"] = _TR_CLASSES["[:digit:]"] + _TR_CLASSES["[:alpha:]"]


def _letters(text: str) -> str:
    for name, letters in _TR_CLASSES.items():
        text = text.replace(name, letters)
    text = unescaped(text)

    def between(found: re.Match[str]) -> str:
        first, last = ord(found[1]), ord(found[2])
        return "".join(map(chr, range(first, min(last, first + 256) + 1)))

    return re.sub(r"(.)-(.)", between, text, flags=re.DOTALL)


def _tr(arguments: Sequence[str], read: str) -> Printed:
    options = _options(arguments, "")
    if options is None or not options[1]:
        return None
    given, sets = options
    first = _letters(sets[0])
    second = _letters(sets[1]) if len(sets) > 1 else ""
    others = "c" in given or "C" in given
    if "d" in given:
        text = "".join(c for c in read if (c in first) == others)
    elif second and others:
        text = "".join(c if c in first else second[-1] for c in read)
    elif second:
        table = {c: second[min(k, len(second) - 1)] for k, c in reversed(list(enumerate(first)))}
        text = "".join(table.get(c, c) for c in read)
    else:
        text = read
    if "s" in given:
        squeezed = second or first
        text = re.sub(
            r"(.)\1+", lambda m: m[1] if m[1] in squeezed else m[0], text, flags=re.DOTALL
        )
    return text, 0


def _wc(arguments: Sequence[str], read: str) -> Printed:
    options = _options(arguments, "")
    if options is None or options[1] or not options[0]:
        return None
    counts = {
        "l": read.count("\n"),
        "w": len(read.split()),
        "c": len(read.encode()),
        "m": len(read),
    }
    found = [str(counts[letter]) for letter in "lwcm" if letter in options[0]]
    return (" ".join(found) + "\n", 0) if found else None


def _head(arguments: Sequence[str], read: str) -> Printed:
    return _end_of(arguments, read, first=True)


def _tail(arguments: Sequence[str], read: str) -> Printed:
    return _end_of(arguments, read, first=False)


def _end_of(arguments: Sequence[str], read: str, *, first: bool) -> Printed:
    words = [re.sub(r"^-(\d+)$", r"-n\1", word) for word in arguments]
    words = [re.sub(r"^--lines=", "-n", word) for word in words]
    options = _options(words, "nc")
    if options is None or options[1] or set(options[0]) - {"n"}:
        return None
    count = options[0].get("n", "10")
    if not re.fullmatch(r"[-+]?\d{1,9}", count):
        return None
    lines, number = _lines(read), int(count)
    if first:
        return _printed(lines[:number])
    if count[0] == "+":
        return _printed(lines[max(0, number - 1) :])
    number = abs(number)
    return _printed(lines[len(lines) - number :] if number < len(lines) else lines)


def _seq(arguments: Sequence[str], read: str) -> Printed:
    options = re.match(r"-s(.*)", arguments[0], re.DOTALL) if arguments else None
    separator, words = "\n", list(arguments)
    if options:
        words.pop(0)
        separator = options[1] or (words.pop(0) if words else "\n")
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1])}.get(
        len(numbers), (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    )
    if step == 0 or abs(last - first) // abs(step) > Budget.MOST_WORDS:
        return None
    found = range(first, last + (1 if step > 0 else -1), step)
    return (separator.join(map(str, found)) + "\n", 0) if found else ("", 0)


def _expr(arguments: Sequence[str], read: str) -> Printed:
    words = list(arguments)
    if not words or len(words) > 200:
        return None
    try:
        value = _expr_level(words, 0)
    except (ValueError, ZeroDivisionError, IndexError, patterns.TooCostly):
        return None
    if words:
        return None
    return f"{value}\n", int(value in ("", "0"))


_EXPR_LEVELS: Final = (
    ("|",), ("&",), ("<", "<=", "=", "==", "!=", ">=", ">"), ("+", "-"), ("*", "/", "%"), (":",)
)  # fmt: skip


def _expr_level(words: list[str], level: int) -> str:
    if level == len(_EXPR_LEVELS):
        word = words.pop(0)
        if word == "(":
            value = _expr_level(words, 0)
            if words.pop(0) != ")":
                raise ValueError
            return value
        if word == "length" and words:
            return str(len(words.pop(0)))
        return word
    left = _expr_level(words, level + 1)
    while words and words[0] in _EXPR_LEVELS[level]:
        sign = words.pop(0)
        left = _expr_binary(left, sign, _expr_level(words, level + 1))
    return left


def _expr_binary(left: str, sign: str, right: str) -> str:
    if sign == "|":
        return left if left not in ("", "0") else right
    if sign == "&":
        return left if left not in ("", "0") and right not in ("", "0") else "0"
    if sign == ":":
        found = patterns.searched("^" + right.removeprefix("^"), left, basic=True)
        if found is None:
            return "" if "\\(" in right else "0"
        return found[1] if found.groups() else str(len(found[0]))
    numeric = all(re.fullmatch(r"-?\d{1,19}", side) for side in (left, right))
    if sign in ("<", "<=", "=", "==", "!=", ">=", ">"):
        a: int | str = int(left) if numeric else left
        b: int | str = int(right) if numeric else right
        equal, less = a == b, (a < b)  # type: ignore[operator]
        truth = {"<": less, "<=": less or equal, "=": equal, "==": equal, "!=": not equal,
                 ">=": not less, ">": not (less or equal)}[sign]  # fmt: skip
        return str(int(truth))
    if not numeric:
        raise ValueError
    first, second = int(left), int(right)
    if sign in ("/", "%"):
        return str(divided(first, second, sign))
    return str(wrapped({"+": first + second, "-": first - second, "*": first * second}[sign]))


def _bc(arguments: Sequence[str], read: str) -> Printed:
    """Sums, differences, products and quotients; `scale=` says how many digits a quotient has."""
    scale = 20 if "-l" in arguments else 0
    out = []
    for statement in re.split(r"[;\n]", read):
        text = statement.strip()
        if not text:
            continue
        if found := re.fullmatch(r"scale\s*=\s*(\d{1,2})", text):
            scale = int(found[1])
            continue
        try:
            value, digits = _Bc(text, scale).value()
        except (ValueError, ZeroDivisionError, IndexError, RecursionError):
            return None
        out.append(_decimal(value, digits))
    return _printed(out)


def _decimal(value: Fraction, digits: int) -> str:
    whole = abs(value.numerator) * 10**digits // value.denominator
    text = str(whole).rjust(digits + 1, "0")
    text = text[:-digits] + "." + text[-digits:] if digits else text
    text = text.removeprefix("0") if digits and text.startswith("0.") else text
    return ("-" if value < 0 and whole else "") + (text if whole or not digits else "0")


class _Bc:
    def __init__(self, text: str, scale: int) -> None:
        self._tokens = re.findall(r"\d+\.?\d*|\.\d+|[<>=!]=|[-+*/%^()<>]|\S", text)
        self._scale = scale
        if len(self._tokens) > 200 or len(text) > 2000:
            raise ValueError

    def value(self) -> tuple[Fraction, int]:
        found = self._compared()
        if self._tokens:
            raise ValueError
        return found

    def _take(self, signs: tuple[str, ...]) -> str | None:
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in signs else None

    def _compared(self) -> tuple[Fraction, int]:
        left = self._sum()
        if sign := self._take(("<", ">", "<=", ">=", "==", "!=")):
            a, b = left[0], self._sum()[0]
            truth = {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "==": a == b, "!=": a != b}
            return Fraction(int(truth[sign])), 0
        return left

    def _sum(self) -> tuple[Fraction, int]:
        value, digits = self._product()
        while sign := self._take(("+", "-")):
            other, more = self._product()
            value, digits = value + other if sign == "+" else value - other, max(digits, more)
        return value, digits

    def _product(self) -> tuple[Fraction, int]:
        value, digits = self._power()
        while sign := self._take(("*", "/", "%")):
            other, more = self._power()
            if sign == "*":
                both = digits + more
                digits = min(both, max(self._scale, digits, more))
                value = _truncated(value * other, digits)
            else:
                quotient = _truncated(value / other, self._scale)
                value = quotient if sign == "/" else value - quotient * other
                digits = self._scale if sign == "/" else max(digits, self._scale + more)
        return value, digits

    def _power(self) -> tuple[Fraction, int]:
        value, digits = self._atom()
        if self._take(("^",)):
            exponent, _ = self._power()
            if exponent.denominator != 1 or not 0 <= exponent <= 64 or abs(value) > 10**12:
                raise ValueError
            digits = min(digits * int(exponent), max(self._scale, digits))
            value = _truncated(value ** int(exponent), digits)
        return value, digits

    def _atom(self) -> tuple[Fraction, int]:
        token = self._tokens.pop(0)
        if token == "(":
            found = self._compared()
            if self._take((")",)) is None:
                raise ValueError
            return found
        if token == "-":
            value, digits = self._atom()
            return -value, digits
        if len(token) > 40:
            raise ValueError
        return Fraction(token.rstrip(".")), len(token.partition(".")[2])


def _truncated(value: Fraction, digits: int) -> Fraction:
    scaled = value * 10**digits
    whole = abs(scaled.numerator) // scaled.denominator
    return Fraction(whole if scaled >= 0 else -whole, 10**digits)


def _sed(arguments: Sequence[str], read: str) -> Printed:
    """Substitutions (`s/…/…/`), `Np` with -n, `Nd` and `/…/d`."""
    words, extended, quiet, programs = list(arguments), False, False, []
    while words:
        word = words.pop(0)
        if word in ("-E", "-r"):
            extended = True
        elif word == "-n":
            quiet = True
        elif word == "-e" and words:
            programs.append(words.pop(0))
        elif word.startswith("-") or programs:
            return None
        else:
            programs.append(word)
    lines = _lines(read)
    for program in programs:
        done = _sed_program(program, lines, extended, quiet)
        if done is None:
            return None
        lines = done
    return _printed(lines) if programs else None


def _sed_program(program: str, lines: list[str], extended: bool, quiet: bool) -> list[str] | None:
    for command in _sed_commands(program.strip()):
        if found := re.fullmatch(r"(\d+|\$)(?:,(\d+|\$))?([pd])", command):
            ends = [len(lines) if e == "$" else int(e) for e in (found[1], found[2] or found[1])]
            inside = set(range(ends[0] - 1, min(ends[1], len(lines))))
            keep = found[3] == "p"
            if keep != quiet:
                return None
            lines = [line for k, line in enumerate(lines) if (k in inside) == keep]
            continue
        deletes = re.fullmatch(r"/((?:[^/\\]|\\.)*)/d", command)
        try:
            if deletes:
                basic = not extended
                lines = [x for x in lines if not patterns.searched(deletes[1], x, basic=basic)]
                continue
            changed = _substituted(command, lines, extended)
        except patterns.TooCostly:
            return None
        if changed is None or quiet:
            return None
        lines = changed
    return lines


def _sed_commands(program: str) -> list[str]:
    """The commands of a program between its semicolons, where those do not belong to one."""
    found = re.match(r"s(.)", program)
    if found is None:
        return [part.strip() for part in program.split(";") if part.strip()]
    at, mark, seen = 2, found[1], 0
    while at < len(program):
        if program[at] == "\\":
            at += 1
        elif program[at] == mark:
            seen += 1
        elif seen == 2 and program[at] in ";\n":
            return [program[:at].strip(), *_sed_commands(program[at + 1 :].strip())]
        at += 1
    return [program]


def _substituted(command: str, lines: list[str], extended: bool) -> list[str] | None:
    if len(command) < 4 or command[0] != "s":
        return None
    mark = re.escape(command[1])
    parts = re.fullmatch(
        rf"s{mark}((?:[^\\]|\\.)*?){mark}((?:[^\\]|\\.)*?){mark}([gI]*)", command, re.DOTALL
    )
    if parts is None or len(command) > 4000:
        return None
    source, by = (part.replace("\\" + command[1], command[1]) for part in (parts[1], parts[2]))
    expression, repeated = patterns.regular_expression(source, basic=not extended)
    if any((len(line) + 1) ** max(1, repeated + 1) > 10**6 for line in lines):
        raise patterns.TooCostly
    if "I" in parts[3]:
        return None

    def put(found: re.Match[str]) -> str:
        def one(mark: re.Match[str]) -> str:
            if mark[0] == "&":
                return found[0]
            if mark[1].isdigit():
                return (found[int(mark[1])] if int(mark[1]) <= len(found.groups()) else "") or ""
            return {"n": "\n", "t": "\t"}.get(mark[1], mark[1])

        return re.sub(r"\\(.)|&", one, by, flags=re.DOTALL)

    return [expression.sub(put, line, count=0 if "g" in parts[3] else 1) for line in lines]


def _grep(arguments: Sequence[str], read: str) -> Printed:
    options = _options(arguments, "em")
    if options is None or set(options[0]) - set("qvcioEFwxe"):
        return None
    given, rest = options
    sources = [given["e"]] if "e" in given else rest[:1]
    if len(sources) != 1 or len(rest) > (0 if "e" in given else 1):
        return None
    source = re.escape(sources[0]) if "F" in given else sources[0]
    source = {"w": rf"\b{source}\b", "x": f"^{source}$"}.get(
        next((o for o in "wx" if o in given), ""), source
    )
    out = []
    try:
        for line in _lines(read):
            text, wanted = (line.lower(), source.lower()) if "i" in given else (line, source)
            found = patterns.searched(wanted, text, basic="E" not in given and "F" not in given)
            if (found is None) == ("v" in given):
                out.append(found[0] if found and "o" in given else line)
    except patterns.TooCostly:
        return None
    status = 0 if out else 1
    if "q" in given:
        return "", status
    if "c" in given:
        return f"{len(out)}\n", status
    return "".join(f"{line}\n" for line in out), status


def _awk(arguments: Sequence[str], read: str) -> Printed:
    """`{print $N …}` alone, with `-F`."""
    options = _options(arguments, "F")
    if options is None or len(options[1]) != 1:
        return None
    program = re.fullmatch(r"\s*(NR==(\d{1,6})\s*)?\{\s*print\s*([^{}]*)\}\s*", options[1][0])
    if program is None:
        return None
    separator = options[0].get("F")
    out = []
    for k, line in enumerate(_lines(read), 1):
        if program[2] and k != int(program[2]):
            continue
        fields = line.split() if separator in (None, " ") else line.split(separator)
        parts = []
        for item in re.findall(r'"[^"]*"|,|\$\w+|\S', program[3]):
            if item == ",":
                parts.append(" ")
            elif item == "$NF":
                parts.append(fields[-1] if fields else "")
            elif re.fullmatch(r"\$\d{1,4}", item):
                n = int(item[1:])
                parts.append(line if n == 0 else fields[n - 1] if n <= len(fields) else "")
            elif item.startswith('"') and len(item) > 1:
                parts.append(unescaped(item[1:-1]))
            else:
                return None
        out.append("".join(parts) if parts else line)
    return _printed(out)


def _sort(arguments: Sequence[str], read: str) -> Printed:
    options = _options(arguments, "")
    if options is None or options[1] or set(options[0]) - set("nru"):
        return None
    lines = _lines(read)
    if "n" in options[0]:
        if not all(re.fullmatch(r"\s*-?\d{1,18}\s*", line) for line in lines):
            return None
        lines.sort(key=int)
    else:
        lines.sort()
    lines = list(dict.fromkeys(lines)) if "u" in options[0] else lines
    return _printed(lines[::-1] if "r" in options[0] else lines)


def _uniq(arguments: Sequence[str], read: str) -> Printed:
    lines = _lines(read)
    return (
        None
        if arguments
        else _printed([x for k, x in enumerate(lines) if not k or x != lines[k - 1]])
    )


def _rev(arguments: Sequence[str], read: str) -> Printed:
    return None if arguments else _printed([line[::-1] for line in _lines(read)])


def _tac(arguments: Sequence[str], read: str) -> Printed:
    return None if arguments else _printed(_lines(read)[::-1])


def _xargs(arguments: Sequence[str], read: str) -> Printed:
    """Without a command, `xargs` puts what it reads on one line."""
    return None if list(arguments) not in ([], ["echo"]) else (" ".join(read.split()) + "\n", 0)


def getopt(arguments: Sequence[str]) -> str | None:
    """What `getopt` prints: the arguments in order, in quotes, for `eval set --`."""
    words, short, long = list(arguments), "", ""
    while words and words[0] != "--":
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-o", "--options", "-l", "--longoptions", "--long", "-n", "--name", "-a"):
            if name == "-a":
                continue
            value = value if equals else words.pop(0) if words else ""
            short = value if name in ("-o", "--options") else short
            long += f",{value}" if name in ("-l", "--longoptions", "--long") else ""
        elif word.startswith("-o"):
            short = word[2:]
        else:
            return None
    takes = {letter: short[k + 1 : k + 2] == ":" for k, letter in enumerate(short) if letter != ":"}
    names = {each.rstrip(":"): each.endswith(":") for each in long.split(",") if each}
    found: list[str] = []
    rest: list[str] = []
    words = words[1:]
    while words:
        word = words.pop(0)
        if word == "--":
            rest += words
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name not in names:
                return None
            found.append(f"--{name}")
            if names[name]:
                if not equals and not words:
                    return None
                found.append(shlex.quote(value if equals else words.pop(0)))
        elif word.startswith("-") and len(word) > 1:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter not in takes:
                    return None
                found.append(f"-{letter}")
                if takes[letter]:
                    if not letters and not words:
                        return None
                    found.append(shlex.quote(letters or words.pop(0)))
                    letters = ""
        else:
            rest.append(word)
    return (
        " "
        + " ".join([*found, "--", *(f"'{w}'" if w.isalnum() else shlex.quote(w) for w in rest)])
        + "\n"
    )


TOOLS: Final[dict[str, Tool]] = {
    "basename": _basename,
    "dirname": _dirname,
    "cut": _cut,
    "tr": _tr,
    "wc": _wc,
    "head": _head,
    "tail": _tail,
    "seq": _seq,
    "expr": _expr,
    "bc": _bc,
    "sed": _sed,
    "grep": _grep,
    "egrep": lambda arguments, read: _grep(["-E", *arguments], read),
    "fgrep": lambda arguments, read: _grep(["-F", *arguments], read),
    "awk": _awk,
    "gawk": _awk,
    "sort": _sort,
    "uniq": _uniq,
    "rev": _rev,
    "tac": _tac,
    "xargs": _xargs,
}
