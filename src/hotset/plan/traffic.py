"""How many bytes of weights a token makes the machine read: the work that decoding is bound by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.model.experts import dense_bytes
from hotset.model.kv import DEFAULT

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.model.config import ModelConfig
    from hotset.quant.layout import SpanLayout


@dataclass(frozen=True)
class Traffic:
    """Bytes; `dense_read` is what of `dense` every token reads (of an embedding that is not the output too, one row)."""

    dense: int
    dense_read: int
    spans_read: int
    bank: int
    kv_per_token: int

    @property
    def per_token(self) -> int:
        """Weights read for one token, at an empty context."""
        return self.dense_read + self.spans_read


def traffic(file: ModelFile, config: ModelConfig, spans: tuple[SpanLayout, ...]) -> Traffic:
    """The bytes of a model: dense weights as they lie in the file, experts as they lie in the bank."""
    dense = dense_bytes(file, config)
    embedding = file.tensors["token_embd.weight"]
    unread = embedding.n_bytes - embedding.row_bytes if "output.weight" in file.tensors else 0
    span_bytes = [s.n_bytes for s in spans]
    return Traffic(
        dense=dense,
        dense_read=dense - unread,
        spans_read=config.n_picks * sum(span_bytes),
        bank=config.n_experts * sum(span_bytes),
        kv_per_token=DEFAULT.position_bytes(config),
    )
