"""What a model file holds and needs, from its header alone: what `hotset inspect` shows. Imports neither torch nor Numba."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.errors import HotsetError
from hotset.gguf.metadata import describe
from hotset.plan.planner import PlannedModel, VramRow, vram_row

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.gguf import Metadata, TensorInfo
    from hotset.model.config import ModelConfig
    from hotset.plan.traffic import Traffic

VRAM_GIB = (6, 8, 12, 16, 24)
# Roles in the order in which they are shown; the first pattern that fits a tensor's name says what it is.
ROLES = (
    ("embedding", r"token_embd\.weight"),
    ("attention q", r"blk\.\d+\.attn_q\.weight"),
    ("attention k", r"blk\.\d+\.attn_k\.weight"),
    ("attention v", r"blk\.\d+\.attn_v\.weight"),
    ("attention output", r"blk\.\d+\.attn_output\.weight"),
    ("norms", r"(blk\.\d+\.)?\w*norm\w*\.weight"),
    ("router", r"blk\.\d+\.ffn_gate_inp\.weight"),
    ("experts gate", r"blk\.\d+\.ffn_gate_exps\.weight"),
    ("experts up", r"blk\.\d+\.ffn_up_exps\.weight"),
    ("experts down", r"blk\.\d+\.ffn_down_exps\.weight"),
    ("output", r"output\.weight"),
    ("other", r".*"),
)
Formats = dict[str, dict[str, list[int]]]


@dataclass(frozen=True)
class Needs:
    """What a model that hotset runs is made of and needs."""

    config: ModelConfig
    span_bytes: tuple[int, ...]
    traffic: Traffic
    n_ctx: int
    vram: tuple[VramRow, ...]


@dataclass(frozen=True)
class Inspection:
    """A file's header; `needs` is None, and `problem` says why, where hotset cannot run it."""

    file: ModelFile
    architecture: str
    name: str
    formats: Formats
    needs: Needs | None
    problem: str | None

    @property
    def n_parameters(self) -> int:
        return sum(t.n_elements for t in self.file.tensors.values())


def inspect_file(file: ModelFile) -> Inspection:
    """Everything about an opened file; what is wrong with the model (not with the file) becomes `problem`."""
    metadata = file.metadata
    try:
        needs, problem = model_needs(file), None
    except HotsetError as error:
        needs, problem = None, str(error)
    return Inspection(
        file=file,
        architecture=metadata.str("general.architecture", "unknown"),
        name=metadata.str("general.name", file.path.stem),
        formats=formats(file.tensors.values()),
        needs=needs,
        problem=problem,
    )


def model_needs(file: ModelFile) -> Needs:
    model = PlannedModel.of(file)
    n_ctx = model.default_ctx
    rows = tuple(vram_row(model, n_ctx, gib) for gib in VRAM_GIB)
    return Needs(model.config, model.span_bytes, model.reads, n_ctx, rows)


def formats(tensors: Iterable[TensorInfo]) -> Formats:
    """Role -> format -> layers that have it (-1 for what belongs to no layer)."""
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for tensor in tensors:
        role = next(name for name, pattern in ROLES if re.fullmatch(pattern, tensor.name))
        layer = re.match(r"blk\.(\d{1,6})\.", tensor.name)
        found[role][tensor.ggml_type.name].add(int(layer[1]) if layer else -1)
    return {
        role: {name: sorted(layers) for name, layers in sorted(found[role].items(), key=lambda item: -len(item[1]))}
        for role, _ in ROLES
        if role in found
    }


def formats_text(by_format: Mapping[str, list[int]]) -> str:
    """Show formats as in "Q4_K, Q6_K in layers 0, 5-7": the most used one first."""
    first, *others = by_format
    return ", ".join([first, *(f"{name} in layers {ranges(by_format[name])}" for name in others)])


def ranges(numbers: list[int]) -> str:
    """[0, 5, 6, 7] -> "0, 5-7"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def header_numbers(metadata: Metadata) -> Iterator[tuple[str, Any]]:
    """The architecture's own plain numbers, for models that hotset cannot run."""
    prefix = f"{metadata.get('general.architecture')}."
    return (
        (key, metadata[key]) for key in metadata if key.startswith(prefix) and isinstance(metadata[key], (int, float))
    )


def metadata_rows(metadata: Metadata) -> list[tuple[str, str, str]]:
    """Key, type and value; long values are described."""
    return [(key, metadata.type_of(key), describe(metadata[key])) for key in metadata]


def facts(inspection: Inspection, *, with_metadata: bool) -> dict[str, Any]:
    """The whole as plain values, as `--json` prints it."""
    file = inspection.file
    result: dict[str, Any] = {
        "path": str(file.path),
        "parts": [str(p) for p in file.parts],
        "version": file.version,
        "file_bytes": file.file_bytes,
        "tensor_bytes": file.total_bytes,
        "n_tensors": len(file.tensors),
        "n_parameters": inspection.n_parameters,
        "architecture": inspection.architecture,
        "name": inspection.name,
        "formats": inspection.formats,
        "supported": inspection.problem is None,
        "problem": inspection.problem,
        "model": needs_facts(inspection.needs) if inspection.needs else None,
    }
    if with_metadata:
        result["metadata"] = {key: {"type": kind, "value": value} for key, kind, value in metadata_rows(file.metadata)}
    return result


def needs_facts(needs: Needs) -> dict[str, Any]:
    c, t = needs.config, needs.traffic
    return {
        "n_layers": c.n_layers,
        "d_model": c.d_model,
        "n_heads": c.n_heads,
        "n_kv_heads": c.n_kv_heads,
        "d_head": c.d_head,
        "n_experts": c.n_experts,
        "n_picks": c.n_picks,
        "d_expert": c.d_expert,
        "n_vocab": c.n_vocab,
        "n_ctx_train": c.n_ctx_train,
        "span_bytes": list(needs.span_bytes),
        "expert_bytes": t.bank,
        "dense_bytes": t.dense,
        "active_bytes_per_token": t.per_token,
        "kv_bytes_per_token": t.kv_per_token,
        "n_ctx": needs.n_ctx,
        "vram": [
            {"gib": r.gib, "fits": r.slots is not None, "slots": r.slots, "fraction": r.fraction} for r in needs.vram
        ],
    }
