"""Nothing on the way of a token through the layers waits for the GPU: read from the sources, call by call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hotset

PACKAGE = Path(hotset.__file__).parent
# Methods that copy a tensor to the host or wait for the device, whoever they are called on.
WAITING = {"item", "tolist", "cpu", "numpy", "synchronize", "nonzero", "is_nonzero", "query", "elapsed_time"}
# Functions that a tensor gives its value to, which the host must wait for.
CONVERTING = {"int", "float", "bool"}
# What a step or a chunk runs; of the other modules, the functions named. `cut` of the waves is not among them: where not all is page-locked,
# short chunks read their picks once per layer. Nor are the pieces of the bounce buffer, which a host fills that must wait for them.
KERNELS = [f"kernels/{p.name}" for p in (PACKAGE / "kernels").glob("*.py") if p.name != "sampler.py"]
WHOLE = ["model/transformer.py", "model/device_ops.py", "model/chunk_ops.py", *KERNELS]
PARTS = {
    "experts/cache.py": {"lookup", "fetch", "_fetch", "address", "hit_address", "miss_address"},
    "experts/relay.py": {"serves", "rounds"},
    "experts/picked_waves.py": {"cut", "present", "_start", "_copy"},
    "kernels/sampler.py": {"step", "greedy", "select", "draw", "_draw", "_adjust"},
    "experts/waves.py": {"present", "_start_copies", "_copy", "_copy_runs", "_copy_run"},
    "engine/seat.py": {"step", "_step", "_sample", "_note"},
}
# Plain twins for tests, and what is made before any step: by the end of a function's name.
BESIDE = ("reference", "compile_cases")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """The outermost functions and methods."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        else:
            yield from functions(node)


def waits(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr in WAITING:
            yield f".{called.attr}()"
        if isinstance(called, ast.Attribute) and called.attr == "to" and "cpu" in ast.unparse(node):
            yield ast.unparse(node)
        if isinstance(called, ast.Name) and called.id in CONVERTING and has_tensor(node):
            yield ast.unparse(node)


def has_tensor(node: ast.Call) -> bool:
    """Whether a conversion's argument is an element of something, which it may have to be fetched from."""
    return any(isinstance(inner, ast.Subscript) for inner in ast.walk(node))


def found(module: str, source: str, names: set[str] | None) -> Iterator[str]:
    for function in functions(ast.parse(source)):
        name = function.name
        if name.endswith(BESIDE) or (names is not None and name not in names):
            continue
        yield from (f"{module}: {name} calls {what}" for what in waits(function))


def test_no_layer_waits_for_the_device():
    modules = dict.fromkeys(WHOLE) | PARTS
    lines = [line for m, names in modules.items() for line in found(m, (PACKAGE / m).read_text(), names)]
    assert lines == []


def test_every_function_that_is_looked_at_is_there():
    for module, names in PARTS.items():
        there = {f.name for f in functions(ast.parse((PACKAGE / module).read_text()))}
        assert names <= there, f"{module} has no {names - there}"


@pytest.mark.parametrize(
    "line",
    [
        "n = counts[0].item()",
        "rows = [picks.tolist() for _ in x]",
        "torch.cuda.synchronize()",
        "a = (picks + 1).cpu().numpy()",
        "a = picks.to('cpu')",
        "a = picks.to(device='cpu', non_blocking=False)",
        "if bool(mask[0]): pass",
        "for i in range(int(n_fetch[0])): pass",
        "def inner():\n        return x.item()",
    ],
)
def test_a_wait_would_be_found(line):
    source = f"class Ops:\n  def attend(self, x):\n    {line}\n  def attend_reference(self, x):\n    {line}\n"
    assert len(list(found("m", source, None))) == (2 if ".cpu().numpy()" in line else 1)
    assert not list(found("m", source, {"other"}))


@pytest.mark.parametrize("line", ["a = int(n)", "a = x.to(self.device)", "a = float(config.scale)", "item = x[0]"])
def test_what_waits_for_nothing_is_left_alone(line):
    assert not list(found("m", f"def attend(x):\n    {line}\n", None))
