"""Commands of the shell itself, and assignments (bash manual, chapter 4)."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from trainwright.frameworks.shell import launchers, session, values
from trainwright.frameworks.shell.arithmetic import BadArithmetic
from trainwright.frameworks.shell.conditions import BadTest
from trainwright.frameworks.shell.launchers import Command, InnerShell
from trainwright.frameworks.shell.tools import READS_INPUT, TOOLS, echo, getopt, printf
from trainwright.frameworks.shell.words import Word, tokens

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[(.*?)\](?=\+?=))?(\+?)=", re.DOTALL)
_ELEMENT: Final = re.compile(r"\[(.*?)\](\+?)=", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")


def is_assignment(raw: str) -> bool:
    """Whether a word that is written so gives a variable a value."""
    return _ASSIGNMENT.match(raw) is not None


def assign_words(shell: session.Session, words: Sequence[Word]) -> None:
    """Carry out assignments, as they are written."""
    for word in words:
        _assign(shell, word.raw, word.line)


def _assign(shell: session.Session, raw: str, line: int, *, by_name: bool = False) -> None:
    found = _ASSIGNMENT.match(raw)
    assert found is not None, "the word is an assignment"
    name, index, more = found[1], found[2], bool(found[3])
    value = raw[found.end() :]
    if index is None and not more and value in _LEFT_EMPTY and _is_given(shell, name):
        return  # a blank that whoever starts the script is to fill in
    if index is None and value.startswith("("):
        _assign_array(shell, name, value, line, more=more, by_name=by_name)
        return
    _assign_text(shell, name, index, shell.expander.one(value, line), line, more=more)


_LEFT_EMPTY: Final = ('""', "''")


def _is_given(shell: session.Session, name: str) -> bool:
    """Whether a variable has a value that came from outside of the script."""
    variable = shell.state.variables.get(name)
    return variable is not None and not variable.by_script and bool(variable.text)


def _assign_text(
    shell: session.Session, name: str, index: str | None, text: str, line: int, *, more: bool
) -> None:
    variable = shell.state.variables.get(name)
    is_number = variable is not None and variable.integer
    if is_number:
        text = _number(shell, text, line)
    if more:
        before = _before(shell, name, index, line)
        text = _number(shell, f"({before or 0})+({text})", line) if is_number else before + text
    shell.expander.assign(name, index, shell.budget.text(line, text), line)


def _before(shell: session.Session, name: str, index: str | None, line: int) -> str:
    variable = shell.state.variables.get(name)
    if variable is None:
        return ""
    if index is None or not isinstance(variable.value, values.Array):
        return variable.text or ""
    return variable.value.items.get(shell.expander.key(name, index, line), "")


def _number(shell: session.Session, text: str, line: int) -> str:
    try:
        return str(shell.expander.calculated(text, line))
    except BadArithmetic:
        return "0"


def _assign_array(
    shell: session.Session, name: str, raw: str, line: int, *, more: bool, by_name: bool
) -> None:
    """`name=(…)`, or with `more`, `name+=(…)`."""
    name = shell.expander.target(name)
    old = shell.state.variables.get(name)
    held = old.value if old is not None else None
    by_name = by_name or (isinstance(held, values.Array) and held.by_name)
    array = values.Array({}, by_name)
    if more and isinstance(held, values.Array):
        array = held
    elif more and isinstance(held, str):
        array = values.Array({0: held})
    pending: list[str] = []
    keys: list[str] = []
    for token in tokens(raw[1:].removesuffix(")"), line):
        if not isinstance(token, Word):
            continue
        element = _ELEMENT.match(token.raw)
        if element is None:
            fields = shell.expander.words([token])
            if by_name:
                keys += fields  # name=(key value key value)
            else:
                pending += fields
            continue
        array, pending = array.extended(pending), []
        text = shell.expander.one(token.raw[element.end() :], token.line)
        key: int | str
        if by_name:
            key = shell.expander.one(element[1], token.line)
        else:
            try:
                number = shell.expander.arithmetic(element[1], token.line)
            except BadArithmetic:
                number = 0
            key = number if isinstance(number, int) else len(array.items)
        before = array.items.get(key, "") if element[2] else ""
        array = array.with_item(key, before + text)
    for k in range(0, len(keys) - 1, 2):
        array = array.with_item(keys[k], keys[k + 1])
    array = array.extended(pending)
    shell.budget.words(line, list(array.items.values()))
    shell.budget.step(line, 1 + len(array.items))
    if old is not None and isinstance(old.value, str):
        shell.state.variables[name] = replace(old, value=values.Array({}))
    shell.state.set(name, array)


Words = Sequence[Word | str]


def _texts(words: Words) -> list[str]:
    return [word if isinstance(word, str) else word.raw for word in words[1:]]


def _plain(words: Words) -> list[str]:
    """The arguments as bash would pass them: what is unset is not there."""
    return [values.without_soft(text) for text in _texts(words) if not values.only_soft(text)]


def _declare(shell: session.Session, words: Words, line: int) -> None:
    """`declare`, `local`, `export`, `readonly` with their options."""
    name = words[0] if isinstance(words[0], str) else words[0].raw
    letters, rest = "", list(words[1:])
    removed = ""
    while rest and isinstance(rest[0], str) and re.fullmatch(r"[-+][A-Za-z]+", rest[0]):
        word = rest.pop(0)
        assert isinstance(word, str), "an option is text"
        if word[0] == "-":
            letters += word[1:]
        else:
            removed += word[1:]
    if "p" in letters or ("f" in letters and name != "export"):
        shell.state.status = 0
        return
    is_local = name == "local" or (name != "export" and name != "readonly" and shell.state.frames)
    shell.state.status = 0
    for word in rest:
        raw = word.raw if isinstance(word, Word) else word
        found = _ASSIGNMENT.match(raw)
        target = found[1] if found else raw
        if not _NAME.fullmatch(target):
            continue
        if is_local and "g" not in letters and shell.state.frames:
            shell.state.frames[-1].setdefault(target, shell.state.variables.get(target))
            if name in ("local", "declare", "typeset") and not (found and found[3]):
                shell.state.variables.pop(target, None)
        _with_attributes(shell, target, letters, exported=name == "export" and "n" not in letters)
        if found is None:
            continue
        if "n" in letters and name != "export":
            value = raw[found.end() :]
            value = shell.expander.one(value, line) if isinstance(word, Word) else value
            shell.state.variables[target] = values.Variable(value, reference=True)
        elif isinstance(word, Word):
            _assign(shell, word.raw, line, by_name="A" in letters)
        else:
            value = raw[found.end() :]
            if value.startswith("(") and {"a", "A"} & set(letters):
                _assign_array(shell, target, value, line, more=False, by_name="A" in letters)
            else:
                _assign_text(shell, target, found[2], value, line, more=bool(found[3]))
    if removed or (name == "export" and "n" in letters):
        for word in rest:
            target = re.split(r"[+=\[]", word.raw if isinstance(word, Word) else word)[0]
            variable = shell.state.variables.get(target)
            if variable is not None and ("x" in removed or "n" in letters):
                shell.state.variables[target] = replace(variable, exported=False)


def _with_attributes(shell: session.Session, name: str, letters: str, *, exported: bool) -> None:
    variable = shell.state.variables.get(name)
    exported = exported or "x" in letters
    case = "u" if "u" in letters else "l" if "l" in letters else ""
    wanted = values.Variable("", exported, "i" in letters, "n" in letters, letters=case)
    if variable is not None:
        shell.state.variables[name] = replace(
            variable,
            value=values.Array({}, True)
            if "A" in letters and isinstance(variable.value, str)
            else variable.value,
            exported=variable.exported or exported,
            integer=variable.integer or wanted.integer,
            reference=variable.reference or (wanted.reference and exported is False),
            letters=case or variable.letters,
        )
    elif "A" in letters or "a" in letters:
        shell.state.variables[name] = replace(
            wanted, value=values.Array({}, "A" in letters), reference=False
        )
    else:
        # It has attributes and no value: an empty array has none either.
        shell.state.variables[name] = replace(wanted, value=values.Array({}))
        if wanted.reference or case or wanted.integer:
            shell.state.variables[name] = replace(wanted, value="")


def _unset(shell: session.Session, words: Words, line: int) -> None:
    texts = _plain(words)
    for text in texts:
        if text in ("-v", "-n"):
            continue
        if text == "-f":
            for name in texts[1:]:
                shell.state.functions.pop(name, None)
            return
        name, bracket, index = text.partition("[")
        variable = shell.state.variables.get(name)
        if bracket and variable is not None and isinstance(variable.value, values.Array):
            key = shell.expander.key(name, index.removesuffix("]"), line)
            items = {k: v for k, v in variable.value.items.items() if k != key}
            shell.state.variables[name] = replace(
                variable, value=values.Array(items, variable.value.by_name)
            )
        else:
            shell.state.unset(text)


def _set(shell: session.Session, words: Words, line: int) -> None:
    texts = _texts(words)
    options = set(shell.state.options)
    letters = {
        "e": "errexit",
        "u": "nounset",
        "x": "xtrace",
        "a": "allexport",
        "n": "noexec",
        "f": "noglob",
    }
    while texts:
        text = texts.pop(0)
        if text == "--":
            shell.state.arguments = tuple(t for t in texts if not values.only_soft(t))
            break
        if not re.fullmatch(r"[-+][A-Za-z]+", text):
            if text not in ("-", "+"):
                shell.state.arguments = (text, *texts)
            break
        names = [letters.get(letter, letter) for letter in text[1:] if letter != "o"]
        if "o" in text[1:] and texts and not texts[0].startswith(("-", "+")):
            names.append(texts.pop(0))
        if text[0] == "-":
            options |= set(names)
        else:
            options -= set(names)
    shell.state.options = frozenset(options)


def _shift(shell: session.Session, words: Words, line: int) -> None:
    texts = _plain(words)
    count = int(texts[0]) if texts and re.fullmatch(r"\d{1,6}", texts[0]) else 1
    if count > len(shell.state.arguments):
        shell.state.status = 1
    else:
        shell.state.arguments = shell.state.arguments[count:]


def _cd(shell: session.Session, words: Words, line: int) -> None:
    texts = [text for text in _texts(words) if text not in ("-P", "-L", "--")]
    _enter(shell, texts[0] if texts else "~")


def _enter(shell: session.Session, folder: str) -> None:
    state = shell.state
    before = state.folder
    if folder == "-":
        folder = state.before_folder
    state.folder = posixpath.normpath(posixpath.join(before, values.without_soft(folder) or "."))
    state.before_folder = before
    shell.budget.text(shell.line, state.folder)
    # It is there if it was made, and surely the script expects it to be.
    state.status, state.why = 0, ""


def _pushd(shell: session.Session, words: Words, line: int) -> None:
    texts = _texts(words)
    _enter(shell, texts[0] if texts else "-")


def _popd(shell: session.Session, words: Words, line: int) -> None:
    _enter(shell, "-")


def _pwd(shell: session.Session, words: Words, line: int) -> None:
    shell.print(shell.state.folder + "\n")


def _true(shell: session.Session, words: Words, line: int) -> None:
    shell.state.status = 0


def _false(shell: session.Session, words: Words, line: int) -> None:
    shell.state.status = 1


def _echo(shell: session.Session, words: Words, line: int) -> None:
    shell.print(echo(_texts(words)))


def _printf(shell: session.Session, words: Words, line: int) -> None:
    texts = _texts(words)
    name = ""
    if texts[:1] == ["-v"] and len(texts) > 1:
        name, texts = texts[1], texts[2:]
    try:
        printed = printf(texts)
    except RecursionError:
        printed = None
    if printed is None:
        cause = values.Unknown(kind="computed", name="printf", line=line)
        holes = "".join(texts)
        printed = (
            shell.expander.derived(holes, line)
            if values.has_holes(holes)
            else shell.holes.character(cause)
        )
    if name:
        shell.state.set(name, printed)
    else:
        shell.print(printed)


def _test(shell: session.Session, words: Words, line: int) -> None:
    texts = [text for text in _texts(words) if not values.only_soft(text) or _note(shell, text)]
    if words[0] == "[":
        if texts[-1:] != ["]"]:
            shell.state.status = 2
            return
        texts.pop()
    shell.tests.causes = []
    try:
        found = shell.tests.command(texts, line)
    except (BadTest, BadArithmetic):
        shell.state.status = 2
        return
    shell.verdict(found, line, "[ " + shell.holes.shown(" ".join(texts)) + " ]")


def _note(shell: session.Session, text: str) -> bool:
    """What is unset stands for an empty word in a test; that it does is noted."""
    shell.expander.used += shell.holes.all_in([text])
    return True


def _source(shell: session.Session, words: Words, line: int) -> None:
    texts = _texts(words)
    if texts:
        shell.source(texts[0], texts[1:], line)


def _eval(shell: session.Session, words: Words, line: int) -> None:
    text = " ".join(_texts(words))
    if values.is_one_hole(text):
        # A program decides what is carried out here: `eval "$(conda shell.bash hook)"`.
        shell.expander.not_read = True
        shell.state.status, shell.state.why = None, text.strip()
        return
    shell.nested(text, line)


def _exit(shell: session.Session, words: Words, line: int) -> None:
    raise session.Exit(_status(shell, words), line)


def _return(shell: session.Session, words: Words, line: int) -> None:
    status = _status(shell, words)
    raise session.Return(status, shell.state.why if status is None else "")


def _status(shell: session.Session, words: Words) -> int | None:
    texts = _plain(words)
    if not texts:
        return shell.state.status
    if values.is_hard(texts[0]):
        shell.state.why = next(c for c in texts[0] if values.is_hard(c))
        return None
    return int(texts[0]) % 256 if re.fullmatch(r"[-+]?\d{1,9}", texts[0]) else 2


def _levels(words: Words) -> int:
    texts = _plain(words)
    return int(texts[0]) if texts and re.fullmatch(r"[1-9]\d{0,3}", texts[0]) else 1


def _break(shell: session.Session, words: Words, line: int) -> None:
    raise session.Break(_levels(words))


def _continue(shell: session.Session, words: Words, line: int) -> None:
    raise session.Continue(_levels(words))


def _let(shell: session.Session, words: Words, line: int) -> None:
    for text in _texts(words):
        shell.calculate(text, line)


def _read(shell: session.Session, words: Words, line: int) -> None:
    """`read`, with `-r`, `-a name`, `-d` and prompts."""
    texts, array, names, separator = _plain(words), "", [], "\n"
    while texts:
        text = texts.pop(0)
        if re.fullmatch(r"-[a-z]+", text):
            if text[-1] in "adinNptu" and texts:
                value = texts.pop(0)
                array = value if text[-1] == "a" else array
                separator = value[:1] if text[-1] == "d" else separator
        else:
            names.append(text)
    stream = shell.input
    found = None
    if stream is not None:
        found = stream.rest() if separator != "\n" else stream.line()
    if stream is None or (found is not None and values.is_one_hole(found)):
        cause = found.strip() if found else shell.holes.character(
            values.Unknown(kind="program", name="read", line=line)
        )  # fmt: skip
        for name in names or ["REPLY"]:
            shell.state.set(name, cause)
        shell.state.status, shell.state.why = None, cause
        return
    ended = found is None or (separator == "\n" and not found.endswith("\n"))
    text = (found or "").removesuffix("\n")
    if array:
        shell.state.set(array, values.Array(dict(enumerate(_cut(shell, text, 0)))))
    else:
        _to_names(shell, text, names)
    shell.state.status = 1 if ended else 0


def _cut(shell: session.Session, text: str, most: int) -> list[str]:
    """A line cut at the separators; with `most`, into that many fields at most."""
    separators = shell.expander.separators()
    if not separators:
        return [text]
    blanks = "".join(c for c in separators if c.isspace())
    others = re.escape("".join(c for c in separators if not c.isspace()))
    spaces = f"[{re.escape(blanks)}]" if blanks else "(?!)"
    hard = f"{spaces}*[{others}]{spaces}*|" if others else ""
    text = text.strip(blanks) if blanks else text
    parts = re.split(f"{hard}{spaces}+", text, maxsplit=max(0, most - 1) if most else 0)
    if most == 1:
        parts = [text]
    if len(parts) > 1 and not parts[-1] and not most:
        parts.pop()
    return parts if text else []


def _to_names(shell: session.Session, text: str, names: Sequence[str]) -> None:
    if not names:
        shell.state.set("REPLY", text)
        return
    parts = _cut(shell, text, len(names))
    for k, name in enumerate(names):
        if _NAME.fullmatch(name):
            shell.state.set(name, parts[k] if k < len(parts) else "")


def _mapfile(shell: session.Session, words: Words, line: int) -> None:
    texts, name, trimmed = _plain(words), "MAPFILE", False
    while texts:
        text = texts.pop(0)
        if re.fullmatch(r"-[a-z]+", text):
            trimmed = trimmed or "t" in text
            if text[-1] in "dnOsuCc" and texts:
                texts.pop(0)
        else:
            name = text
    lines = [] if shell.input is None else shell.input.rest().splitlines(keepends=True)
    shell.budget.words(line, lines)
    items = [each.removesuffix("\n") if trimmed else each for each in lines]
    shell.state.set(name, values.Array(dict(enumerate(items))))


def _getopts(shell: session.Session, words: Words, line: int) -> None:
    texts = _plain(words)
    if len(texts) < 2:
        shell.state.status = 2
        return
    options, name = texts[0].lstrip(":"), texts[1]
    arguments = texts[2:] or list(shell.state.arguments)
    state = shell.state
    optind = state.variables.get("OPTIND")
    index = int(optind.text or 1) - 1 if optind is not None and (optind.text or "").isdigit() else 0
    within = state.getopts_at if state.getopts_at else 1
    if index >= len(arguments) or not re.fullmatch(r"-[^-].*", arguments[index], re.DOTALL):
        if index < len(arguments) and arguments[index] == "--":
            state.set("OPTIND", str(index + 2))
        state.set(name, "?")
        state.getopts_at = 0
        state.status = 1
        return
    word = arguments[index]
    letter = word[within] if within < len(word) else word[1]
    rest = word[within + 1 :]
    state.set(name, letter if letter in options and letter != ":" else "?")
    state.unset("OPTARG")
    if f"{letter}:" in options:
        if rest:
            state.set("OPTARG", rest)
            index += 1
        elif index + 1 < len(arguments):
            state.set("OPTARG", arguments[index + 1])
            index += 2
        else:
            state.set(name, ":" if texts[0].startswith(":") else "?")
            state.set("OPTARG", letter)
            index += 1
        state.getopts_at = 0
    elif rest:
        if letter not in options:
            state.set("OPTARG", letter)
        state.getopts_at = within + 1
    else:
        if letter not in options:
            state.set("OPTARG", letter)
        state.getopts_at = 0
        index += 1
    state.set("OPTIND", str(index + 1))
    state.status = 0


def find_command(shell: session.Session, name: str, line: int) -> None:
    """Whether there is a command, and its path."""
    if name in shell.state.functions or name in BUILTINS:
        shell.print(name + "\n")
        shell.set_status(0)
        return
    hole = shell.holes.character(values.Unknown(kind="file", name=f"command -v {name}", line=line))
    shell.print(hole + "\n")
    shell.set_status(None, hole)


def _known(shell: session.Session, words: Words, line: int) -> None:
    texts = _plain(words)
    find_command(shell, texts[-1] if texts else "", line)


Builtin = Callable[[session.Session, Words, int], None]
BUILTINS: Final[dict[str, Builtin]] = {
    ":": _true,
    "true": _true,
    "false": _false,
    "echo": _echo,
    "printf": _printf,
    "[": _test,
    "test": _test,
    "export": _declare,
    "declare": _declare,
    "typeset": _declare,
    "local": _declare,
    "readonly": _declare,
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "cd": _cd,
    "pushd": _pushd,
    "popd": _popd,
    "pwd": _pwd,
    "source": _source,
    ".": _source,
    "eval": _eval,
    "exit": _exit,
    "return": _return,
    "break": _break,
    "continue": _continue,
    "let": _let,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "getopts": _getopts,
    "type": _known,
    "which": _known,
    "hash": _known,
    **dict.fromkeys(
        (
            "shopt", "trap", "wait", "ulimit", "umask", "alias", "unalias", "disown", "jobs", "bg",
            "fg", "complete", "enable", "history", "bind", "dirs", "clear", "module", "ml",
            "times", "logout",
        ),
        _true,
    ),
}  # fmt: skip


# Programs that a script starts: computed, followed, or written down
# ------------------------------------------------------------------
# Small tools of text are computed where what they read is known. A shell inside a command
# (`srun … bash -c "…"`, a script beside this one) is followed. All others are written down; their
# output and their status are not known, and whoever asks is told so.


_MOST_COMMANDS: Final = 2000
_KEEP_HOLES: Final = frozenset({"sed", "tac", "sort", "uniq", "xargs"})
_SILENT: Final = frozenset(
    {"mkdir", "cp", "mv", "rm", "ln", "chmod", "touch", "sleep", "rmdir", "chown"}
)
_KINDS: Final[dict[str, values.Kind]] = {
    "hostname": "machine", "date": "machine", "nproc": "machine", "whoami": "machine",
    "uname": "machine", "shuf": "machine", "mktemp": "machine", "uuidgen": "machine",
    "id": "machine",
}  # fmt: skip


def run_program(
    shell: session.Session, texts: list[str], line: int, environment: dict[str, values.Variable]
) -> None:
    """A tool that is computed, a shell inside, or a program that is written down."""
    name = texts[0].rpartition("/")[2]
    if name in TOOLS and _tool(shell, name, texts, line):
        return
    if name == "cat" and _cat(shell, texts[1:], line):
        return
    if name == "tee":
        _tee(shell, texts[1:])
        return
    if name == "getopt":
        found = (
            None
            if any(map(values.is_hard, texts))
            else getopt([values.without_soft(t) for t in texts[1:]])
        )
        if found is not None:
            shell.print(found)
            shell.set_status(0)
            return
    if name == "mkdir":
        for text in texts[1:]:
            path = "" if text.startswith("-") else shell.files.path(text)
            while path not in ("", ".", "/", "..") and path + "/" not in shell.state.files:
                shell.state.files[path + "/"] = ""
                path = path.rpartition("/")[0]
    if name in ("realpath", "readlink") and len(texts) > 1:
        shell.print(shell.files.path(texts[-1]) + "\n")
        shell.set_status(0)
        return
    if name in ("cp", "mv") and len(texts) == 3 and shell.files.written(texts[1]) is not None:
        shell.state.files[shell.files.path(texts[2])] = shell.files.written(texts[1]) or ""
    inner = launchers.inner_shell(texts)
    if inner is not None and _inner(shell, inner, texts, line, environment):
        return
    _record(shell, texts, line, environment)
    if name in _SILENT:
        shell.set_status(0)
        return
    hole = shell.holes.character(
        values.Unknown(
            kind=_KINDS.get(name, "program"),
            name=values.shortened(shell.holes.shown(" ".join(texts)[:400])),
            line=line,
        )
    )
    if shell.sink is not None:
        shell.print(hole + "\n")
    shell.set_status(None, hole)


def _record(
    shell: session.Session, texts: list[str], line: int, environment: dict[str, values.Variable]
) -> None:
    if len(shell.commands) >= _MOST_COMMANDS:
        raise values.too_much(line, f"more than {_MOST_COMMANDS} commands")
    seen = {name: v for name, v in shell.state.variables.items() if v.exported and v.by_script}
    seen |= environment
    value = shell.holes.value
    shell.commands.append(
        Command(
            words=tuple(map(value, texts)),
            environment={name: value(v.text or "") for name, v in seen.items()},
            line=line,
            within=tuple(tuple(map(value, outer)) for outer in shell.within),
        )
    )


def _tool(shell: session.Session, name: str, texts: list[str], line: int) -> bool:
    """Compute a tool of text; False where it is one to write down."""
    arguments = texts[1:]
    read = ""
    if name in READS_INPUT:
        names, arguments = _inputs(shell, name, arguments)
        if names:
            read = "".join(shell.read(each, line) for each in names)
        elif shell.input is not None:
            read = shell.input.rest()
        else:
            return False
    if name == "xargs" and list(arguments) not in ([], ["echo"]):
        return _xargs(shell, arguments, read, line)
    shell.budget.step(line, 1 + len(read) // 256)
    holes = "".join((*arguments, read))
    if values.has_holes(holes):
        if name in _KEEP_HOLES and not values.is_hard("".join(arguments)) and not _lone_hole(read):
            found = TOOLS[name]([values.without_soft(a) for a in arguments], read)
            if found is not None:
                shell.print(found[0])
                shell.set_status(found[1])
                return True
        if not values.is_hard(holes) and name in ("basename", "dirname"):
            shell.print(holes + "\n")
        else:
            shell.print(shell.expander.derived(holes, line) + "\n")
        if name in ("grep", "egrep", "fgrep"):
            shell.set_status(None, shell.expander.derived(holes, line))
        return True
    found = TOOLS[name](arguments, read)
    if found is None:
        hole = shell.holes.character(
            values.Unknown(kind="computed", name=values.shortened(" ".join(texts)), line=line)
        )
        shell.print(hole + "\n")
        shell.set_status(None, hole)
        return True
    shell.print(shell.budget.text(line, found[0]))
    shell.set_status(found[1])
    return True


def _lone_hole(text: str) -> bool:
    """Whether a text has a line that is only a hole: it may stand for many lines."""
    return any(values.is_hard(line) and len(line) == 1 for line in text.split("\n"))


def _inputs(shell: session.Session, name: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """The files that a tool reads, which are its last words, and its other arguments."""
    if name in ("tr", "xargs", "bc"):
        return [], arguments
    plain = [k for k, a in enumerate(arguments) if not a.startswith("-") or a == "-"]
    if name in ("cut", "head", "tail"):
        valued = {"cut": ("-d", "-f", "-c", "-b"), "head": ("-n", "-c"), "tail": ("-n", "-c")}[name]
        plain = [k for k in plain if k == 0 or arguments[k - 1] not in valued]
    elif name in ("sed", "grep", "egrep", "fgrep", "awk", "gawk"):
        valued = ("-e", "-f", "-F", "-v", "-m") if name != "grep" else ("-e", "-f", "-m")
        plain = [k for k in plain if k == 0 or arguments[k - 1] not in valued]
        if "-e" not in arguments:
            plain = plain[1:]
    names = [arguments[k] for k in plain if arguments[k] != "-"]
    return names, [a for k, a in enumerate(arguments) if k not in plain]


def _xargs(shell: session.Session, arguments: Sequence[str], read: str, line: int) -> bool:
    words = list(arguments)
    if values.has_holes(read) or any(word.startswith("-") for word in words[:1]):
        return False
    shell.command([*words, *read.split()], line)
    return True


def _cat(shell: session.Session, arguments: Sequence[str], line: int) -> bool:
    names = [each for each in arguments if not each.startswith("-") or each == "-"]
    out = []
    for name in names or ["-"]:
        if name == "-":
            if shell.input is None:
                return False
            out.append(shell.input.rest())
        else:
            out.append(shell.read(name, line))
    shell.print("".join(out))
    shell.set_status(0)
    return True


def _tee(shell: session.Session, arguments: Sequence[str]) -> None:
    text = "" if shell.input is None else shell.input.rest()
    more = "-a" in arguments or "--append" in arguments
    for name in arguments:
        if not name.startswith("-"):
            shell.write(name, more, text)
    shell.print(text)
    shell.set_status(0)


def _inner(
    shell: session.Session,
    inner: InnerShell,
    texts: list[str],
    line: int,
    environment: dict[str, values.Variable],
) -> bool:
    """Follow a shell inside a command; False where its text is not known."""
    arguments = texts[inner.arguments :]
    name = "bash"
    if inner.script is None:
        text, arguments = " ".join(arguments), []
    elif inner.is_file:
        name = texts[inner.script]
        try:
            text = shell.files.text(name)
        except session.NotRead:
            return False
        if len(text) > 1 and "\0" in text:
            return False
    else:
        text = texts[inner.script][inner.skipped :]
        if arguments:
            name, arguments = arguments[0], arguments[1:]
    if values.only_soft(text) or values.is_one_hole(text):
        return False
    kept, within, count = shell.state, shell.within, len(shell.commands)
    variables = {**kept.exported(), **environment} if inner.has_environment else {}
    shell.state = values.State(
        variables=variables,
        arguments=tuple(arguments),
        name=name,
        files=kept.files,
        folder=kept.folder,
    )
    shell.within = (*within, tuple(texts[: inner.at])) if inner.at else within
    was_batch, shell.expander.is_batch = (
        shell.expander.is_batch,
        shell.expander.is_batch or bool(inner.at),
    )
    own, shell.expander.assigned = shell.expander.assigned, frozenset()
    status: int | None = 0
    try:
        shell.nested(text, line)
        status, why = shell.state.status, shell.state.why
    except session.Leave as leave:
        status, why = leave.status, leave.why
    finally:
        shell.state, shell.within = kept, within
        shell.expander.is_batch, shell.expander.assigned = was_batch, own
    if len(shell.commands) == count:
        _record(shell, texts, line, environment)
    shell.set_status(status, why)
    if status is None and not why:
        shell.set_status(0)
    return True
