"""Everything under tests/cpu runs Triton kernels in its interpreter; the variable must stand before Triton is imported."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
