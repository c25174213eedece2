"""How hot a model's experts were in earlier runs: what an expert cache starts from, kept in one small file per model."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import InputError
from hotset.experts.policy import LFU, LRFU, LRU, PRODUCT, Policy
from hotset.experts.trace import Trace
from hotset.host.folders import cache_root, replace_file
from hotset.kernels.product import FLOOR, LAST, LONGER, RECENT, SCORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FORMAT = 1
MAX_FILE_BYTES = 64 << 20
# Profiles of so many models are kept; the ones written longest ago go.
MAX_FILES = 32
# A sample counts half after so many later ones: the user's texts of late decide.
HALF_LIFE = 64.0
# Picks of the last tokens, from which slots per layer are dealt.
MAX_PICKS = 4096
# Tokens that heat counts for where a cache begins. Of 0 to 24 two were best on recorded routing: more keep experts that the new text drops.
PRIOR_TOKENS = 2
# Step numbers of lru fade like scores of lrfu with this half-life.
LRU_HALF_LIFE = 16.0

UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


@dataclass
class Heat:
    """`share` float64 [layers, experts]: each layer's uses by expert, as parts of 1 (a row of zeros where nothing is known).

    `samples` is how many were noted; `picks` int [tokens, layers, k] and the `offsets` of their answers are there where runs recorded them.
    """

    share: NDArray[np.float64]
    samples: int = 0
    picks: NDArray[Any] | None = None
    offsets: NDArray[np.int64] | None = None

    @classmethod
    def empty(cls, n_layers: int, n_experts: int) -> Heat:
        return cls(np.zeros((n_layers, n_experts)))

    def note(self, sample: NDArray[np.float64]) -> None:
        """Mix in the shares of one more answer; rows of zeros say nothing."""
        weight = max(1 - 2 ** (-1 / HALF_LIFE), 1 / (self.samples + 1))
        known = sample.sum(1) > 0
        fresh = known & (self.share.sum(1) == 0)
        self.share[known] += weight * (sample[known] - self.share[known])
        self.share[fresh] = sample[fresh]
        self.samples += 1

    def note_picks(self, picks: NDArray[Any]) -> None:
        """Keep the picks [tokens, layers, k] of one more answer in place of the oldest."""
        if not len(picks):
            return
        before = np.empty((0, *picks.shape[1:]), picks.dtype) if self.picks is None else self.picks
        starts = np.zeros(1, np.int64) if self.offsets is None else self.offsets
        joined = np.concatenate([before, picks])
        ends = np.append(starts[1:], len(joined))
        cut = max(0, len(joined) - MAX_PICKS)
        self.picks = joined[cut:]
        self.offsets = np.append(0, ends[ends > cut] - cut)

    def hottest(self, layer: int, n: int) -> list[int]:
        """Up to `n` experts that were used at all, the hottest first (ties: the lowest number)."""
        share = self.share[layer]
        order = np.argsort(-share, kind="stable")[:n]
        return [int(e) for e in order if share[e] > 0]

    def trace(self) -> Trace | None:
        """The recorded picks, None without any."""
        if self.picks is None or self.offsets is None or not len(self.picks):
            return None
        return Trace(self.picks, self.offsets, self.share.shape[1])

    def encoded(self, model_hash: str) -> bytes:
        arrays: dict[str, Any] = {"share": self.share.astype(np.float32)}
        if self.picks is not None and self.offsets is not None:
            small = self.picks.astype(np.uint8 if self.share.shape[1] <= 256 else np.uint16)
            arrays |= {"experts": small, "offsets": self.offsets}
        out = io.BytesIO()
        head = np.array([FORMAT, self.samples, self.share.shape[1]], np.int64)
        np.savez_compressed(out, head=head, model_hash=np.array(model_hash), n_experts=head[2], **arrays)
        return out.getvalue()

    @classmethod
    def decoded(cls, data: bytes, model_hash: str, n_layers: int, n_experts: int, k: int) -> Heat:
        """Read what `encoded` wrote; ValueError where it is something else, or of another model."""
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            head, share = file["head"], file["share"].astype(np.float64)
            if head.shape != (3,) or head[0] != FORMAT or str(file["model_hash"]) != model_hash:
                raise ValueError("it is of another format or model")
            if share.shape != (n_layers, n_experts) or not np.isfinite(share).all() or share.min(initial=0) < 0:
                raise ValueError("its shares make no sense")
            heat = cls(share, int(head[1]))
            if "experts" in file:
                trace = Trace(file["experts"], file["offsets"], n_experts)
                if trace.experts.shape[1:] != (n_layers, k) or trace.n_tokens > MAX_PICKS:
                    raise ValueError("its picks make no sense")
                heat.picks, heat.offsets = trace.experts, trace.offsets.astype(np.int64)
            return heat


def shares(policy: Policy, scores: Sequence[NDArray[Any]], steps: NDArray[Any]) -> NDArray[np.float64]:
    """What an expert cache's scores [n_scores, experts] of every layer after so many steps say of use, as parts of 1 per layer."""
    row = LONGER if policy.kind.code == PRODUCT else SCORE
    rows = [
        _uses(policy.kind.code, score[row].astype(np.float64), int(step))
        for score, step in zip(scores, steps, strict=True)
    ]
    uses = np.stack(rows) if rows else np.zeros((0, 0))
    total = uses.sum(1, keepdims=True)
    return uses / np.where(total > 0, total, 1.0)


def _uses(code: int, score: NDArray[np.float64], step: int) -> NDArray[np.float64]:
    if code in (LRFU, LFU, PRODUCT):
        return score
    if code == LRU:
        return np.where(score > 0, np.exp2((score - step) / LRU_HALF_LIFE), 0.0)
    return np.zeros_like(score)


def first_scores(policy: Policy, share: NDArray[np.float64], k: int) -> NDArray[Any]:
    """Scores [n_scores, experts] to begin with: as if PRIOR_TOKENS tokens had used the experts in these parts just now.

    lru has no such thing and begins with none.
    """
    scores = np.zeros((policy.kind.n_scores, len(share)), policy.kind.score_type)
    uses = share * k * PRIOR_TOKENS
    if policy.kind.code == PRODUCT:
        scores[RECENT] = scores[LONGER] = uses
        scores[LAST] = uses > 0
        scores[SCORE] = scores[RECENT] * scores[LAST] * (scores[LONGER] + np.float32(FLOOR))
    elif policy.kind.code in (LRFU, LFU):
        scores[SCORE] = uses if policy.kind.code == LRFU else np.rint(uses)
    return scores


def heat_path(model_hash: str) -> Path:
    return cache_root() / "heat" / f"{model_hash[:32]}.npz"


def read_heat(model_hash: str, n_layers: int, n_experts: int, k: int) -> Heat:
    """The heat kept of a model; an empty one where there is none or it cannot be read."""
    path = heat_path(model_hash)
    try:
        if path.stat().st_size <= MAX_FILE_BYTES:
            return Heat.decoded(path.read_bytes(), model_hash, n_layers, n_experts, k)
    except (*UNREADABLE, InputError):
        pass
    return Heat.empty(n_layers, n_experts)


def keep_heat(heat: Heat, model_hash: str) -> None:
    """Keep a model's heat for the next start, and of other models' only the newest. Raises OSError."""
    path = heat_path(model_hash)
    replace_file(path, heat.encoded(model_hash))
    kept = sorted(path.parent.glob("*.npz"), key=lambda p: (p != path, -p.stat().st_mtime))
    for old in kept[MAX_FILES:]:
        old.unlink(missing_ok=True)
