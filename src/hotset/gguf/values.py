"""The value types of GGUF metadata: reading and packing one value of any of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hotset.errors import FileError, InputError, UnsupportedError
from hotset.gguf.cursor import U32, U64, Cursor
from hotset.gguf.strings import MAX_ARRAY_BYTES, decode, read_strings

STRING, ARRAY = 8, 9
MAX_STRING_BYTES = 1 << 26  # a tokenizer.json kept as one string takes up to 35 MB


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of fixed width: its id in the file, its name here and its layout."""

    id: int
    name: str
    struct: struct.Struct
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stands for an array of numbers that was not read, as only the header of a remote file is wanted."""

    count: int
    type_name: str


def _scalar(type_id: int, name: str, code: str, dtype: str) -> Scalar:
    return Scalar(type_id, name, struct.Struct("<" + code), np.dtype(dtype))


SCALARS: dict[int, Scalar] = {
    kind.id: kind
    for kind in (
        _scalar(0, "u8", "B", "<u1"),
        _scalar(1, "i8", "b", "<i1"),
        _scalar(2, "u16", "H", "<u2"),
        _scalar(3, "i16", "h", "<i2"),
        _scalar(4, "u32", "I", "<u4"),
        _scalar(5, "i32", "i", "<i4"),
        _scalar(6, "f32", "f", "<f4"),
        _scalar(7, "bool", "B", "<u1"),
        _scalar(10, "u64", "Q", "<u8"),
        _scalar(11, "i64", "q", "<i8"),
        _scalar(12, "f64", "d", "<f8"),
    )
}

SCALARS_BY_NAME = {kind.name: kind for kind in SCALARS.values()}
NAMES_BY_DTYPE = {kind.dtype: kind.name for kind in SCALARS.values() if kind.name != "bool"} | {np.dtype(bool): "bool"}


def read_value(cursor: Cursor, key: str) -> tuple[str, Any]:
    """Read type and value of `key`; the type is named "u32", "str", "f32[]" and so on."""
    type_id = cursor.u32(key)
    if type_id == STRING:
        return "str", decode(cursor.string(key, MAX_STRING_BYTES))
    if type_id == ARRAY:
        return _read_array(cursor, key)
    kind = _scalar_type(cursor, key, type_id)
    value = cursor.unpack(kind.struct, key)
    return kind.name, _checked_bool(cursor, key, int(value)) if kind.name == "bool" else value


def _read_array(cursor: Cursor, key: str) -> tuple[str, Any]:
    type_id = cursor.u32(key)
    if type_id == STRING:
        return "str[]", read_strings(cursor, key)
    if type_id == ARRAY:
        raise UnsupportedError(
            cursor.path,
            key,
            "is an array of arrays, which neither llama.cpp nor this build reads",
            value=type_id,
            hint="convert the model again with llama.cpp's converter",
        )
    kind = _scalar_type(cursor, key, type_id)
    return kind.name + "[]", _read_numbers(cursor, key, kind)


def _read_numbers(cursor: Cursor, key: str, kind: Scalar) -> npt.NDArray[Any] | LeftOut:
    count = cursor.count(key, kind.dtype.itemsize, MAX_ARRAY_BYTES // kind.dtype.itemsize)
    if cursor.leaves_out(count * kind.dtype.itemsize):
        cursor.skip(count * kind.dtype.itemsize, key)
        return LeftOut(count, kind.name)
    # A copy: metadata outlives the mapping. An array over bytes is read-only.
    numbers = np.frombuffer(cursor.take(count * kind.dtype.itemsize, key), kind.dtype)
    if kind.name != "bool":
        return numbers
    if numbers.size:
        _checked_bool(cursor, key, int(numbers.max()))
    return numbers.view(np.bool_)


def _scalar_type(cursor: Cursor, key: str, type_id: int) -> Scalar:
    if type_id not in SCALARS:
        raise FileError(cursor.path, key, f"has value type {type_id}; GGUF has 0 to 12", value=type_id)
    return SCALARS[type_id]


def _checked_bool(cursor: Cursor, key: str, value: int) -> bool:
    if value > 1:
        raise FileError(cursor.path, key, f"is a bool of value {value}; only 0 and 1 are allowed", value=value)
    return value == 1


def pack_string(text: str | bytes) -> bytes:
    """Return the bytes of a string in the file; surrogates of `decode` become the bytes they stand for."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return U64.pack(len(raw)) + raw


def pack_value(key: str, value: Any, type_name: str | None = None) -> bytes:
    """Return a value as it stands in the file, its type in front; `type_name` (of an array: its elements') follows from the value if None."""
    is_array = not isinstance(value, (str, bytes)) and hasattr(value, "__len__")
    if isinstance(value, np.ndarray):
        type_name = type_name or NAMES_BY_DTYPE.get(value.dtype)
        value = value.tolist()
    items = list(value) if is_array else [value]
    name = type_name or _type_name(key, items)
    packed = b"".join(_pack_items(key, items, name))
    type_id = U32.pack(STRING if name == "str" else SCALARS_BY_NAME[name].id)
    return U32.pack(ARRAY) + type_id + U64.pack(len(items)) + packed if is_array else type_id + packed


def _type_name(key: str, items: list[Any]) -> str:
    kinds = {type(item) for item in items}
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        return next((name for name in ("u32", "i32", "u64", "i64") if _fits(items, SCALARS_BY_NAME[name].dtype)), "i64")
    if kinds and kinds <= {int, float}:
        return "f32"
    if kinds and kinds <= {str, bytes}:
        return "str"
    found = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
    raise InputError(f"metadata {key!r} holds {found}; give numbers, bools or strings of one kind, or name the type")


def _fits(items: list[int], dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return limits.min <= min(items) and max(items) <= limits.max


def _pack_items(key: str, items: list[Any], name: str) -> list[bytes]:
    if name == "str":
        return [pack_string(item) for item in items]
    if name not in SCALARS_BY_NAME:
        raise InputError(f"metadata {key!r} has type {name!r}; give one of str, {', '.join(SCALARS_BY_NAME)}")
    kind = SCALARS_BY_NAME[name].struct
    try:
        return [kind.pack(item) for item in items]
    except (struct.error, OverflowError) as error:
        raise InputError(f"metadata {key!r} does not fit {name}: {error}") from error
