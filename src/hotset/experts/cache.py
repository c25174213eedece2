"""The expert cache on the device: slots, the overflow area and the tables that the lookup and fetch kernels work on."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hotset.experts.expert_map import ExpertMap, heat
from hotset.experts.host_cache import unroll_ring
from hotset.experts.layer_state import LayerState, check_seed
from hotset.experts.prefetcher import Prefetcher
from hotset.experts.slots import equal_share
from hotset.experts.stats import CacheStats, Prefetched, cache_stats
from hotset.kernels.clock import NEVER, TIME_COLUMNS
from hotset.kernels.counts import next_power_of_2
from hotset.kernels.fetch import fetch
from hotset.kernels.lookup import TABLE_COLUMNS, LookupBuffers, lookup
from hotset.kernels.prefetch import PREFETCH_LAUNCH, PrefetchLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hotset.experts.policy import Policy
    from hotset.experts.relay import Relay
    from hotset.experts.slots import CacheShape

POISON = 0xFF  # NaN in every float format: a span read before it was filled shows


class ExpertCache:
    """Slots per layer and what is in them. Nothing is allocated after the constructor: lookup and fetch may be captured.

    `bus_factor` copies of every fetch imitate a bus that many times slower. `overflow` is the area of another cache to share. `bank_base`
    has the address of expert 0 of every layer, as the device reads it; the bank must outlive the cache. `relay` brings what the device
    cannot read. `prefetch` says how likely misses of the next layer come ahead of its picks (kernels/prefetch.py), None that none do.
    """

    def __init__(
        self,
        shape: CacheShape,
        policy: Policy,
        bank_base: Sequence[int],
        device: torch.device | str,
        *,
        ring_steps: int = 0,
        poison: bool = False,
        bus_factor: int = 1,
        overflow: torch.Tensor | None = None,
        relay: Relay | None = None,
        prefetch: PrefetchLaunch | None = PREFETCH_LAUNCH,
    ) -> None:
        self.shape = shape
        self.policy = policy
        self.device = torch.device(device)
        self._poison = poison
        self._overflow = self._area(shape.overflow_bytes) if overflow is None else overflow
        self.bank_base = tuple(bank_base)
        self.bus_factor = bus_factor
        prefetch = prefetch if shape.n_layers > 1 else None
        self._buffers = self._allocate(ring_steps, prefetch=prefetch is not None)
        self._prefetcher = Prefetcher(shape, self._buffers, prefetch) if prefetch else None
        self.relay = relay
        self._n_picks = 0
        self.resize(shape.n_slots)
        self.reset()

    def beside(
        self, n_slots: Sequence[int], policy: Policy, *, bus_factor: int = 1, prefetch: bool = True
    ) -> ExpertCache:
        """Another cache over the same bank, with slots, tables and counts of its own; they share the overflow area, so they take turns.

        It prefetches where this one does, unless told not to.
        """
        return ExpertCache(
            replace(self.shape, n_slots=tuple(n_slots)),
            policy,
            self.bank_base,
            self.device,
            poison=self._poison,
            bus_factor=bus_factor,
            overflow=self._overflow,
            relay=self.relay,
            prefetch=self._prefetcher.launch if self._prefetcher and prefetch else None,
        )

    def _area(self, n_bytes: int) -> torch.Tensor:
        area = torch.empty(n_bytes, dtype=torch.uint8, device=self.device)
        return area.fill_(POISON) if self._poison else area

    def resize(self, n_slots: Sequence[int]) -> None:
        """Give each layer so many slots, all empty; counts and scores stay. Captured steps stay valid: they read where the slots are from the table."""
        self.shape = replace(self.shape, n_slots=tuple(n_slots))
        self._pool: torch.Tensor | None = None  # the old one goes before the new one comes
        # Or the allocator would cut the new one out of the old one's memory and keep the rest.
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._pool = self._area(self.shape.slot_bytes)
        self._buffers.table.copy_(self._table())
        self._empty()

    def attach(self, bank_base: Sequence[int], relay: Relay | None) -> None:
        """Say where the bank lies, once that is known, and what brings of it what the device cannot read."""
        self.bank_base, self.relay = tuple(bank_base), relay
        self._buffers.table.copy_(self._table())

    def give_back(self, n_bytes: int) -> int:
        """Hold at least `n_bytes` less of slots, or none at all; those that stay are empty. Returns the bytes given back."""
        before = self.shape.slot_bytes
        if n_bytes > 0 and before:
            self.resize(equal_share(self.shape.span_bytes, self.shape.n_experts, max(0, before - n_bytes)))
        return before - self.shape.slot_bytes

    def _table(self) -> torch.Tensor:
        """Return the address table int64 [layers, 5], see lookup.TABLE_COLUMNS."""
        overflow = [self._overflow.data_ptr()] * self.shape.n_layers
        rows = zip(self.bank_base, self._pool_base(), overflow, self.shape.span_bytes, self.shape.n_slots, strict=True)
        return torch.tensor(list(rows), dtype=torch.int64).view(self.shape.n_layers, len(TABLE_COLUMNS))

    def _pool_base(self) -> list[int]:
        """Return the address of each layer's first slot: the layers' slots follow each other."""
        assert self._pool is not None
        sizes = [span * slots for span, slots in zip(self.shape.span_bytes, self.shape.n_slots, strict=True)]
        return [self._pool.data_ptr() + before for before in accumulate(sizes, initial=0)][:-1]

    def _allocate(self, ring_steps: int, *, prefetch: bool) -> LookupBuffers:
        shape, device = self.shape, self.device
        n_layers, max_picks = shape.n_layers, shape.max_rows * shape.k
        padded = next_power_of_2(max(shape.n_experts, default=1))
        return LookupBuffers(
            table=torch.zeros(n_layers, len(TABLE_COLUMNS), dtype=torch.int64, device=device),
            decay=torch.from_numpy(self.policy.decay_table(shape.max_rows)).to(device),
            step=torch.zeros(n_layers, dtype=torch.int32, device=device),
            scores=torch.zeros(n_layers, self.policy.kind.n_scores, padded, dtype=torch.int32, device=device),
            slot_of=torch.full((n_layers, padded), -1, dtype=torch.int32, device=device),
            counters=torch.zeros(n_layers, 4, dtype=torch.int64, device=device),
            address=torch.zeros(3, max_picks, dtype=torch.int64, device=device),
            fetch_source=torch.zeros(max_picks, dtype=torch.int64, device=device),
            fetch_target=torch.zeros(max_picks, dtype=torch.int64, device=device),
            n_fetch=torch.zeros(1, dtype=torch.int32, device=device),
            times=torch.zeros(n_layers, TIME_COLUMNS, dtype=torch.int64, device=device),
            calls=torch.zeros(n_layers, dtype=torch.int32, device=device),
            picked=torch.full((n_layers, max_picks), -1, dtype=torch.int32, device=device),
            timed=self.device.type == "cuda" and torch.version.cuda is not None,
            prefetch=prefetch,
            ring=torch.full(
                (ring_steps, n_layers, max_picks), -1, dtype=torch.int16, pin_memory=self.device.type == "cuda"
            ),
        )

    @property
    def overflow_base(self) -> int:
        """Device address of the overflow area; between two requests it may hold something else."""
        return self._overflow.data_ptr()

    @property
    def address(self) -> torch.Tensor:
        """Device addresses int64 [max_rows * k] of the experts of the last lookup, pick by pick; 0 in padded rows. Valid once `fetch` has run."""
        return self._buffers.address[0]

    @property
    def hit_address(self) -> torch.Tensor:
        """The same for hits alone, 0 for misses: valid at once."""
        return self._buffers.address[1]

    @property
    def miss_address(self) -> torch.Tensor:
        """The same for misses alone, 0 for hits; valid once `fetch` has run."""
        return self._buffers.address[2]

    def lookup(self, layer: int, picks: torch.Tensor, row_mask: torch.Tensor) -> torch.Tensor:
        """Decide a request: picks int32 [rows, k], row_mask int32 [rows] as in kernels/rows.py. Returns its part of `address`."""
        buffers, self._n_picks = self._buffers, picks.numel()
        if self.relay and self.relay.serves(layer):
            posted = self.relay.posted
            buffers = replace(buffers, fetch_source=posted.source, fetch_target=posted.target, n_fetch=posted.count)
        lookup(buffers, self.policy.name, layer, picks, row_mask)
        return self.address[: picks.numel()]

    def fetch(self, layer: int, first: int = 0, end: int | None = None) -> None:
        """Bring in what the last lookup, which was this layer's, missed: bytes first..end - 1 of each span, multiples of SPAN_ALIGNMENT.

        Where the host must help all bytes come with those from 0 on, and nothing later.
        """
        buffers, span = self._buffers, self.shape.span_bytes[layer]
        if not (self.relay and self.relay.serves(layer)):
            n_bytes = (span if end is None else end) - first
            self._fetch(layer, buffers.fetch_source, buffers.fetch_target, buffers.n_fetch, first, n_bytes)
        elif first == 0:
            for some in self.relay.rounds(layer, self._n_picks):
                self._fetch(layer, some.source, some.target, some.count, 0, span)

    def _fetch(
        self, layer: int, source: torch.Tensor, target: torch.Tensor, count: torch.Tensor, first: int, n_bytes: int
    ) -> None:
        ahead = self._prefetcher
        guesses = ahead.guesses if ahead and self.prefetches(layer, self._n_picks) else None
        fetch(
            source,
            target,
            count,
            n_bytes,
            first=first,
            times=self._buffers.times[layer] if self._buffers.timed else None,
            repeat=self.bus_factor,
            span_bytes=self.shape.span_bytes[layer],
            guesses=guesses.of(layer) if guesses else None,
            counts=guesses.counts[layer] if guesses else None,
        )

    def prefetches(self, layer: int, n_picks: int) -> bool:
        """Whether experts of `layer` come ahead of its picks in steps of so many picks a layer."""
        if self._prefetcher is None or not 0 < layer < self.shape.n_layers:
            return False
        return self._prefetcher.n_guesses(n_picks) > 0 and not (self.relay and self.relay.serves(layer))

    def guess(self, layer: int, likely: torch.Tensor | None = None) -> None:
        """After the lookup of `layer`, beside its fetch: guess what the next one will miss.

        `likely` int32 [rows, k] is what the next layer's router is likely to pick, best first.
        """
        if self._prefetcher and self.prefetches(layer + 1, self._n_picks):
            self._prefetcher.guess(layer + 1, self._n_picks, likely)

    def prefetch(self, layer: int) -> None:
        """After the fetch of `layer`: bring what was guessed of the next one until its lookup begins. After the last: learn from the step."""
        ahead, n_picks = self._prefetcher, self._n_picks
        if ahead and self.prefetches(layer + 1, n_picks):
            ahead.bring(layer + 1, self.bus_factor)
        elif ahead and layer + 1 == self.shape.n_layers and ahead.n_guesses(n_picks):
            ahead.learn(n_picks)

    def seed(self, layer: int, experts: Sequence[int]) -> None:
        """Make exactly these experts of a layer resident, in slots 0, 1, ..., and bring them in."""
        chosen = check_seed(experts, self.shape.n_experts[layer], self.shape.n_slots[layer])
        index, slots = torch.tensor(chosen, dtype=torch.int64), torch.arange(len(chosen))
        self._buffers.slot_of[layer] = -1
        self._buffers.slot_of[layer, index.to(self.device)] = slots.to(self.device, torch.int32)
        span = self.shape.span_bytes[layer]
        source, target = self.bank_base[layer] + index * span, self._pool_base()[layer] + slots * span
        if self.relay and self.relay.serves(layer):
            for some in self.relay.post(layer, source, target):
                fetch(some.source, some.target, some.count, span)
        else:
            count = torch.tensor([len(chosen)], dtype=torch.int32, device=self.device)
            fetch(source.to(self.device), target.to(self.device), count, span)

    def start_from(self, layer: int, experts: Sequence[int], scores: NDArray[Any]) -> None:
        """Make exactly these experts resident and bring them in, and give the layer's experts scores [n_scores, experts] to begin with."""
        self.seed(layer, experts)
        self._buffers.scores[layer, :, : scores.shape[1]] = torch.from_numpy(scores.view(np.int32)).to(self.device)

    def scores(self) -> tuple[list[NDArray[Any]], NDArray[np.int32]]:
        """Copy every layer's scores [n_scores, experts], and the steps of every layer, to the host; waits for the device."""
        layers = self._buffers.scores.cpu().numpy().view(self.policy.kind.score_type)
        steps = self._buffers.step.cpu().numpy()
        return [scores[:, :n] for scores, n in zip(layers, self.shape.n_experts, strict=True)], steps

    def reset(self) -> None:
        """As new: cold (but for `static`, which starts with experts 0, 1, ...), with nothing counted or recorded."""
        buffers = self._buffers
        self.reset_stats()
        buffers.step.zero_()
        buffers.scores.zero_()
        buffers.ring.fill_(-1)
        self._empty()

    def _empty(self) -> None:
        self._buffers.slot_of.fill_(-1)
        if self.policy.name == "static":
            for layer, n_slots in enumerate(self.shape.n_slots):
                self.seed(layer, range(n_slots))

    def reset_stats(self) -> None:
        """Count from zero again; scores and residency stay."""
        self._buffers.counters.zero_()
        self._buffers.times.zero_()
        self._buffers.times[:, 0] = NEVER
        if self._prefetcher:
            self._prefetcher.reset_stats()

    def fetch_ms(self) -> float | None:
        """Time that fetches took since the last reset, None where the device has no clock to read; waits for the device."""
        if not self._buffers.timed:
            return None
        begin, end, total = self._buffers.times.cpu().numpy().T
        return float((total + np.maximum(end - begin, 0)).sum()) / 1e6

    def prefetched(self) -> Prefetched | None:
        """What came ahead of its layer's picks since the last reset, None where nothing ever does; waits for the device."""
        served = any(self.prefetches(layer, self.shape.k) for layer in range(self.shape.n_layers))
        return self._prefetcher.counts() if self._prefetcher and served else None

    def stats(self) -> CacheStats:
        """Copy the counts to the host, which waits for the device."""
        return cache_stats(self._buffers.counters.cpu().numpy(), self.shape, self.policy)

    def slot_addresses(self) -> NDArray[np.int64]:
        """Copy where each resident expert lies to the host: int64 [layers, experts], 0 where one is not resident; waits for the device."""
        slots = self._buffers.slot_of.cpu().numpy()[:, : max(self.shape.n_experts, default=0)]
        span = np.array(self.shape.span_bytes, np.int64)[:, None]
        base = np.array(self._pool_base(), np.int64)[:, None]
        return np.where(slots >= 0, base + slots * span, 0)

    def expert_map(self) -> ExpertMap:
        """Copy what is resident and how warm to the host, which waits for the device."""
        n_experts = max(self.shape.n_experts, default=0)
        step = self._buffers.step.cpu().numpy()
        scores = self._buffers.scores[:, :, :n_experts].cpu().numpy().view(self.policy.kind.score_type)
        return ExpertMap(
            step=int(step.max(initial=0)),
            resident=self._buffers.slot_of[:, :n_experts].cpu().numpy() >= 0,
            heat=heat(self.policy, scores, step),
            picks=self.recorded_picks(),
        )

    def state(self, layer: int) -> LayerState:
        """Copy a layer's scores and residency into the reference's form."""
        n_experts = self.shape.n_experts[layer]
        state = LayerState(self.policy, n_experts, self.shape.n_slots[layer], self.shape.max_rows)
        state.step[0] = self._buffers.step[layer].item()
        state.scores[:] = self._buffers.scores[layer, :, :n_experts].cpu().numpy().view(state.scores.dtype)
        state.slot_of_expert[:] = self._buffers.slot_of[layer, :n_experts].cpu().numpy()
        return state

    def recorded_picks(self) -> NDArray[np.int16]:
        """Return picks [steps, layers, max_rows, k] of the last steps that the ring holds, oldest first; -1 in padded rows."""
        steps = self.n_steps
        ring = self._buffers.ring.numpy().reshape(-1, self.shape.n_layers, self.shape.max_rows, self.shape.k)
        return unroll_ring(ring, steps)

    def recorded_weights(self) -> None:
        """The device keeps no pick weights."""
        return

    @property
    def n_steps(self) -> int:
        """Steps since the last reset, recorded or not; waits for the device."""
        return int(self._buffers.step.max().item()) if self.shape.n_layers else 0
