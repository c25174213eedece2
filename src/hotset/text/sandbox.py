"""Where chat templates run: Jinja without a way out, and with a meter on everything that can take time or memory.

A template comes with a model file, so it is as trustworthy as a download. Jinja's sandbox keeps it from Python's internals. The meter
keeps it from looping, recursing or multiplying without end: the parsed template is rewritten so that each loop step, call, filter,
comparison and piece of text is paid for before or as it happens, from a budget that grows with the messages. No clock, no
thread and no signal is needed, and the same template fails at the same place on every machine.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import Environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS

from hotset.text.meter import CALL_UNITS, STEP_UNITS, BudgetError, Meter, shallow

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import nodes
    from jinja2.parser import Parser


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_INT_BITS = 1024
MAX_WIDTH = 1000
MAX_INDENT = 16
# Numbers in the arguments of these filters multiply their work.
MAX_NUMBERS = {"batch": 10_000, "slice": 10_000, "indent": MAX_WIDTH, "round": 100}
ALLOWED_FILTERS = words(
    "abs batch capitalize count d default dictsort e escape first float format groupby indent int items join last "
    "length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort "
    "string sum title trim truncate unique upper"
)
# What these do grows with all that is inside their arguments; the others look at the outermost container, or not even there.
DEEP = words("dictsort format groupby join max min replace sort string sum unique eq == equalto ne != in")
CHEAP = words("count d default e escape first last length safe") | (TESTS.keys() - DEEP)
STRING_METHODS = words(
    "capitalize casefold count endswith find format format_map index isalnum isalpha isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)
METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, STRING_METHODS),
    (Mapping, frozenset({"copy", "get", "items", "keys", "values"})),
    ((list, tuple), frozenset({"copy", "count", "index"})),
    ((int, float, bytes, range), frozenset()),
)
WIDE_FORMAT = re.compile(r"[0-9]{4}|%[^%a-zA-Z]*\*|\{[^{}]*\{")


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which templates are compiled and rendered, each time within `metered`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=self.measured,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self._local = threading.local()
        functions: dict[str, Any] = {name: FILTERS[name] for name in ALLOWED_FILTERS}
        functions |= {
            "format": self._format,
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "sum": self._sum,
            "tojson": self._tojson,
        }
        self.filters = {name: self._metered(name, function) for name, function in functions.items()}
        tests: dict[str, Any] = TESTS
        self.tests = {name: self._metered(name, function) for name, function in tests.items()}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}

    @contextmanager
    def metered(self, inputs: Any) -> Iterator[None]:
        """Compile or render within one budget, which grows with the size of `inputs`."""
        self._local.meter = Meter(inputs)
        try:
            yield
        finally:
            del self._local.meter

    @property
    def _meter(self) -> Meter:
        meter: Meter = self._local.meter
        return meter

    def measured(self, value: Any) -> Any:
        """Pay for a value that is about to be printed, compared or hashed."""
        self._meter.charge(self._meter.size(value))
        return value

    def searched(self, value: Any) -> Any:
        """Pay for a value that something is looked up in."""
        return value if isinstance(value, Mapping) else self.measured(value)

    def sliced(self, value: Any) -> Any:
        """Pay for a value of which a part is copied."""
        self._meter.charge(STEP_UNITS + shallow(value))
        return value

    def steps(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pay for each step of a loop."""
        for item in items:
            self._meter.charge(STEP_UNITS)
            yield item

    def joined(self, *parts: Any) -> str:
        """Join texts (the operator `~`)."""
        for part in parts:
            self.measured(part)
        return "".join(map(str, parts))

    def concat(self, parts: Iterable[str]) -> str:
        """Join the pieces of a macro or a block."""
        parts = list(parts)
        self._meter.charge(len(parts) + sum(map(len, parts)))
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            return self._format(left, right)
        if operator in ("*", "**"):
            self._check_growth(operator, left, right)
        return self._received(super().call_binop(context, operator, left, right))

    def _check_growth(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
            if bits > MAX_INT_BITS:
                raise BudgetError(f"the numbers around {operator} are too large")
        elif operator == "*":
            counts, repeated = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(counts, int):
                self._meter.charge(shallow(repeated) * max(counts, 0))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if owner is self:  # what `Metering` put in
            return function(*args)
        self._meter.charge(CALL_UNITS + shallow(owner) + sum(map(shallow, args)))
        if isinstance(owner, str) and function.__name__ == "join":
            return self._join(args[0] if args else (), owner)
        if isinstance(owner, str) and function.__name__ == "replace":
            return self._replace(owner, *args, **kwargs)
        return self._received(super().call(context, function, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, (str, int)):
            self.measured(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kinds, allowed in METHODS:
            if isinstance(obj, kinds):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(f"a template may not use {attribute!r} (of {type(obj).__name__})")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def run(*args: Any, **kwargs: Any) -> str:
            self._check_format(pattern, pattern.count("{"), (args, kwargs))
            return wrapped(*args, **kwargs)

        return run

    def _check_format(self, pattern: str, n_fields: int, values: Any) -> None:
        if WIDE_FORMAT.search(pattern):
            raise BudgetError("a format asks for a computed width, or one above 999")
        self._meter.charge(len(pattern) + n_fields * (MAX_WIDTH + self._meter.size(values)))

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        limit = MAX_NUMBERS.get(name)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            values = [value for value in (*args, *kwargs.values()) if not is_machinery(value)]
            self._meter.charge(CALL_UNITS + (0 if name in CHEAP else sum(self._work(name, value) for value in values)))
            if limit and any(isinstance(value, int) and abs(value) > limit for value in values[1:]):
                raise BudgetError(f"a number given to the filter {name} is above {limit:,}")
            return self._received(function(*args, **kwargs))

        return run

    def _work(self, name: str, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        return STEP_UNITS * shallow(value) + (self._meter.size(value) if name in DEEP else 0)

    def _received(self, value: Any) -> Any:
        """Pay for what an operation made; what it makes later is paid for step by step."""
        if isinstance(value, Iterator) and type(value).__name__ == "generator":
            return self._later(value)
        self._meter.charge(shallow(value))
        return value

    def _later(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._meter.charge(STEP_UNITS + shallow(item))
            yield item

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = list(value)
        if attribute is not None:
            items = list(map(make_attrgetter(self, attribute), items))
        self._meter.charge(self._meter.size(items) + len(items) * len(str(d)))
        return str(d).join(map(str, items))

    def _replace(self, s: Any, old: str, new: str, count: int | None = None) -> str:
        text = str(self.measured(s))
        self._meter.charge(len(text) + text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        pattern = str(self.measured(value))
        values: Any = kwargs or (args[0] if len(args) == 1 and isinstance(args[0], (tuple, dict)) else args)
        self._check_format(pattern, pattern.count("%"), values)
        text: str = pattern % values
        return text

    def _indent(self, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        step = width if isinstance(width, int) else len(width)
        self._meter.charge(len(s) + step * (1 + s.count("\n")))
        return do_indent(s, width, first, blank)

    def _sum(self, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
        items = iterable if attribute is None else map(make_attrgetter(self, attribute), iterable)
        for item in items:
            start = self._received(start + item)
        return start

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(indent, int) and indent > MAX_INDENT:
            raise BudgetError(f"tojson is asked to indent by {indent:,}")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        pieces = []
        for piece in encoder.iterencode(self.measured(value)):
            self._meter.charge(len(piece))
            pieces.append(piece)
        return "".join(pieces)


def is_machinery(value: Any) -> bool:
    return isinstance(value, (Environment, EvalContext, Context))


def raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_WIDTH:
        raise BudgetError("a date format is too long")
    return datetime.now().astimezone().strftime(pattern)
