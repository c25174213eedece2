"""Stands for a driver that page-locks memory, up to a limit."""

from __future__ import annotations


class FakeLocker:
    """Refuses once more than `limit` bytes would be locked; `offset` is what a device adds to addresses."""

    def __init__(self, limit: int | None = None, offset: int = 0) -> None:
        self.limit = limit
        self.offset = offset
        self.locked: dict[int, int] = {}

    def lock(self, start: int, n_bytes: int) -> bool:
        if self.limit is not None and sum(self.locked.values()) + n_bytes > self.limit:
            return False
        self.locked[start] = n_bytes
        return True

    def unlock(self, start: int) -> None:
        del self.locked[start]

    def shift(self, start: int) -> int:
        assert start in self.locked
        return self.offset
