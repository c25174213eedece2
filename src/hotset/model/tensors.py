"""The tensors of a file as a model takes them: each handed out with the shape it must have, and what is left at the end an error."""

from __future__ import annotations

import re
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
        """UnsupportedError where tensors are left that no part of the model took; those of speculative layers are left out."""
        ignored = "|".join(re.escape(name) for name in config.ignored)
        speculative = "|".join(str(i) for i in self._blocks_from(config.n_layers))
        # Scales of activations serve products of four-bit floats with four-bit floats, which are not taken here.
        skipped = rf".*\.input_scale|blk\.\d+\.(nextn\..*|{ignored or 'nextn'})" + (
            rf"|blk\.({speculative})\..*" if speculative else ""
        )
        left = sorted(name for name in self._left if not re.fullmatch(skipped, name))
        if left:
            raise UnsupportedError(
                self.file.path,
                "tensors",
                f"the file holds tensors that this architecture does not use: {', '.join(left)}",
                value=left,
                hint="the file may be of a variant that this version does not know",
            )

    def _blocks_from(self, n_layers: int) -> Sequence[int]:
        """Blocks that are no layers of the model: those for predicting further tokens."""
        n_blocks = self.file.metadata.arch.int("block_count", n_layers)
        return range(n_layers, min(n_blocks, n_layers + 64))
