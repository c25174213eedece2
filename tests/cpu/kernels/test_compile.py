"""Every kernel compiles for every supported GPU: Triton needs no GPU for that, but a process in which it does not interpret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_all.py")
TARGETS = [("cuda", arch) for arch in ("75", "80", "86", "89", "90", "120")] + [("hip", "gfx1100")]


@pytest.mark.parametrize("target", TARGETS, ids="-".join)
def test_kernels_compile_for(target):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *target], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(int(line.split()[-1]) > 0 for line in done.stdout.splitlines())
