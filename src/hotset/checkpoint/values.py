"""How a checkpoint's numbers become a GGUF tensor's: turned, cut, unpacked.

Every function takes the stored tensor and the checkpoint's config; those that only move numbers also run on torch's meta device,
which tells the shape without the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hotset.checkpoint.config import Config

Change = Callable[[torch.Tensor, "Config"], torch.Tensor]


def same(x: torch.Tensor, _: Config) -> torch.Tensor:
    return x


def squeezed(x: torch.Tensor, _: Config) -> torch.Tensor:
    """Without axes of length 1."""
    return x.squeeze()


def flat(x: torch.Tensor, _: Config) -> torch.Tensor:
    return x.reshape(-1)


def pairs_together(n_heads_key: str) -> Change:
    """Rows of q or k in the order of GGUF's `llama` family: the two halves of a head that turn together stand next to each other."""

    def change(x: torch.Tensor, config: Config) -> torch.Tensor:
        n_heads = config.int(n_heads_key, config.int("num_attention_heads"))
        return x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)

    return change


def one_added(x: torch.Tensor, _: Config) -> torch.Tensor:
    """Norm weights stored as their difference from 1."""
    return x.float() + 1 if x.device.type != "meta" else x


def decay_rate(x: torch.Tensor, _: Config) -> torch.Tensor:
    """A_log -> A = -exp(A_log)."""
    return -torch.exp(x.float())


def key_part(x: torch.Tensor, config: Config) -> torch.Tensor:
    """The keys' part of kv_b, [heads, kv_lora, nope]: absorbed into the query."""
    return _per_head(x, config)[:, : config.int("qk_nope_head_dim")].transpose(1, 2)


def value_part(x: torch.Tensor, config: Config) -> torch.Tensor:
    """The values' part of kv_b, [heads, v_head, kv_lora]."""
    return _per_head(x, config)[:, config.int("qk_nope_head_dim") :]


def _per_head(x: torch.Tensor, config: Config) -> torch.Tensor:
    rows = config.int("qk_nope_head_dim") + config.int("v_head_dim")
    return x.reshape(config.int("num_attention_heads"), rows, x.shape[-1])


def half(index: int) -> Change:
    """One half of the rows [experts, rows, cols] or [rows, cols]: gate stands before up."""

    def change(x: torch.Tensor, _: Config) -> torch.Tensor:
        return x.chunk(2, dim=-2)[index]

    return change


def every_other(index: int) -> Change:
    """Every second row of [experts, rows, ...]: gate and up stand row by row in turn."""

    def change(x: torch.Tensor, _: Config) -> torch.Tensor:
        return x[:, index::2]

    return change


def turned(change: Change) -> Change:
    """The change after [experts, cols, rows] became [experts, rows, cols]."""

    def both(x: torch.Tensor, config: Config) -> torch.Tensor:
        return change(x.transpose(1, 2), config)

    return both


def delta_part(part: str) -> Change:
    """Of Qwen3-Next's qkvz, grouped by key head: "qkv" as all q, all k, all v, or "z"."""

    def change(x: torch.Tensor, config: Config) -> torch.Tensor:
        n_keys, key = config.int("linear_num_key_heads"), config.int("linear_key_head_dim")
        value = config.int("linear_num_value_heads") // n_keys * config.int("linear_value_head_dim")
        grouped = x.reshape(n_keys, 2 * key + 2 * value, x.shape[-1])
        q, k, v, z = torch.split(grouped, [key, key, value, value], dim=1)
        if part == "z":
            return z.reshape(-1, x.shape[-1])
        return torch.cat([t.reshape(-1, x.shape[-1]) for t in (q, k, v)])

    return change


def from_fp8(x: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Float8 values [..., rows, cols] times one scale per block -> bfloat16: no format of the file holds them exactly in as few bits."""
    rows, cols = x.shape[-2:]
    wide = scale.float().repeat_interleave(block[0], -2)[..., :rows, :].repeat_interleave(block[1], -1)[..., :cols]
    return (x.float() * wide).to(torch.bfloat16)


def to_mxfp4_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Packed nibbles uint8 [..., n, 16] and scales uint8 [..., n] -> GGUF's blocks uint8 [..., n, 17], value for value.

    A checkpoint puts elements 2 i and 2 i + 1 into byte i (OCP MX v1.0 layout as transformers stores it); GGUF puts i and i + 16 there.
    """
    nibbles = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)  # [..., n, 32] in order
    packed = nibbles[..., :16] | nibbles[..., 16:] << 4
    return torch.cat([scales.unsqueeze(-1), packed], dim=-1)
