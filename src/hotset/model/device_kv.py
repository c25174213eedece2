"""What the layers keep of sequences on a GPU: keys and values, latents, and the states of convolutions and recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hotset.kernels.attention import Span, SplitBuffers
from hotset.kernels.kv_cache import KVCache, empty_cells
from hotset.kernels.latent import LatentCache
from hotset.kernels.rope import DeviceRope, qk_norm_rope_store
from hotset.model.batch import MAX_ROWS
from hotset.model.rope import rope_tables
from hotset.model.rules import Attention, DeltaNet, LatentAttention, ShortConvolution, Temperature
from hotset.model.weights import AttentionWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.kernels.rows import Rows
    from hotset.model.config import ModelConfig
    from hotset.model.kv import KVTypes
    from hotset.model.rope import Rope
    from hotset.model.rules import Mixer
    from hotset.model.weights import Layer

Tables = tuple[torch.Tensor, torch.Tensor]


class DeviceKV:
    """Keys, values and latents of all layers, states (always float32), and tables by position."""

    def __init__(
        self, config: ModelConfig, n_ctx: int, n_seqs: int, device: torch.device | str, types: KVTypes
    ) -> None:
        self.n_ctx = n_ctx
        self.types = types
        self.device = torch.device(device)
        self.eps = config.norm.eps
        mixers = [rule.mixer for rule in config.layers]
        self._stores = [self._store(m, n_seqs) for m in mixers]
        self.states = [self._states(m, n_seqs) for m in mixers]
        self._tables: dict[Rope | None, Tables] = {None: (torch.empty(n_ctx, 0, device=device),) * 2}
        self._warmth: dict[Temperature, torch.Tensor] = {}
        self._splits: dict[tuple[int, int], SplitBuffers] = {}
        for mixer in mixers:  # everything is made here, for steps are captured
            if isinstance(mixer, Attention | LatentAttention):
                self._prepare(mixer)

    def _store(self, mixer: Mixer | None, n_seqs: int) -> KVCache | LatentCache | None:
        types, device = self.types, self.device
        if isinstance(mixer, Attention):
            shape = (n_seqs, mixer.n_kv_heads, self.n_ctx)
            k, k_scale = empty_cells((*shape, mixer.d_key), types.k, device)
            v, v_scale = empty_cells((*shape, mixer.d_value), types.v, device)
            return KVCache(k, v, k_scale, v_scale)
        if isinstance(mixer, LatentAttention):
            data, scale = empty_cells((n_seqs, self.n_ctx, mixer.d_stored), types.k, device)
            return LatentCache(data, mixer.kv_rank, scale)
        return None

    def _states(self, mixer: Mixer | None, n_seqs: int) -> tuple[torch.Tensor, ...]:
        if not isinstance(mixer, ShortConvolution | DeltaNet):
            return ()
        past = torch.zeros(n_seqs, mixer.n_channels, mixer.width - 1, device=self.device)
        if isinstance(mixer, ShortConvolution):
            return (past,)
        return past, torch.zeros(n_seqs, mixer.n_value_heads, mixer.d_key, mixer.d_value, device=self.device)

    def _prepare(self, mixer: Attention | LatentAttention) -> None:
        if mixer.rope is not None and mixer.rope not in self._tables:
            cos, sin = (torch.from_numpy(t).to(self.device) for t in rope_tables(mixer.rope, self.n_ctx))
            self._tables[mixer.rope] = cos, sin
        if mixer.temperature is not None and mixer.temperature not in self._warmth:
            factors = mixer.temperature.factors(np.arange(self.n_ctx))
            self._warmth[mixer.temperature] = torch.from_numpy(factors).to(self.device)
        key = (mixer.n_heads, mixer.d_value if isinstance(mixer, Attention) else mixer.kv_rank)
        if key not in self._splits:
            self._splits[key] = SplitBuffers.empty(MAX_ROWS, *key, self.n_ctx, self.device)

    def copy(self, source: int, target: int, n: int) -> None:
        """Give a sequence the keys, values and latents of another's first `n` positions; states are left."""
        for store in self._stores:
            if store is not None:
                store.copy(source, target, n)

    def state(self, seq: int) -> list[tuple[torch.Tensor, ...]]:
        """Copy a sequence's states into host memory."""
        return [tuple(part[seq].cpu() for part in layer) for layer in self.states]

    def set_state(self, seq: int, state: Sequence[tuple[torch.Tensor, ...]]) -> None:
        """Take a sequence back to states that were copied."""
        for layer, kept in zip(self.states, state, strict=True):
            for part, values in zip(layer, kept, strict=True):
                part[seq].copy_(values)

    def keys_values(self, index: int) -> KVCache:
        """The keys and values of a layer that has such."""
        store = self._stores[index]
        assert isinstance(store, KVCache)
        return store

    def latents(self, index: int) -> LatentCache:
        """The latents of a layer that has such."""
        store = self._stores[index]
        assert isinstance(store, LatentCache)
        return store

    def tables(self, rope: Rope | None) -> Tables:
        """Cosines and sines float32 [n_ctx, pairs that turn]."""
        return self._tables[rope]

    def warmth(self, temperature: Temperature) -> torch.Tensor:
        """What queries are multiplied with, by position: float32 [n_ctx, 1]."""
        return self._warmth[temperature]

    def splits(self, n_heads: int, width: int) -> SplitBuffers:
        return self._splits[n_heads, width]

    def turn_and_store(
        self, layer: Layer, rows: Rows, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Norm (each head's) and rotate q and k, store k and v; returns q float32 [m, n_heads * d_key] without its padding."""
        rule, w = layer.rule.mixer, layer.mixer
        assert isinstance(rule, Attention)
        assert isinstance(w, AttentionWeights)
        q, k, v = (
            t[:, :n]
            for t, n in (
                (q, rule.n_heads * rule.d_key),
                (k, rule.n_kv_heads * rule.d_key),
                (v, rule.n_kv_heads * rule.d_value),
            )
        )
        by_head = rule.qk_norm in ("head", "unit")
        rope = DeviceRope(
            *self.tables(rule.rope),
            neox=rule.rope is None or rule.rope.pairs == "halves",
            q_norm=w.q_norm if by_head else None,
            k_norm=w.k_norm if by_head else None,
            eps=self.eps,
            norm_last=rule.norm_after_rope,
        )
        qk_norm_rope_store(q, k, v, rope, self.keys_values(layer.index), rows)
        return q


def span_of(rule: Attention, sinks: torch.Tensor | None) -> Span:
    """Which positions a layer's rows see."""
    return Span(rule.window, rule.chunk, rule.softcap, sinks)
