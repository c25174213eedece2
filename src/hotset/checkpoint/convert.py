"""Writes a model as a GGUF file, with a format for the experts and one for the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError
from hotset.gguf import TYPES_BY_NAME, GGMLType, GGUFFile, GGUFWriter, TensorInfo
from hotset.quant.formats import FORMATS
from hotset.quant.quantise import QUANTISERS, quantise

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.quant.layout import Bytes

EXPERTS = re.compile(r"_exps\.weight$")
# Small matrices that decide much stay as they are; so do vectors.
KEPT = re.compile(r"\.(ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d|shortconv\.conv)\.weight$|_norm\.weight$")
# Where a row is no whole number of blocks, as llama-quantize does: something finer that fits.
INSTEAD = ("Q8_0", "F16")
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Choice:
    """What becomes of one tensor; `wanted` is another format that its rows do not fit."""

    info: TensorInfo
    kind: GGMLType
    wanted: str | None = None


def choices(file: ModelFile, experts: str | None, rest: str | None) -> list[Choice]:
    """The format of every tensor; None keeps what the model has. InputError names a format that cannot be written."""
    for option, name in (("--experts", experts), ("--rest", rest)):
        if name is not None and name not in QUANTISERS:
            raise InputError(f"{option} {name!r} cannot be written; choose one of {', '.join(QUANTISERS)}")
    return [_choice(info, experts if EXPERTS.search(info.name) else rest) for info in file.tensors.values()]


def _choice(info: TensorInfo, wanted: str | None) -> Choice:
    if wanted is None or len(info.shape) == 1 or KEPT.search(info.name) or info.ggml_type.id not in FORMATS:
        return Choice(info, info.ggml_type)
    for name in (wanted, *INSTEAD):
        if info.shape[-1] % TYPES_BY_NAME[name].block == 0:
            return Choice(info, TYPES_BY_NAME[name], None if name == wanted else wanted)
    return Choice(info, info.ggml_type)


def convert(
    file: ModelFile,
    target: Path,
    chosen: list[Choice],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write `file` to `target`, tensor by tensor; `progress` is told source bytes done and in all. The file takes its name when complete."""
    writer = GGUFWriter(target)
    for key, value in file.metadata.items():
        if key != "general.alignment" and not key.startswith("split."):
            writer.metadata(key, value, file.metadata.type_of(key) if isinstance(file, GGUFFile) else None)
    done = [0]

    def tell(n_bytes: int) -> None:
        done[0] += n_bytes
        progress(done[0], file.total_bytes)

    for choice in chosen:
        writer.tensor(choice.info.name, partial(_chunks, file, choice, tell), choice.kind, choice.info.shape)
    writer.write()


def _chunks(file: ModelFile, choice: Choice, tell: Callable[[int], None]) -> Iterator[Bytes]:
    """A tensor's bytes, some rows at a time."""
    info, data = choice.info, file.data(choice.info.name).reshape(-1, choice.info.row_bytes)
    for start in range(0, len(data), ROWS_AT_ONCE):
        rows = data[start : start + ROWS_AT_ONCE]
        yield rows if choice.kind is info.ggml_type else _requantised(rows, choice)
        tell(rows.nbytes)
    file.let_go(info.name)


def _requantised(rows: Bytes, choice: Choice) -> Bytes:
    fmt = FORMATS[choice.info.ggml_type.id]
    values = fmt.values(fmt.fields_of_blocks(rows.reshape(len(rows), -1, fmt.block_bytes)))
    return quantise(choice.kind.name, np.asarray(values, np.float32).reshape(len(rows), -1))
