"""The normalisation that SentencePiece puts in a model file (`tokenizer.ggml.precompiled_charsmap`).

Layout: the size in bytes of a table as a little-endian uint32, the table, then replacement strings, each ended by a zero byte. The table is
a double array over bytes of UTF-8 (Darts, as SentencePiece stores it), an entry per uint32: bits 0-7 (and 31) the byte that leads here, bit 8
whether a value hangs here, bits 10-30 where the children lie, times 256 if bit 9 is set; a value is the start of a replacement string.
"""

from __future__ import annotations

import struct

HAS_VALUE = 1 << 8
LABEL = 1 << 31 | 0xFF
VALUE = (1 << 31) - 1


class CharsMap:
    """Replaces the longest known beginning, again and again; all else is left as it is."""

    def __init__(self, blob: bytes) -> None:
        """Read the blob; ValueError where it is damaged."""
        if len(blob) < 4:
            raise ValueError(f"has {len(blob)} bytes, less than the 4 of its header")
        (n_bytes,) = struct.unpack_from("<I", blob)
        if not 0 < n_bytes <= len(blob) - 4 or n_bytes % 4:
            raise ValueError(f"says that its table has {n_bytes:,} bytes, of {len(blob) - 4:,} that follow")
        self._table: tuple[int, ...] = struct.unpack_from(f"<{n_bytes // 4}I", blob, 4)
        self._texts = blob[4 + n_bytes :]

    def normalize(self, text: str) -> str:
        """Return `text` with its replacements; ValueError where the table leads out of itself."""
        raw = text.encode()
        out, at = bytearray(), 0
        while at < len(raw):
            length, start = self._longest(raw, at)
            if length:
                out += self._replacement(start)
                at += length
            else:
                end = at + 1
                while end < len(raw) and raw[end] & 0xC0 == 0x80:  # the rest of the character
                    end += 1
                out += raw[at:end]
                at = end
        return out.decode("utf-8", "replace")

    def _longest(self, raw: bytes, at: int) -> tuple[int, int]:
        """Length of the longest beginning at `at` that is replaced, and where its replacement starts; 0, 0 if none is."""
        node, found = children(self._entry(0)), (0, 0)
        for end in range(at, len(raw)):
            byte = raw[end]
            node ^= byte
            if byte == 0 or node >= len(self._table) or self._table[node] & LABEL != byte:
                break
            entry = self._table[node]
            node ^= children(entry)
            if entry & HAS_VALUE:
                found = end + 1 - at, self._entry(node) & VALUE
        return found

    def _entry(self, node: int) -> int:
        if node >= len(self._table):
            raise ValueError(f"leads to entry {node:,} of a table of {len(self._table):,}")
        return self._table[node]

    def _replacement(self, start: int) -> bytes:
        end = self._texts.find(b"\0", start)
        if end < 0:
            raise ValueError(f"names a replacement at byte {start:,} of {len(self._texts):,} that has no end")
        return self._texts[start:end]


def children(entry: int) -> int:
    """Where the children of an entry lie, to be combined with their byte by exclusive or."""
    return (entry >> 10) << ((entry & 1 << 9) >> 6)
