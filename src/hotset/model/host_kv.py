"""What the layers keep of a sequence on the CPU: keys and values, latents, and the states of convolutions and recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotset.model.rope import rope_tables
from hotset.model.rules import Attention, DeltaNet, LatentAttention, ShortConvolution

if TYPE_CHECKING:
    from hotset.model.batch import Batch
    from hotset.model.config import ModelConfig
    from hotset.model.rope import Rope
    from hotset.model.rules import Mixer

Rows = NDArray[np.float32]
Tables = tuple[NDArray[np.float32], NDArray[np.float32]]


class LayerKV:
    """Keys and values of one layer, [n_seqs, n_heads, n_ctx, width] each; of a latent the first part of the keys is the value."""

    def __init__(self, mixer: Attention | LatentAttention, n_ctx: int, n_seqs: int, *, half: bool) -> None:
        dtype = np.float16 if half else np.float32
        if isinstance(mixer, Attention):
            self.keys = np.zeros((n_seqs, mixer.n_kv_heads, n_ctx, mixer.d_key), dtype)
            self.values = np.zeros((n_seqs, mixer.n_kv_heads, n_ctx, mixer.d_value), dtype)
        else:
            self.keys = self.values = np.zeros((n_seqs, 1, n_ctx, mixer.d_stored), dtype)

    def store(self, batch: Batch, k: Rows, v: Rows | None = None) -> None:
        """Keep the rows' keys and values, float32 [m, >= n_heads * width], at their positions."""
        for cache, rows in ((self.keys, k), (self.values, v)):
            if rows is None:
                continue
            _, n_heads, _, width = cache.shape
            heads = rows[:, : n_heads * width].reshape(-1, n_heads, width)
            if len(heads) == 1:  # plain indices take a tenth of the time of arrays of indices
                cache[batch.sequences[0], :, batch.positions[0]] = heads[0]
            else:
                cache[batch.sequences, :, batch.positions] = heads

    def readable(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values as the attention kernel reads them."""
        kind = np.uint16 if self.keys.dtype == np.float16 else np.float32
        return self.keys.view(kind), self.values.view(kind)


class HostKV:
    """Float32 (reference) or float16 (fast) keys, values and latents of all layers; states are float32 in both modes.

    `states` of a layer: a convolution's last inputs [n_seqs, channels, width - 1], and what a recurrence remembers.
    """

    def __init__(self, config: ModelConfig, n_ctx: int, n_seqs: int, *, half: bool) -> None:
        self.n_ctx = n_ctx
        self.half = half
        mixers = [rule.mixer for rule in config.layers]
        self.layers = [
            LayerKV(m, n_ctx, n_seqs, half=half) if isinstance(m, Attention | LatentAttention) else None for m in mixers
        ]
        self.states = [_states(m, n_seqs) for m in mixers]
        self._tables: dict[Rope, Tables] = {}

    def layer(self, index: int) -> LayerKV:
        layer = self.layers[index]
        assert layer is not None
        return layer

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
