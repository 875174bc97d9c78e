"""Checks a GBNF grammar before llama.cpp sees it.

llama.cpp's parser prints errors to the terminal, and some grammars that it takes end or hang
the process: nested parentheses overflow its stack, `{5,3}` and hidden left recursion never
end, a check of its own takes exponential time, token references crash while sampling. This
parser follows llama.cpp's rule by rule (same syntax, same expansion) and refuses those.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

from specchat.errors import GrammarError

MAX_BYTES = 256 * 1024
MAX_NESTING = 1000  # parentheses; llama.cpp recurses, and 2000 overflow a stack of 512 KiB
MAX_DEPTH = 2000  # rules that begin with each other; llama.cpp recurses
MAX_ELEMENTS = 200_000  # after repetitions are written out
MAX_REPEAT = 2000  # llama.cpp's MAX_REPETITION_THRESHOLD
MAX_CHOICES = 3000  # ways to go on from one place; llama.cpp follows all of them at each character
MAX_VISITS = 1_000_000  # rule visits of llama.cpp's left recursion check

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])'
_TEXT = re.compile(rf'"(?:{_ESCAPE}|[^"\\])*+"')
_CLASS = re.compile(rf"\[\^?+(?:(?:{_ESCAPE}|[^\]\\])(?:-(?!\])(?:{_ESCAPE}|[^\\]))?+)*+\]")
_CHARACTER = re.compile(rf"{_ESCAPE}|[^\\]")
_BRACES = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")

Symbol = str | int | None  # a named rule, a rule made for a group or repetition, a character
Rules = dict[Symbol, list[list[Symbol]]]  # per rule its alternatives


def check(source: str) -> None:
    """Raises GrammarError, with the line, for what is no GBNF with a rule named root, and
    for grammars that llama.cpp cannot handle safely.
    """
    size = len(source.encode("utf-8", "replace"))
    if not source.strip():
        raise GrammarError("The grammar is empty. Give it a rule named root.")
    if size > MAX_BYTES:
        raise GrammarError(f"The grammar has {size} bytes; at most {MAX_BYTES} are accepted.")
    rules = _Parser(source).rules
    if "root" not in rules:
        raise GrammarError("The grammar has no rule named root, where it would begin.")
    for rule in list(rules.values()):
        for symbol in (s for alternative in rule for s in alternative):
            if symbol is not None and symbol not in rules:
                raise GrammarError(f"The grammar uses the rule {symbol!r} but does not define it.")
    _check_visits(rules)
    _check_growth(rules)


class _Parser:
    """Recursive rules without recursion: open groups are kept on a list."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0
        self.rules: Rules = {}
        self._names: set[str] = set()
        self._made = 0  # rules made for groups and repetitions
        self._elements = 0
        self._skip(_LINES)
        while self.at < len(source):
            name = self._match(_NAME, "a rule name")
            self._names.add(name)
            self._skip(_SPACE)
            if not source.startswith("::=", self.at):
                raise self._error("expected ::=")
            self.at += 3
            self._skip(_LINES)
            self._rule(name)
            self._skip(_LINES)

    def _rule(self, name: str) -> None:
        """Everything after ::= up to the end of the line, groups over several lines."""
        outer: list[tuple[Symbol, list[list[Symbol]], int]] = []  # what each group interrupts
        rule: list[list[Symbol]] = [[]]
        group: Symbol = name
        last, repeats = 0, 1  # where the last item starts; rules a repetition would copy
        while True:
            char = self.source[self.at : self.at + 1]
            item = rule[-1]
            if char == "|":
                self.at += 1
                self._skip(_LINES)
                rule.append([])
                last, repeats = 0, 1
                continue
            if char == "(":
                self.at += 1
                if len(outer) == MAX_NESTING:
                    raise self._error(f"more than {MAX_NESTING} nested parentheses")
                outer.append((group, rule, self._symbols))
                group, rule, last, repeats = self._make(), [[]], 0, 1
                self._skip(_LINES)
                continue
            if char == ")" and outer:
                self.rules[group] = rule
                made = group
                group, rule, before = outer.pop()
                last, repeats = len(rule[-1]), max(1, self._symbols - before)
                self._add(rule[-1], [made])
                self.at += 1
            elif char and char in "*+?{":
                low, high = self._bounds()
                repeats = self._repeat(item, last, low, high, repeats)
            elif char == '"':
                text = self._match(_TEXT, "a closed text with known escapes")
                last, repeats = len(item), 1
                self._add(item, [None] * len(_CHARACTER.findall(text[1:-1])))
            elif char == "[":
                last, repeats = len(item), 1
                empty = self._match(_CLASS, "a closed set of characters") in ("[]", "[^]")
                self._add(item, [] if empty else [None])
            elif char == ".":
                self.at += 1
                last, repeats = len(item), 1
                self._add(item, [None])
            elif char and char in "<!":
                raise self._error("token references are not supported")
            elif found := _NAME.match(self.source, self.at):
                self.at = found.end()
                self._names.add(found[0])
                last, repeats = len(item), 1
                self._add(item, [found[0]])
            elif outer or char not in ("", "\r", "\n"):
                raise self._error("expected an item, | or the end of the rule or group")
            else:
                self.rules[group] = rule
                return
            self._skip(_LINES if outer else _SPACE)

    def _bounds(self) -> tuple[int, int | None]:
        char = self.source[self.at]
        if char != "{":
            self.at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        found = _BRACES.match(self.source, self.at)
        if not found:
            raise self._error("expected a repetition like {2}, {2,} or {2,5}")
        low = int(found[1])
        high = low if not found[2] else int(found[3]) if found[3] else None
        if low > MAX_REPEAT:
            raise self._error(f"more than {MAX_REPEAT} repetitions")
        if high is not None and high < low:
            raise self._error(f"a repetition of at least {low} and at most {high}")
        self.at = found.end()
        return low, None if high is not None and high > MAX_REPEAT else high

    def _repeat(
        self, item: list[Symbol], last: int, low: int, high: int | None, repeats: int
    ) -> int:
        """S{m,n} as llama.cpp writes it: m times S, then S' ::= S S'' | and so on."""
        copied = item[last:]
        if not copied:
            raise self._error("nothing before the repetition")
        times = high or low or 1
        if repeats * times > MAX_REPEAT:
            raise self._error(f"nested repetitions make more than {MAX_REPEAT} rules")
        del item[last:]
        for _ in range(low):
            self._add(item, copied)
        rest: Symbol = None
        for _ in range(1 if high is None else high - low):
            made = self._make()
            body: list[Symbol] = []
            self._add(body, copied)
            if high is None or rest is not None:
                self._add(body, [made if high is None else rest])
            self.rules[made] = [body, []]
            rest = made
        if rest is not None:
            self._add(item, [rest])
        return repeats * times

    @property
    def _symbols(self) -> int:
        return len(self._names) + self._made

    def _make(self) -> int:
        self._made += 1
        return self._made

    def _add(self, item: list[Symbol], symbols: list[Symbol]) -> None:
        self._elements += len(symbols)
        if self._elements > MAX_ELEMENTS:
            raise self._error(f"the grammar has over {MAX_ELEMENTS} elements written out")
        item += symbols

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.source, self.at)
        self.at = found.end() if found else self.at

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        found = pattern.match(self.source, self.at)
        if not found:
            raise self._error(f"expected {expected}")
        self.at = found.end()
        return found[0]

    def _error(self, what: str) -> GrammarError:
        before = self.source[: self.at]
        line = before.count("\n") + 1
        near = self.source[self.at : self.at + 20].split("\n")[0]
        place = f"before {near!r}" if near else "at its end"
        return GrammarError(f"The grammar is not usable: line {line}, {place}: {what}.")


def _check_visits(rules: Rules) -> None:
    """Left recursion, and the cost of llama.cpp's search for it, which visits a rule once
    per path that leads to it.
    """
    empty = {name for name, rule in rules.items() if [] in rule}
    first: dict[Symbol, list[Symbol]] = {}  # rules that can begin a rule, as llama.cpp sees it
    for name, rule in rules.items():
        first[name] = [s for alternative in rule for s, _ in _beginning(alternative, empty)]
    visits: dict[Symbol, int] = {}
    depth: dict[Symbol, int] = {}
    for name in _in_order(first):
        visits[name] = 1 + sum(visits[s] for s in first[name])
        depth[name] = 1 + max((depth[s] for s in first[name]), default=0)
        if visits[name] > MAX_VISITS or depth[name] > MAX_DEPTH:
            raise GrammarError("The grammar is too complex: its rules begin with too many others.")


def _check_growth(rules: Rules) -> None:
    """Left recursion behind rules that may be empty, which llama.cpp overlooks.

    A rule whose last item is the rule itself is harmless: nothing is left on the stack.
    """
    empty: set[Symbol] = set()
    used: dict[Symbol, set[Symbol]] = {}
    for name, rule in rules.items():
        for symbol in (s for alternative in rule for s in alternative):
            used.setdefault(symbol, set()).add(name)
    todo = set(rules)
    while todo:
        name = todo.pop()
        if name not in empty and any(all(s in empty for s in a) for a in rules[name]):
            empty.add(name)
            todo |= used.get(name, set())
    order = _in_order(
        {
            name: [
                symbol
                for alternative in rule
                for symbol, is_last in _beginning(alternative, empty)
                if not (is_last and symbol == name)
            ]
            for name, rule in rules.items()
        }
    )
    _check_choices(rules, order)


def _check_choices(rules: Rules, order: list[Symbol]) -> None:
    """Ambiguity: in how many ways the text can go on at each place of a rule.

    llama.cpp keeps one stack for each and compares them all; (("a"?)*)* and the like would
    take seconds a token. `order` has every rule after those it begins with.
    """
    ways: dict[Symbol, int] = {None: 1}  # to the next character
    empty: dict[Symbol, int] = {None: 0}  # to write nothing
    for name in [*order, *rules]:  # twice, for places behind the beginning
        total = nothing = 0
        for alternative in rules.get(name, []):
            here, skipped = 0, 1  # from the place under consideration to the right
            for symbol in reversed(alternative):
                own = symbol != name
                step = empty.get(symbol, 0) * own
                here = ways.get(symbol, 1) * own + step * here
                skipped *= step
                if here > MAX_CHOICES:
                    raise GrammarError(
                        "The grammar is too ambiguous: the same text fits it in too many ways. "
                        "Simplify nested repetitions and optional parts."
                    )
            total += here
            nothing = min(nothing + skipped, MAX_CHOICES)
        ways[name], empty[name] = min(total, MAX_CHOICES + 1), nothing


def _beginning(alternative: list[Symbol], empty: set[Symbol]) -> list[tuple[Symbol, bool]]:
    """The rules that `alternative` can begin with, and whether each is its last item."""
    found: list[tuple[Symbol, bool]] = []
    for i, symbol in enumerate(alternative):
        if symbol is None:
            break
        found.append((symbol, i == len(alternative) - 1))
        if symbol not in empty:
            break
    return found


def _in_order(graph: dict[Symbol, list[Symbol]]) -> list[Symbol]:
    """Rules after those they begin with. Raises GrammarError for left recursion."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        names = [s for s in error.args[1] if isinstance(s, str)]
        where = f" in the rule {names[0]!r}" if names else ""
        raise GrammarError(
            f"The grammar has left recursion{where}: a rule may not begin with itself."
        ) from None
