"""Shared data of the project (models, goldens, traces) lies in a folder beside the checkout; tests that need it skip loudly where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    path = Path(os.environ.get("HOTSET_SHARED", ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"SHARED DATA ABSENT: {path} is not there, so this check did not run")
    return path
