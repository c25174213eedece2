"""One file per architecture (or per few that differ in a line); each registers itself when it is imported, and all are."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
