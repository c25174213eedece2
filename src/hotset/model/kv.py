"""How keys and values are kept: float32 in reference mode; else float16, or q8_0: blocks of 32 int8 values with a float16 scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from hotset.errors import InputError
from hotset.model.rules import Attention, LatentAttention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hotset.model.config import ModelConfig

KVType = Literal["f32", "f16", "q8_0"]
# What a user may choose.
CHOICES: tuple[KVType, ...] = ("f16", "q8_0")
BLOCK = 32
BLOCK_BYTES: dict[KVType, int] = {"f32": 128, "f16": 64, "q8_0": 34}


@dataclass(frozen=True)
class KVTypes:
    """The types of keys and of values; float32 stands for both or for none."""

    k: KVType = "f16"
    v: KVType = "f16"

    @classmethod
    def parse(cls, k: str, v: str) -> KVTypes:
        """Read what a user chose; InputError where it is no choice."""
        for name, short, value in (("cache_type_k", "-ctk", k), ("cache_type_v", "-ctv", v)):
            if value not in CHOICES:
                raise InputError(f"{name} ({short}) {value!r} is not one of {', '.join(CHOICES)}")
        return cls(cast("KVType", k), cast("KVType", v))

    def position_bytes(self, config: ModelConfig) -> int:
        """Bytes of one position's keys, values and latents in all layers."""
        return sum(n * width * BLOCK_BYTES[kind] // BLOCK for n, width, kind in self._parts(config))

    def check(self, config: ModelConfig) -> None:
        """InputError where the model's heads cannot be kept so."""
        for _, width, kind in self._parts(config):
            if kind == "q8_0" and width % BLOCK:
                raise InputError(
                    f"keys and values in q8_0 want heads of a multiple of {BLOCK} values, and {config.name} has some of {width}; "
                    "leave cache_type_k (-ctk) and cache_type_v (-ctv) at f16"
                )

    def _parts(self, config: ModelConfig) -> Iterator[tuple[int, int, KVType]]:
        """How many heads of which width a position has in each layer, and how they are kept; a latent and its key are kept as keys are."""
        for rule in config.layers:
            if isinstance(rule.mixer, Attention):
                yield rule.mixer.n_kv_heads, rule.mixer.d_key, self.k
                yield rule.mixer.n_kv_heads, rule.mixer.d_value, self.v
            elif isinstance(rule.mixer, LatentAttention):
                yield 1, rule.mixer.kv_rank, self.k
                yield 1, rule.mixer.d_rope, self.k

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"keys {self.k}, values {self.v}"


DEFAULT = KVTypes()
FLOAT32 = KVTypes("f32", "f32")
