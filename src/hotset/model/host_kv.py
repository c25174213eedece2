"""What the layers keep of a sequence on the CPU: keys and values, latents, and the states of convolutions and recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotset.host.attention import FLOAT16, FLOAT32, Q8_0, Q8_BLOCK, attend_kernel, quantise_heads
from hotset.model.rope import rope_tables
from hotset.model.rules import Attention, DeltaNet, LatentAttention, ShortConvolution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.model.batch import Batch
    from hotset.model.config import ModelConfig
    from hotset.model.kv import KVType, KVTypes
    from hotset.model.rope import Rope
    from hotset.model.rules import Mixer

Rows = NDArray[np.float32]
Tables = tuple[NDArray[np.float32], NDArray[np.float32]]


class HostCells:
    """Keys, values or latents of one layer: `data` [n_seqs, n_heads, n_ctx, width], and the `scales` float16 [..., width / 32] of q8_0."""

    def __init__(self, kind: KVType, shape: tuple[int, ...]) -> None:
        self.kind = {"f32": FLOAT32, "f16": FLOAT16, "q8_0": Q8_0}[kind]
        self.data = np.zeros(shape, (np.float32, np.float16, np.int8)[self.kind])
        self.scales = np.zeros((*shape[:-1], shape[-1] // Q8_BLOCK if kind == "q8_0" else 0), np.float16)

    def store(self, batch: Batch, rows: Rows) -> None:
        """Keep rows float32 [m, >= n_heads * width] at their positions."""
        _, n_heads, _, width = self.data.shape
        into, values = self.data, rows[:, : n_heads * width].reshape(-1, n_heads, width)
        if self.kind == Q8_0:
            into, values = self.scales, quantise_heads(rows, batch.positions, batch.sequences, self.data)
        if len(values) == 1:  # plain indices take a tenth of the time of arrays of indices
            into[batch.sequences[0], :, batch.positions[0]] = values[0]
        else:
            into[batch.sequences, :, batch.positions] = values

    def copy(self, source: int, target: int, n: int) -> None:
        """Give a sequence another's first `n` positions."""
        for part in (self.data, self.scales):
            part[target, :, :n] = part[source, :, :n]

    def readable(self) -> tuple[NDArray[Any], NDArray[np.uint16]]:
        """Cells and scales as the attention kernel reads them."""
        return self.data.view(np.uint16) if self.kind == FLOAT16 else self.data, self.scales.view(np.uint16)


class LayerKV:
    """Keys and values of one layer; of a latent the first part of the keys is the value."""

    def __init__(self, mixer: Attention | LatentAttention, n_ctx: int, n_seqs: int, types: KVTypes) -> None:
        if isinstance(mixer, Attention):
            self.keys = HostCells(types.k, (n_seqs, mixer.n_kv_heads, n_ctx, mixer.d_key))
            self.values = HostCells(types.v, (n_seqs, mixer.n_kv_heads, n_ctx, mixer.d_value))
        else:
            self.keys = self.values = HostCells(types.k, (n_seqs, 1, n_ctx, mixer.d_stored))

    def store(self, batch: Batch, k: Rows, v: Rows | None = None) -> None:
        """Keep the rows' keys and values, float32 [m, >= n_heads * width], at their positions."""
        self.keys.store(batch, k)
        if v is not None:
            self.values.store(batch, v)

    def attend(self, q: Rows, *arguments: Any) -> None:
        """Attention of rows q over what is kept: see attend_kernel for the arguments after the values."""
        kernel = attend_kernel(self.keys.kind, self.values.kind)
        kernel(q, *self.keys.readable(), *self.values.readable(), *arguments)


class HostKV:
    """Keys, values and latents of all layers; states are float32 in both modes.

    `states` of a layer: a convolution's last inputs [n_seqs, channels, width - 1], and what a recurrence remembers.
    """

    def __init__(self, config: ModelConfig, n_ctx: int, n_seqs: int, types: KVTypes) -> None:
        self.n_ctx = n_ctx
        mixers = [rule.mixer for rule in config.layers]
        self.layers = [
            LayerKV(m, n_ctx, n_seqs, types) if isinstance(m, Attention | LatentAttention) else None for m in mixers
        ]
        self.states = [_states(m, n_seqs) for m in mixers]
        self._tables: dict[Rope, Tables] = {}

    def layer(self, index: int) -> LayerKV:
        layer = self.layers[index]
        assert layer is not None
        return layer

    def copy(self, source: int, target: int, n: int) -> None:
        """Give a sequence the keys and values of another's first `n` positions; states are left."""
        for layer in self.layers:
            for cells in (layer.keys, layer.values) if layer is not None else ():
                cells.copy(source, target, n)

    def state(self, seq: int) -> list[tuple[Rows, ...]]:
        """Copy a sequence's states."""
        return [tuple(part[seq].copy() for part in layer) for layer in self.states]

    def set_state(self, seq: int, state: Sequence[tuple[Rows, ...]]) -> None:
        """Take a sequence back to states that were copied."""
        for layer, kept in zip(self.states, state, strict=True):
            for part, values in zip(layer, kept, strict=True):
                part[seq] = values

    def tables(self, rope: Rope | None) -> Tables:
        """Cosines and sines float32 [n_ctx, pairs that turn]."""
        if rope is None:
            return (np.empty((self.n_ctx, 0), np.float32),) * 2
        if rope not in self._tables:
            self._tables[rope] = rope_tables(rope, self.n_ctx)
        return self._tables[rope]


def _states(mixer: Mixer | None, n_seqs: int) -> tuple[Rows, ...]:
    if isinstance(mixer, ShortConvolution):
        return (np.zeros((n_seqs, mixer.n_channels, mixer.width - 1), np.float32),)
    if isinstance(mixer, DeltaNet):
        past = np.zeros((n_seqs, mixer.n_channels, mixer.width - 1), np.float32)
        return past, np.zeros((n_seqs, mixer.n_value_heads, mixer.d_key, mixer.d_value), np.float32)
    return ()
