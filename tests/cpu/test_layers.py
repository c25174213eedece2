"""Imports point one way: a layer may import those before it, never those after it."""

import ast
import subprocess
import sys
from pathlib import Path

import hotset

PACKAGE = Path(hotset.__file__).parent
# Each may import itself, what stands before it, and the plain modules at the top.
LAYERS = (
    "gguf",
    "quant",
    "host",
    "kernels",
    "text",
    "checkpoint",
    "experts",
    "lab",
    "model",
    "engine",
    "plan",
    "bench",
    "server",
    "cli",
)
ANYWHERE = {"errors", "config", "version"}
LIGHT = (
    "hotset",
    "hotset.gguf",
    "hotset.experts.policy",
    "hotset.experts.layer_state",
    "hotset.experts.trace",
    "hotset.experts.simulate",
    "hotset.lab.study",
    "hotset.plan.hardware",
    "hotset.plan.planner",
    "hotset.cli",
)


def imports_of(path: Path) -> set[str]:
    """Layers that a module imports when it runs; imports for type checkers alone do not count."""
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("hotset.")}
    return found - ANYWHERE


def test_every_folder_has_its_place():
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders == set(LAYERS)


def test_no_layer_imports_a_later_one():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for i, layer in enumerate(LAYERS)
        for path in (PACKAGE / layer).rglob("*.py")
        for name in imports_of(path)
        if name not in LAYERS[: i + 1]
    ]
    assert not wrong


def test_the_light_modules_import_no_torch():
    code = f"import sys, {', '.join(LIGHT)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
