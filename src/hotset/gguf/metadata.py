"""The key/value pairs of a model file, with getters that check what they hand out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from hotset.errors import FileError
from hotset.gguf.strings import StringArray

if TYPE_CHECKING:
    from pathlib import Path

# The getters are named after what they return, so the class needs other names for the types.
Bool: TypeAlias = bool
Bytes: TypeAlias = bytes
Float: TypeAlias = float
Int: TypeAlias = int
Str: TypeAlias = str
T = TypeVar("T")
V = TypeVar("V")


class Missing(Enum):
    MISSING = "missing"


MISSING: Final = Missing.MISSING


class Metadata(Mapping[str, Any]):
    """Read-only mapping of keys to plain values: str, int, float, bool, a NumPy array of numbers, or a `StringArray`.

    The getters (`int`, `floats`, ...) raise `FileError` naming file, key and value where a key is missing without a default or
    holds something else. `arch` is the same mapping without the architecture's prefix: `metadata.arch.int("expert_count")`.
    """

    def __init__(
        self, path: Path, values: Mapping[Str, Any], types: Mapping[Str, Str] | None = None, prefix: Str = ""
    ) -> None:
        self.path = path
        self._values = values
        self._types = types or {}
        self._prefix = prefix

    def __getitem__(self, key: Str) -> Any:
        return self._values[self._prefix + key]

    def __iter__(self) -> Iterator[Str]:
        cut = len(self._prefix)
        return (key[cut:] for key in self._values if key.startswith(self._prefix))

    def __len__(self) -> Int:
        return sum(1 for _ in self)

    def type_of(self, key: Str) -> Str:
        """Return the type written in the file: "u32", "str", "f32[]" and so on."""
        return self._types[self._prefix + key]

    def scoped(self, prefix: Str) -> Metadata:
        """Return the keys below `prefix` (which ends with a dot), as a mapping of their own."""
        return Metadata(self.path, self._values, self._types, self._prefix + prefix)

    @property
    def architecture(self) -> Str:
        """`general.architecture`, for example "qwen3moe"."""
        name = Metadata(self.path, self._values).str("general.architecture")
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise FileError(self.path, "general.architecture", f"is {name!r}, which is no name", value=name)
        return name

    @property
    def arch(self) -> Metadata:
        """The keys of this file's architecture, without their prefix."""
        return Metadata(self.path, self._values, self._types, self.architecture + ".")

    def int(
        self, key: Str, default: T | Missing = MISSING, *, low: Int | None = None, high: Int | None = None
    ) -> Int | T:
        """Return an integer of any width (a bool counts as 0 or 1), from `low` to `high`."""
        if key not in self:
            if isinstance(default, Missing):
                raise self._absent(key)
            return default
        value = self._one(key, MISSING, as_int, "an integer")
        self._check_range(key, [value], low, high)
        return value

    def float(self, key: Str, default: T | Missing = MISSING) -> Float | T:
        """Return a finite number."""
        return self._one(key, default, as_float, "a finite number")

    def bool(self, key: Str, default: T | Missing = MISSING) -> Bool | T:
        """Return a bool; the integers 0 and 1 will do."""
        return self._one(key, default, as_bool, "a bool")

    def str(self, key: Str, default: T | Missing = MISSING) -> Str | T:
        """Return text that can be printed: what is no UTF-8 became U+FFFD. The mapping itself keeps it as surrogates."""
        return self._one(key, default, as_text, "a string")

    def bytes(self, key: Str, default: T | Missing = MISSING) -> Bytes | T:
        """Return the bytes of a string, as they stand in the file."""
        return self._one(key, default, as_bytes, "a string")

    def ints(
        self,
        key: Str,
        n: Int | None = None,
        default: Sequence[Int] | Int | Missing = MISSING,
        *,
        low: Int | None = None,
        high: Int | None = None,
    ) -> list[Int]:
        """Return `n` integers: an array of exactly `n`, or one number repeated. `n` None: any length but zero."""
        numbers = self._many(key, n, default, as_int, "integers")
        if key in self:
            self._check_range(key, numbers, low, high)
        return numbers

    def floats(
        self, key: Str, n: Int | None = None, default: Sequence[Float] | Float | Missing = MISSING
    ) -> list[Float]:
        """Return `n` finite numbers, as `ints`."""
        return self._many(key, n, default, as_float, "finite numbers")

    def bools(self, key: Str, n: Int | None = None, default: Sequence[Bool] | Bool | Missing = MISSING) -> list[Bool]:
        """Return `n` bools, as `ints`."""
        return self._many(key, n, default, as_bool, "bools")

    def strings(self, key: Str, n: Int | None = None, default: T | Missing = MISSING) -> Sequence[Str] | T:
        """Return an array of `n` strings (any number if None), decoded where used; bytes that are no UTF-8 become surrogates."""
        wanted = "an array of strings" if n is None else f"an array of {n:,} strings"
        return self._one(key, default, lambda value: as_strings(value, n), wanted)

    def _one(self, key: Str, default: T | Missing, convert: Callable[[Any], V | None], wanted: Str) -> V | T:
        if key not in self:
            if isinstance(default, Missing):
                raise self._absent(key)
            return default
        value = convert(self[key])
        if value is None:
            raise self._wrong(key, wanted)
        return value

    def _many(
        self,
        key: Str,
        n: Int | None,
        default: Sequence[V] | V | Missing,
        convert: Callable[[Any], V | None],
        wanted: Str,
    ) -> list[V]:
        if key not in self:
            if isinstance(default, Missing):
                raise self._absent(key)
            return [*default] if isinstance(default, Sequence) else [default] * (1 if n is None else n)
        value = self[key]
        items = value.tolist() if isinstance(value, np.ndarray) else [value] * (1 if n is None else n)
        converted = [convert(item) for item in items]
        numbers = [item for item in converted if item is not None]
        if len(numbers) < len(items) or (len(items) != n if n is not None else not items):
            raise self._wrong(key, f"{wanted}: at least one" if n is None else f"{wanted}: one, or an array of {n:,}")
        return numbers

    def _absent(self, key: Str) -> FileError:
        hint = "the file is incomplete or no model; convert or download it again"
        return FileError(self.path, self._prefix + key, "is missing", hint=hint)

    def _wrong(self, key: Str, wanted: Str) -> FileError:
        value = self[key]
        return FileError(
            self.path,
            self._prefix + key,
            f"is {describe(value)}, but should be {wanted}",
            value=value,
            hint="convert or download the file again",
        )

    def _check_range(self, key: Str, numbers: Sequence[Int], low: Int | None, high: Int | None) -> None:
        for number in numbers:
            if (low is not None and number < low) or (high is not None and number > high):
                problem = f"is {number:,}, out of range ({range_text(low, high)})"
                raise FileError(
                    self.path, self._prefix + key, problem, value=number, hint="convert or download the file again"
                )


def as_int(value: Any) -> Int | None:
    return int(value) if isinstance(value, int) else None


def as_float(value: Any) -> Float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def as_bool(value: Any) -> Bool | None:
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


def as_bytes(value: Any) -> Bytes | None:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else None


def as_text(value: Any) -> Str | None:
    raw = as_bytes(value)
    return None if raw is None else raw.decode("utf-8", "replace")


def as_strings(value: Any, n: Int | None) -> Sequence[Str] | None:
    return value if isinstance(value, StringArray) and n in (None, len(value)) else None


def range_text(low: Int | None, high: Int | None) -> Str:
    return f"{'any' if low is None else f'{low:,}'} to {'any' if high is None else f'{high:,}'}"


def describe(value: object) -> Str:
    """Show a value in an error message: arrays by their length, long text cut."""
    if isinstance(value, StringArray):
        return f"an array of {len(value):,} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {len(value):,} ({value.dtype})"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
