"""`hotset inspect`: what a model file is, without loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hotset.bench.units import count_text, percent_text, size_text
from hotset.cli import options
from hotset.cli.output import held_warnings, loading_bar, printable, put, put_json

if TYPE_CHECKING:
    from hotset.cli.inspection import Inspection, Needs
    from hotset.plan.planner import VramRow

Row = tuple[str, str]


def inspect(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    metadata: Annotated[bool, typer.Option("--metadata", help="Show the file's metadata too.")] = False,
    all_archs: Annotated[
        bool, typer.Option("--all-archs", help="List the architectures that hotset runs, and where; no file is needed.")
    ] = False,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:
    """Show a file's architecture, experts, formats, bytes, and what fits which VRAM; nothing is loaded."""
    del verbose  # read where bugs are reported
    from hotset.checkpoint import open_model

    if all_archs:
        show_architectures(as_json=json)
        return
    from hotset.cli.inspection import facts, header_numbers, inspect_file, metadata_rows
    from hotset.engine.loading import resolve

    with loading_bar() as progress:
        path = resolve(options.chosen_model(model, model_option, hf_repo), progress)
    with held_warnings(), open_model(path) as file:
        inspection = inspect_file(file)
        if json:
            put_json(facts(inspection, with_metadata=metadata))
            return
        show(file_rows(inspection))
        if inspection.needs is None:
            put(f"hotset cannot run this file: {printable(inspection.problem or '')}\n\n")
            show([(key, f"{value:,}") for key, value in header_numbers(file.metadata)])
        else:
            show(model_rows(inspection.needs))
        show(format_rows(inspection))
        if inspection.needs:
            show_vram(inspection.needs)
        if metadata:
            show([(key, f"{kind} {value}") for key, kind, value in metadata_rows(file.metadata)])


def show_architectures(*, as_json: bool) -> None:
    """Every architecture with models that use it and where it runs."""
    from hotset.model.listing import architecture_rows

    rows = architecture_rows()
    if as_json:
        put_json({name: {"models": models, "runs_on": status.split(", ")} for name, models, status in rows})
    else:
        show([(name, f"{status:8}  {models}") for name, models, status in rows])


def show(rows: list[Row]) -> None:
    """Two columns on stdout, and an empty line."""
    if not rows:
        return
    width = max(len(name) for name, _ in rows)
    put("".join(f"{printable(name):{width}}  {printable(value)}\n" for name, value in rows) + "\n")


def file_rows(i: Inspection) -> list[Row]:
    file = i.file
    parts = f"{len(file.parts)} parts, " if len(file.parts) > 1 else ""
    return [
        ("file", f"{file.path} ({parts}GGUF version {file.version}, {size_text(file.file_bytes)})"),
        ("model", i.name),
        ("architecture", i.architecture),
        ("tensors", f"{len(file.tensors):,}: {count_text(i.n_parameters)} parameters in {size_text(file.total_bytes)}"),
    ]


def model_rows(needs: Needs) -> list[Row]:
    c, t = needs.config, needs.traffic
    return [
        ("layers", f"{c.n_layers}, width {c.d_model:,}, {c.n_heads} heads of {c.d_head}, {c.n_kv_heads} for keys and values"),
        ("vocabulary", f"{c.n_vocab:,}"),
        ("context", f"{c.n_ctx_train:,}, by default {needs.n_ctx:,}"),
        *expert_rows(needs),
        ("all else", size_text(t.dense)),
        ("read per token", f"{size_text(t.per_token)}: {size_text(t.dense_read)} always, {size_text(t.spans_read)} of picked experts"),
        ("KV cache per token", f"{size_text(t.kv_per_token)} (float16)"),
    ]  # fmt: skip


def expert_rows(needs: Needs) -> list[Row]:
    c, t = needs.config, needs.traffic
    if not needs.span_bytes:
        return [("experts", "none: a dense model")]
    low, high, n = min(needs.span_bytes), max(needs.span_bytes), len(needs.span_bytes)
    span = size_text(low) if low == high else f"{size_text(low)} to {size_text(high)}, by layer"
    where = "per layer" if n == c.n_layers else f"in each of {n} layers"
    return [
        ("experts", f"{c.n_experts} {where}, {c.n_picks} picked, width {c.d_expert:,}"),
        ("one expert", span),
        ("one layer's experts", size_text(t.bank / n)),
        ("all experts", size_text(t.bank)),
    ]


def format_rows(i: Inspection) -> list[Row]:
    from hotset.cli.inspection import formats_text

    rows = [(role, formats_text(by_format)) for role, by_format in i.formats.items()]
    if "output" not in i.formats and "embedding" in i.formats:
        rows.append(("output", "the embedding"))
    return rows


def show_vram(needs: Needs) -> None:
    from hotset.engine.memory import CHUNK_SHARE, RESERVE, RESERVE_SHARE
    from hotset.plan.planner import ASSUMED_CONTEXT, ASSUMED_SCRATCH

    show([(f"{row.gib} GiB of VRAM", vram_text(row, needs.config.n_experts)) for row in needs.vram])
    put(
        f"assumed: {size_text(ASSUMED_CONTEXT)} for the CUDA context, {size_text(ASSUMED_SCRATCH)}, the logits and up to "
        f"{percent_text(CHUNK_SHARE)} for prompts as scratch, {size_text(RESERVE)} or {percent_text(RESERVE_SHARE)} left free, "
        f"a context of {needs.n_ctx:,}\n\n"
    )


def vram_text(row: VramRow, n_experts: int) -> str:
    if row.slots is None:
        return "too small, even without a single expert cached"
    low, high = row.slots
    if low == n_experts:
        return "all experts resident"
    slots = str(low) if low == high else f"{low} to {high}"
    return f"{slots} of {n_experts} experts per layer ({percent_text(row.fraction)})"
