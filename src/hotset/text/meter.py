"""What a chat template may spend, and the rewriting that makes it pay."""

# ruff: noqa: N802 - Jinja names visitors after its node classes

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# A unit stands for up to 0.1 us, so that what is spent without need ends after about a second; real templates take thousands.
BASE_UNITS = 10_000_000
UNITS_PER_INPUT = 64
STEP_UNITS = 8
CALL_UNITS = 48


class BudgetError(Exception):
    """The template did more than any chat needs."""


class Meter:
    """What a rendering may still do, and the sizes of the containers it met."""

    def __init__(self, inputs: Any) -> None:
        # The container is kept beside its size, so that its id stays its own; the sandbox lets no one change containers.
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._left = BASE_UNITS + UNITS_PER_INPUT * self.size(inputs)

    def charge(self, units: int) -> None:
        """Take `units` off what is left; there is no way back from nothing left."""
        self._left -= units
        if self._left < 0:
            raise BudgetError("it loops, calls or makes text without end, and was stopped")

    def size(self, value: Any) -> int:
        """Return about how many characters and items `value` holds, shared ones each time: what printing it costs."""
        if isinstance(value, str):
            return 1 + len(value)
        if isinstance(value, int):
            return 2 + value.bit_length() // 3
        if isinstance(value, Namespace):
            raise SecurityError("a namespace is used as a value; only its attributes can be")
        if isinstance(value, range):
            return len(value)
        if not isinstance(value, Iterable) or isinstance(value, (Iterator, Undefined)):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
            known = (value, 1 + sum(map(self.size, items)))
            self._sizes[id(value)] = known
        return known[1]


def shallow(value: Any) -> int:
    """Return how many characters or items `value` holds, not looking into them."""
    return len(value) if isinstance(value, Sized) and not isinstance(value, Undefined) else 1


class Metering(NodeTransformer):
    """Rewrites a parsed template so that what Jinja compiles straight to Python goes through the environment."""

    def visit_For(self, node: nodes.For) -> Any:
        self.generic_visit(node)
        node.iter = through("steps", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> Any:
        self.generic_visit(node)
        return through("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0].expr, nodes.Const):
            return node  # role == "user" looks at no more than the constant
        if not isinstance(node.expr, nodes.Const):
            node.expr = through("measured", node.expr)
        for operand in node.ops:
            operand.expr = through("searched" if operand.op in ("in", "notin") else "measured", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> Any:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = through("sliced", node.node)
        return node

    def visit_Pair(self, node: nodes.Pair) -> Any:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = through("measured", node.key)
        return node

    def visit_List(self, node: nodes.List) -> Any:
        self.generic_visit(node)
        return through("measured", node)

    def visit_Dict(self, node: nodes.Dict) -> Any:
        self.generic_visit(node)
        return through("measured", node)

    def visit_Tuple(self, node: nodes.Tuple) -> Any:
        self.generic_visit(node)
        return through("measured", node) if node.ctx == "load" else node


def through(name: str, *arguments: Any) -> Any:
    call = nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)
    call.set_lineno(arguments[0].lineno)
    return call
