"""Which experts stay on the GPU: the policies by name, with their settings.

A policy is one line of POLICIES, one branch of `request.update_scores` and one branch of the lookup kernel.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError
from hotset.kernels import product

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATIC, LRU, LFU, LRFU, PRODUCT = range(5)
MAX_HALF_LIFE = 1e6


@dataclass(frozen=True)
class PolicyKind:
    """A row of POLICIES: `code` is how compiled code knows the policy, `half_life` the default of those that take one.

    It keeps `n_scores` numbers of every expert: the score that decides, and what that is made of.
    """

    code: int
    summary: str
    score_type: type[np.float32 | np.int32] = np.int32
    half_life: float | None = None
    n_scores: int = 1


POLICIES: dict[str, PolicyKind] = {
    "lrfu": PolicyKind(LRFU, "recent use counts most, fading with a half-life in tokens", np.float32, 16.0),
    "product": PolicyKind(
        PRODUCT,
        "recent use times longer use times last use; forgets where an answer begins",
        np.float32,
        n_scores=product.N_SCORES,
    ),
    "lru": PolicyKind(LRU, "the least recently used leaves"),
    "lfu": PolicyKind(LFU, "the least often used leaves"),
    "static": PolicyKind(STATIC, "nothing moves: what is resident at the start stays"),
}


@dataclass(frozen=True)
class Policy:
    """A policy with its setting; `str` gives back what `parse` reads."""

    name: str = "lrfu"
    half_life: float | None = 16.0

    @staticmethod
    def parse(text: str) -> Policy:
        """Read `lrfu`, `lrfu:16`, `product`, `lru`, `lfu` or `static`."""
        name, colon, setting = str(text).strip().lower().partition(":")
        kind = POLICIES.get(name)
        if kind is None:
            raise InputError(f"cache policy {text!r} is unknown; there are {', '.join(POLICIES)}")
        if not colon:
            return Policy(name, kind.half_life)
        if kind.half_life is None:
            raise InputError(f"cache policy {text!r}: {name} takes no setting; write {name}")
        half_life = float(setting) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", setting) else 0.0
        if not 0 < half_life <= MAX_HALF_LIFE:
            raise InputError(
                f"cache policy {text!r}: the half-life must be a number of tokens above 0 and at most {MAX_HALF_LIFE:g}, as in {name}:16"
            )
        return Policy(name, half_life)

    def __str__(self) -> str:
        return self.name if self.half_life is None else f"{self.name}:{self.half_life:.15g}"

    @property
    def kind(self) -> PolicyKind:
        return POLICIES[self.name]

    def decay_table(self, max_rows: int) -> NDArray[np.float32]:
        """[max_rows + 1, half-lives of the policy]: d^n for n real rows, d = 2^(-1 / half-life), each rounded once to float32."""
        half_lives = product.HALF_LIVES if self.kind.code == PRODUCT else (self.half_life or math.inf,)
        return np.array(
            [[math.exp2(-n / half_life) for half_life in half_lives] for n in range(max_rows + 1)], np.float32
        )
