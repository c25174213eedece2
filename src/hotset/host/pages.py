"""Memory of this process in pages that are large where the system has such."""

from __future__ import annotations

import mmap


def own_pages(n_bytes: int) -> mmap.mmap:
    """Zeroed memory that is nobody else's, in huge pages where the system gives them: fewer page-table walks, faster page-locking.

    Memory that could be shared with other processes, Python's default, Linux keeps in small pages whatever it is advised.
    """
    memory = mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
