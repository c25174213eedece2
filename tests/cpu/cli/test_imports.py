from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = """
import sys
from hotset.cli import main
code = main(sys.argv[2:])
print(code, *(name for name in sys.argv[1].split(",") if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("absent", "args"),
    [
        ("torch,numba,llvmlite,triton,tokenizers,jinja2", ["--help"]),
        ("torch,numba,llvmlite,triton,tokenizers,jinja2", ["run", "--help"]),
        # The formats that inspect reads hold their Triton functions, so Triton comes along: 0.2 s, without torch.
        ("torch,numba,llvmlite", ["inspect", "demo"]),
        ("torch,numba,llvmlite", ["inspect", "demo", "--json", "--metadata"]),
    ],
)
def test_light_commands_import_nothing_heavy(absent, args):
    done = subprocess.run([sys.executable, "-c", CHECK, absent, *args], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0"]
