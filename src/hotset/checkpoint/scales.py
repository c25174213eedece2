"""Numbers that are stored apart from their scales: float8 in blocks, and packed four-bit floats; both parts are checked before a byte is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.errors import FileError

if TYPE_CHECKING:
    from hotset.checkpoint.config import Config
    from hotset.checkpoint.shards import Shards

# A number format of its own that stands beside its scales under these endings.
FP8_SCALE = "_scale_inv"
FP8_KINDS = ("F8_E4M3", "F8_E5M2")
SCALE_KINDS = ("F32", "BF16", "F16")
PACKED, PACKED_SCALES = "_blocks", "_scales"
PACKED_BYTES = 16


def block_size(config: Config) -> tuple[int, int]:
    """Rows and columns that share a float8 scale."""
    found = config.get("quantization_config", {}).get("weight_block_size") or [128, 128]
    if not (isinstance(found, list) and len(found) == 2 and all(type(n) is int and n > 0 for n in found)):
        raise FileError(
            config.path, "weight_block_size", f"is {found!r}, but should be two numbers from 1 on", value=found
        )
    return found[0], found[1]


def is_scale(source: str, shards: Shards) -> bool:
    """Whether a tensor is read with what it scales."""
    return any(
        source.endswith(own) and source.removesuffix(own) + other in shards.stored
        for own, other in ((FP8_SCALE, ""), (PACKED_SCALES, PACKED))
    )


def check_scales(source: str, shards: Shards, config: Config) -> None:
    """FileError where a stored tensor's scales are missing, or of another shape or format than it needs."""
    stored = shards.stored[source]
    kinds: tuple[str, ...]
    if source.endswith(PACKED):
        name, kinds = source.removesuffix(PACKED) + PACKED_SCALES, ("U8",)
        _check(shards, source, stored.kind in kinds, f"is stored as {stored.kind}, not U8", stored.kind)
        whole = len(stored.shape) >= 3 and stored.shape[-1] == PACKED_BYTES
        _check(shards, source, whole, f"has the shape {list(stored.shape)}, not [..., n, {PACKED_BYTES}]", stored.shape)
        shape = stored.shape[:-1]
    elif stored.kind in FP8_KINDS:
        name, kinds = source + FP8_SCALE, SCALE_KINDS
        _check(shards, source, len(stored.shape) >= 2, "is no matrix, but stored as float8", stored.shape)
        rows, cols = block_size(config)
        shape = (*stored.shape[:-2], -(-stored.shape[-2] // rows), -(-stored.shape[-1] // cols))
    else:
        return
    found = shards.stored.get(name)
    if found is None:
        raise FileError(shards.folder, name, f"the scales of {source} are missing")
    _check(shards, name, found.kind in kinds, f"is stored as {found.kind}, not {' or '.join(kinds)}", found.kind)
    _check(
        shards, name, found.shape == shape, f"has the shape {list(found.shape)}, {source} needs {list(shape)}",
        found.shape,
    )  # fmt: skip


def _check(shards: Shards, name: str, holds: bool, problem: str, value: object) -> None:
    if not holds:
        raise FileError(shards.folder, name, problem, value=value)
