"""The tensors of a file as a model takes them: each handed out with the shape it must have, and what is left at the end an error."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.errors import FileError, UnsupportedError
from hotset.quant.formats import FORMATS
from hotset.quant.layout import Bytes, MatrixLayout, QuantFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.checkpoint.file import ModelFile
    from hotset.gguf import TensorInfo
    from hotset.model.config import ModelConfig


class Tensors:
    """The tensors of a file by name; UnsupportedError at once for all whose type is not known."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self._left = set(file.tensors)
        unknown = sorted(
            f"{t.name} ({t.ggml_type.name})" for t in file.tensors.values() if t.ggml_type.id not in FORMATS
        )
        if unknown:
            raise UnsupportedError(
                file.path,
                "tensor types",
                f"not supported yet: {', '.join(unknown)}",
                value=unknown,
                hint=f"this version computes with {', '.join(f.name for f in FORMATS.values())}",
            )

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor `name`; FileError where it is missing or shaped otherwise."""
        info = self.file.tensors.get(name)
        if info is None:
            raise FileError(self.file.path, name, "this tensor is missing")
        if info.shape != shape:
            raise FileError(
                self.file.path,
                name,
                f"its shape is {list(info.shape)}, the metadata say {list(shape)}",
                value=info.shape,
            )
        self._left.discard(name)
        return info

    def n_rows(self, name: str) -> int:
        """Rows of the matrix `name`; FileError where it is missing."""
        info = self.file.tensors.get(name)
        if info is None or len(info.shape) < 2:
            raise FileError(self.file.path, name, "this tensor is missing")
        return info.shape[-2]

    def layout(self, name: str, shape: tuple[int, ...]) -> MatrixLayout:
        """The layout of a matrix [rows, cols] or of one of [experts, rows, cols]."""
        info = self.info(name, shape)
        return MatrixLayout(FORMATS[info.ggml_type.id], shape[-2], shape[-1])

    def blocks(self, name: str, shape: tuple[int, ...]) -> tuple[QuantFormat, Bytes]:
        """The format of a matrix, and its GGUF bytes row by row: uint8 [rows, row_bytes]."""
        layout = self.layout(name, shape)
        return layout.fmt, self.file.data(name).reshape(-1, layout.row_bytes)

    def values(self, name: str, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
        """All numbers of a tensor as float32."""
        shape = (shape,) if isinstance(shape, int) else shape
        info = self.info(name, shape)
        layout = MatrixLayout(FORMATS[info.ggml_type.id], int(np.prod(shape[:-1], dtype=np.int64)), shape[-1])
        values = layout.dequantize(layout.from_blocks(self.file.data(name)))
        return np.ascontiguousarray(values).reshape(shape)

    def finish(self, config: ModelConfig) -> None:
        """UnsupportedError where tensors are left that no part of the model took, but for those that are skipped."""
        skipped = skipped_tensors(self.file, config)
        left = sorted(self._left - skipped)
        if left:
            raise UnsupportedError(
                self.file.path,
                "tensors",
                f"the file holds tensors that this architecture does not use: {', '.join(left)}",
                value=left,
                hint="the file may be of a variant that this version does not know",
            )
        if strays := sorted(name for name in skipped if ".nextn." in name and not further_blocks(self.file, config)):
            warnings.warn(
                f"{self.file.path}: nextn_predict_layers is 0, so tensors for predicting further tokens are not used: "
                f"{', '.join(strays[:3])}{' and more' if len(strays) > 3 else ''}",
                stacklevel=2,
            )


def further_blocks(file: ModelFile, config: ModelConfig) -> Sequence[int]:
    """Blocks that are no layers of the model: those for predicting further tokens."""
    n_blocks = file.metadata.arch.int("block_count", config.n_layers)
    return range(config.n_layers, min(n_blocks, config.n_layers + 64))


def skipped_tensors(file: ModelFile, config: ModelConfig) -> set[str]:
    """The names of tensors that a file may hold and nothing reads: for predicting further tokens, and what the architecture ignores."""
    further = "|".join(str(i) for i in further_blocks(file, config))
    # Scales of activations serve products of four-bit floats with four-bit floats, which are not taken here.
    pattern = r".*\.input_scale|blk\.\d+\.nextn\..*" + (rf"|blk\.({further})\..*" if further else "")
    ignored = {f"blk.{i}.{name}" for i in config.expert_layers for name in config.ignored}
    return {name for name in file.tensors if name in ignored or re.fullmatch(pattern, name)}
