"""A Jinja environment for chat templates found in model files: data, not trusted code.

Jinja's sandbox keeps a template from Python's internals and the file system. This adds
limits, because the sandbox has none: a clock and a step count, checked in every loop,
macro, call, filter, test, comparison and operator; and a size limit on every string and
container before or as it is made, so that no single step can run long or eat memory. It
also compiles templates so that their own text stays recognisable (`template_text.py`).
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from specchat.engine.template_codegen import GenerationTag, Generator, insert_ticks
from specchat.engine.template_text import Marked, all_trusted, as_plain, join, literal
from specchat.errors import TemplateError

MAX_SOURCE = 512 * 1024  # characters of template source; the largest known is 40 KiB
_ITEM = 16  # what an element of a container weighs, in characters
_MAX_STEPS = 2_000_000
_MAX_BITS = 4096  # integers
_MAX_WIDTH = 1000  # integer arguments of filters and of padding methods

_FILTERS = frozenset(
    re.findall(
        r"\w+",
        """
        abs batch capitalize count d default dictsort e escape first float format groupby indent
        int items join last length list lower map max min reject rejectattr replace reverse round
        safe select selectattr slice sort string title tojson trim truncate unique upper wordcount
        """,
    )
)
_METHODS = frozenset(
    re.findall(
        r"\w+",
        """
        capitalize casefold center copy count endswith find format get index isalnum isalpha
        isdecimal isdigit islower isnumeric isspace istitle isupper items join keys ljust lower
        lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit
        rstrip split splitlines startswith strip swapcase title upper values zfill
        """,
    )
)
_VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: tuple[type[Any], ...] = (list, tuple, set, frozenset, dict, *_VIEWS)
# Widths written or computed inside a format string would escape the size limit.
_WIDE_FORMAT = re.compile(r"\d{4}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")
_STRFTIME = re.compile(r"(?:[^%]|%-?[A-Za-z%]){0,100}", re.DOTALL)


class Refused(TemplateError):
    """The template called raise_exception(); the message is the template's own."""


class TooMuch(TemplateError):
    """A limit was passed."""


@dataclass
class _Budget:
    deadline: float
    seconds: float
    limit: int  # largest single string or container, in characters
    work: int  # characters all steps together may still produce
    steps: int = _MAX_STEPS
    known: dict[int, int] = field(default_factory=dict)  # id of an input container -> weight


class _Namespace(Namespace):
    def __repr__(self) -> str:
        return "<namespace>"  # the default prints the content, which has no size limit


class Sandbox(ImmutableSandboxedEnvironment):
    """One template, compiled. Raises TemplateError if `source` is not a valid template."""

    code_generator_class = Generator
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "**", "%"])

    def __init__(
        self, source: str, *, now: Callable[[], datetime], seconds: float, max_output: int
    ) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.literals: list[Marked] = []
        self._seconds, self._max_output = seconds, max_output
        self._budget = _Budget(0.0, seconds, 0, 0)
        self._lock = threading.Lock()
        self.concat = self._concat  # type: ignore[method-assign]
        self.globals = {
            "range": self.globals["range"],
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": lambda *args, **kwargs: _Namespace(*args, **kwargs),
            "raise_exception": self._raise_exception,
            "strftime_now": lambda pattern: self._strftime(now(), pattern),
        }
        filters: dict[str, Any] = {
            **self.filters,
            "join": self._join_filter,
            "tojson": self._tojson,
            "format": lambda value, *args: self.call_binop(None, "%", value, args),
            "safe": lambda value: value,  # nothing is escaped, so nothing needs to be safe
        }
        tests: dict[str, Any] = self.tests
        self.filters = {name: self._bounded(name, filters[name]) for name in _FILTERS}
        self.tests = {name: self._bounded("", test) for name, test in tests.items()}
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"The chat template is larger than {MAX_SOURCE} characters.")
        with _reporting():
            self._template = self.from_string(source)

    def render_bounded(self, variables: Mapping[str, Any], trusted: Mapping[str, Any]) -> str:
        """Render. `variables` are copied as plain data; `trusted` go in as they are.

        Returns text with trust marks. Raises Refused, TemplateError.
        """
        with self._lock, _reporting():
            copied = as_plain(variables)
            known: dict[int, int] = {}
            size = _weigh_inputs(copied, known)
            limit = self._max_output + 4 * size
            deadline = time.monotonic() + self._seconds
            self._budget = _Budget(deadline, self._seconds, limit, 64 * limit, known=known)
            return self._template.render({**copied, **trusted})

    # -- limits: called from compiled templates ------------------------------------------

    def tick(self) -> None:
        budget = self._budget
        budget.steps -= 1
        if budget.deadline and (budget.steps < 0 or time.monotonic() > budget.deadline):
            raise TooMuch(
                f"The chat template did not finish within {budget.seconds:g} s: it is faulty, "
                "or the conversation is too long for it."
            )

    def _fits(self, size: int) -> None:
        if size > self._budget.limit:
            raise TooMuch("The chat template makes more text than its limit allows.")

    def charge(self, value: Any) -> Any:
        """Count `value` as newly made and return it."""
        self.tick()
        budget = self._budget
        if isinstance(value, str):
            size = len(value)
        elif isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise TooMuch("The chat template computes a number that is too large.")
            return value
        elif isinstance(value, _CONTAINERS) and id(value) not in budget.known:
            size = _ITEM * len(value)
            self._weigh(value)
        else:
            return value
        self._fits(size)
        budget.work -= size
        if budget.work < 0:
            raise TooMuch("The chat template makes more text than its limit allows.")
        return value

    def _weigh(self, value: Any) -> int:
        """Characters in `value`, containers entered, shared parts counted again."""
        total, stack = 0, [value]
        known = self._budget.known
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, _CONTAINERS):
                if id(item) in known:
                    total += known[id(item)]
                else:
                    total += _ITEM * (len(item) + 1)
                    self._fits(total)
                    stack.extend(item)
                    if isinstance(item, dict):
                        stack.extend(item.values())
        self._fits(total)
        return total

    def text(self, value: Any) -> str:
        """str(value), bounded; what `{{ value }}` prints."""
        if isinstance(value, str):
            return value
        self.tick()
        if isinstance(value, _CONTAINERS):
            self._weigh(value)
        return str(self.charge(str(value)))

    def concat_values(self, values: Iterable[Any]) -> str:
        return self._concat(map(self.text, values))

    def _concat(self, parts: Iterable[str]) -> str:
        kept, total = [], 0
        for part in parts:
            total += len(part)
            self._fits(total)
            kept.append(part)
        return str(self.charge(join(kept)))

    def call_binop(self, context: Context | None, operator: str, left: Any, right: Any) -> Any:
        self.tick()
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return self._concat((left, right))
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    self._fits(self._weigh(many) * times)
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1)
            if bits + (right.bit_length() if operator == "*" else 0) > _MAX_BITS:
                raise TooMuch("The chat template computes a number that is too large.")
        if operator == "%" and isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            return self._format(left, "%", values, lambda: left % right)
        return self.charge(self.binop_table[operator](left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tick()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        # Compiled code adds these two for functions that want the context.
        given = {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}
        values = (*args, *given.values())
        self._weigh(values)
        if isinstance(owner, str):
            self._check_method(owner, name, args)
            if name == "join" and args:
                args = (list(map(self.charge, args[0])),)
                self._fits(self._weigh(args[0]) + len(owner) * len(args[0]))
        elif (template := getattr(obj, "_template", None)) is not None:  # str.format
            return self._format(template, "{", values, lambda: obj(*args, **given))
        return self.charge(super().call(context, obj, *args, **kwargs))

    def _check_method(self, owner: str, name: str, args: tuple[Any, ...]) -> None:
        if name == "replace" and len(args) > 1 and isinstance(args[0], str):
            self._fits(len(owner) + owner.count(args[0]) * len(args[1]))
        elif name in ("center", "ljust", "rjust", "zfill"):
            self._check_widths(args)

    def _check_widths(self, values: Iterable[Any]) -> None:
        if any(isinstance(value, int) and abs(value) > _MAX_WIDTH for value in values):
            raise TooMuch(f"The chat template pads or repeats by more than {_MAX_WIDTH}.")

    def _format(
        self, template: str, mark: str, values: tuple[Any, ...], apply: Callable[[], str]
    ) -> str:
        if _WIDE_FORMAT.search(template):
            raise TooMuch("The chat template uses a format string with a computed width.")
        self._fits(len(template) + template.count(mark) * (self._weigh(values) + _MAX_WIDTH))
        text = apply()
        if all_trusted(template, *values):
            text = literal(text)
        return str(self.charge(text))

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` (a filter `name` or, without a name, a test) under the limits."""

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            given = list(args[1:] if hasattr(function, "jinja_pass_arg") else args)
            self._weigh((*given, *kwargs.values()))
            values = [*given[1:], *kwargs.values()]
            if name in ("batch", "center", "indent", "round", "slice", "truncate"):
                self._check_widths(values)
            if name == "indent":
                width = max([4, *(v if isinstance(v, int) else len(v) for v in values)])
                self._fits(len(str(given[0])) + (str(given[0]).count("\n") + 1) * width)
            elif name == "replace":
                self._check_method(self.text(given[0]), "replace", tuple(values))
            return self.charge(function(*args, **kwargs))

        return checked

    # -- what templates expect ----------------------------------------------------------

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(value, BuiltinMethodType | MethodType) and (
            isinstance(obj, str | int | float | bytes | list | tuple | dict)
            and attr not in _METHODS
        ):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        wrapped: Any = super().wrap_str_format(value)
        if wrapped is not None:
            wrapped._template = value.__self__
        return wrapped

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return insert_ticks(super()._parse(source, name, filename))

    @staticmethod
    def _raise_exception(message: object = "") -> None:
        raise Refused(str(message)[:1000])

    @staticmethod
    def _strftime(moment: datetime, pattern: str) -> str:
        if not _STRFTIME.fullmatch(pattern):
            raise TooMuch("The chat template uses an unsupported strftime pattern.")
        return moment.strftime(pattern)

    def _join_filter(self, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
        items = value
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        parts = [self.text(item) for item in items]
        self._fits(self._weigh(parts) + len(d) * len(parts))
        return join(parts, d)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None:
            self._check_widths([indent])
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=list,  # what map and select give
        )
        return self._concat(encoder.iterencode(value))


@contextmanager
def _reporting() -> Iterator[None]:
    """Turns whatever a template raises into one TemplateError."""
    try:
        yield
    except TemplateError:
        raise
    except TemplateSyntaxError as error:
        raise TemplateError(
            f"The chat template is not valid Jinja: {error.message} (line {error.lineno})."
        ) from None
    except RecursionError:
        raise TemplateError("The chat template nests too deeply.") from None
    except Exception as error:
        what = error.message if isinstance(error, JinjaError) else str(error)
        raise TemplateError(
            f"The chat template failed: {(what or type(error).__name__)[:500]}"
        ) from None


def _weigh_inputs(value: Any, known: dict[int, int]) -> int:
    """Weight of plain data, recorded for every container in it."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, dict | list):
        return 0
    weight = _ITEM * (len(value) + 1)
    if isinstance(value, dict):
        weight += sum(map(len, value))
        value_items: Iterable[Any] = value.values()
    else:
        value_items = value
    weight += sum(_weigh_inputs(item, known) for item in value_items)
    known[id(value)] = weight
    return weight
