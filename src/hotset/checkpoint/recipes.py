"""Which GGUF tensors a checkpoint becomes: the name, shape and type of each, and the stored tensors that it is made of."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hotset.checkpoint.families import COMMON, ENDS, Family, Names, Outputs
from hotset.checkpoint.scales import (
    FP8_KINDS,
    FP8_SCALE,
    PACKED,
    PACKED_SCALES,
    block_size,
    check_scales,
    is_scale,
)  # fmt: skip
from hotset.checkpoint.shards import Shards
from hotset.checkpoint.values import Change, from_fp8, same, to_mxfp4_blocks
from hotset.errors import FileError, UnsupportedError
from hotset.gguf import TYPES_BY_NAME, GGMLType, TensorInfo

if TYPE_CHECKING:
    from hotset.checkpoint.config import Config

LAYER = re.compile(r"layers\.(\d+)\.(.+)")
EXPERT = re.compile(r"experts\.(\d+)\.")
# Wrappers around the language model of a larger one, and what is computed anew or is no part of it.
PREFIXES = re.compile(r"^(model\.)?(language_model\.)?(model\.)?")
LEFT_OUT = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|visual\.|vision_tower\.|vision_model\.|multi_modal_projector\.|mtp\.)"
)
# What the engine wants in float32, whatever the checkpoint's format: small, and it decides much.
FLOATS = re.compile(
    r"\.(ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d|shortconv\.conv)\.weight$|_norm\.|\.bias$|\.ssm_a$|_sinks\."
)
KINDS = {"F32": "F32", "F16": "F16", "BF16": "BF16"} | dict.fromkeys(FP8_KINDS, "BF16")


@dataclass(frozen=True)
class Recipe:
    """A GGUF tensor: its place in the file's order is that of `info`; `sources` in order, stacked where there are experts."""

    info: TensorInfo
    sources: tuple[str, ...]
    change: Change
    stacked: bool


@dataclass(frozen=True)
class _Piece:
    name: str
    expert: int | None
    source: str
    change: Change


def recipes(shards: Shards, family: Family, config: Config) -> dict[str, Recipe]:
    """All tensors by GGUF name. UnsupportedError names every stored tensor that the family does not know."""
    pieces: dict[str, list[_Piece]] = defaultdict(list)
    unknown = []
    n_layers = config.int("num_hidden_layers")
    for source in shards.stored:
        if LEFT_OUT.search(source) or is_scale(source, shards):
            continue
        is_lone = source.endswith((FP8_SCALE, PACKED_SCALES))
        found = None if is_lone else _pieces(source, family, n_layers)
        if found is None:
            unknown.append(source)
        for piece in found or ():
            pieces[piece.name].append(piece)
    if unknown:
        raise UnsupportedError(
            shards.folder, "tensors", f"not known of {family.architecture}: {', '.join(unknown[:12])}", value=unknown
        )
    return {name: _recipe(name, parts, shards, config) for name, parts in pieces.items()}


def _pieces(source: str, family: Family, n_layers: int) -> list[_Piece] | None:
    """The GGUF tensors that a stored one goes into; None where its name is unknown. Layers past the last predict more than one token: left out."""
    short = PREFIXES.sub("", source)
    match = LAYER.match(short)
    if match is None:
        outputs = _outputs(short, {**ENDS, **family.ends})
        return None if outputs is None else [_Piece(name, None, source, change) for name, change in outputs]
    layer, rest = int(match[1]), match[2]
    if layer >= n_layers:
        return []
    numbered = EXPERT.search(rest)
    outputs = _outputs(EXPERT.sub("experts.E.", rest), {**COMMON, **family.names})
    if outputs is None:
        return None
    expert = int(numbered[1]) if numbered else None
    return [_Piece(f"blk.{layer}.{name}", expert, source, change) for name, change in outputs]


def _outputs(name: str, names: Names) -> Outputs | None:
    stem, _, ending = name.rpartition(".")
    for key in (name, stem):
        found = names.get(key)
        if isinstance(found, tuple):
            return found
        if found is not None:
            return ((found if key == name else f"{found}.{ending}", same),)
    return None


def _recipe(name: str, parts: list[_Piece], shards: Shards, config: Config) -> Recipe:
    stacked = parts[0].expert is not None
    if stacked:
        parts = sorted(parts, key=lambda piece: piece.expert or 0)
        numbers = [piece.expert for piece in parts]
        if numbers != list(range(len(parts))):
            raise FileError(
                shards.folder,
                name,
                f"experts {numbers} are there, not each of 0 to {len(parts) - 1} once",
                value=numbers,
            )
    elif len(parts) > 1:
        sources = [piece.source for piece in parts]
        raise FileError(shards.folder, name, f"several tensors would fill it: {', '.join(sources)}", value=sources)
    shapes = {_shape(piece, shards, config) for piece in parts}
    if len(shapes) > 1:
        raise FileError(shards.folder, name, f"its experts differ in shape: {sorted(shapes)}", value=sorted(shapes))
    shape = (len(parts), *shapes.pop()) if stacked else shapes.pop()
    for piece in parts:
        check_scales(piece.source, shards, config)
    kinds = {_kind(name, piece.source, shape, shards) for piece in parts}
    if len(kinds) > 1:
        formats = sorted(kind.name for kind in kinds)
        raise FileError(
            shards.folder, name, f"its experts differ in number format: {', '.join(formats)}", value=formats
        )
    kind = kinds.pop()
    info = TensorInfo(name, shape, kind, math.prod(shape[:-1]) * kind.row_bytes(shape[-1]), 0, 0)
    return Recipe(info, tuple(piece.source for piece in parts), parts[0].change, stacked)


def _shape(piece: _Piece, shards: Shards, config: Config) -> tuple[int, ...]:
    stored = shards.stored[piece.source].shape
    if piece.source.endswith(PACKED):
        stored = (*stored[:-2], stored[-2] * 32)
    return tuple(piece.change(torch.empty(stored, device="meta"), config).shape)


def _kind(name: str, source: str, shape: tuple[int, ...], shards: Shards) -> GGMLType:
    if source.endswith(PACKED):
        return TYPES_BY_NAME["MXFP4"]
    kind = shards.stored[source].kind
    if kind not in KINDS:
        raise UnsupportedError(
            shards.folder,
            source,
            f"its number format {kind} is not supported",
            value=kind,
            hint=f"known are {', '.join(KINDS)}",
        )
    return TYPES_BY_NAME["F32" if len(shape) == 1 or FLOATS.search(name) else KINDS[kind]]


def make(recipe: Recipe, shards: Shards, config: Config) -> torch.Tensor:
    """The bytes of a recipe's tensor, uint8 [n_bytes]."""
    parts = [recipe.change(_values(source, shards, config), config) for source in recipe.sources]
    values = torch.stack(parts) if recipe.stacked else parts[0]
    if recipe.info.ggml_type.name != "MXFP4":
        values = values.to(
            {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[recipe.info.ggml_type.name]
        )
    return values.contiguous().view(torch.uint8).reshape(-1)


def _values(source: str, shards: Shards, config: Config) -> torch.Tensor:
    """A stored tensor in a format that torch computes with; of packed blocks the bytes."""
    if source.endswith(PACKED):
        blocks = to_mxfp4_blocks(shards.read(source), shards.read(source.removesuffix(PACKED) + PACKED_SCALES))
        return blocks.flatten(-2)
    values = shards.read(source)
    if source + FP8_SCALE not in shards.stored:
        return values
    return from_fp8(values, shards.read(source + FP8_SCALE), block_size(config))
