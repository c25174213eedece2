"""Plots of a study as PNG files, and one HTML page that holds them with the table. Needs Matplotlib, which is read when it is used."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import InputError
from hotset.lab.needs import NEEDED_RATES, expert_uses, reuse_distances, slots_for

if TYPE_CHECKING:
    from pathlib import Path

    from hotset.lab.study import Outcome, Study

DPI = 110
# Ten colours, then again with another line.
LINES = ("-", "--", ":")
STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ccc}img{max-width:100%}"
HEADERS = ("policy", "pool", "slots", "hit rate", "95 % interval", "byte hit rate", "bytes per token", "below Belady")


def check_outputs(folder: Path | None, page: Path | None) -> None:
    """InputError where plots or a page could not be made or written: better known before a long replay than after it."""
    if folder is None and page is None:
        return
    _figure_type()
    if folder is not None:
        _make_folder(folder)
    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise InputError(f"report {page}: it is a folder, or its folder is not there; name a file that can be written")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"plots {folder}: {error.strerror}; name a folder that can be written") from error


def _figure_type() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need Matplotlib: pip install 'hotset[plots]'") from error
    return Figure


def write_plots(study: Study, outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write hit-rates.png, reuse.png, heat.png and needs.png."""
    _make_folder(folder)
    try:
        for name, content in plots(study, outcomes).items():
            (folder / f"{name}.png").write_bytes(content)
    except OSError as error:
        raise InputError(f"plots {folder}: {error.strerror}; name a folder that can be written") from error


def write_report(study: Study, outcomes: Sequence[Outcome], path: Path, title: str) -> None:
    """Write one HTML page that needs nothing else."""
    trace = study.trace
    shape = f"{trace.n_tokens:,} tokens of {len(trace.offsets) - 1} answers, {trace.n_layers} layers, {trace.n_experts} experts, {trace.k} picked"
    images = "".join(
        f'<h2>{name.replace("-", " ")}</h2><img alt="{name}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for name, png in plots(study, outcomes).items()
    )
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in _cells(o))}</tr>" for o in outcomes)
    head = "".join(f"<th>{h}</th>" for h in HEADERS)
    name = html.escape(title)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{STYLE}</style>'
        f"<h1>{name}</h1><p>{shape}. Replayed from a cold start; one token of one layer is one request; intervals are over answers.</p>"
        f"{images}<h2>all results</h2><table><tr>{head}</tr>{rows}</table></html>\n"
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"report {path}: {error.strerror}; name a file that can be written") from error


def _cells(o: Outcome) -> tuple[str, ...]:
    def percent(x: float | None) -> str:
        return "-" if x is None else f"{100 * x:.2f} %"

    between = "-" if o.hit_rate_95 is None else " to ".join(percent(x) for x in o.hit_rate_95)
    fetched = "-" if o.bytes_per_token is None else f"{o.bytes_per_token:,.0f}"
    rates = (percent(o.hit_rate), between, percent(o.byte_hit_rate), fetched, percent(o.regret))
    return (str(o.policy), o.pool, percent(o.slots), *rates)


def plots(study: Study, outcomes: Sequence[Outcome]) -> dict[str, bytes]:
    """Every plot as PNG."""
    figure_type = _figure_type()
    drawn = {}
    drawings: dict[str, Callable[[Any, Study], None]] = {
        "hit-rates": partial(_hit_rates, outcomes=outcomes),
        "reuse": _reuse,
        "heat": _heat,
        "needs": _needs,
    }
    for name, draw in drawings.items():
        figure = figure_type(figsize=(9, 5.5), layout="constrained")
        draw(figure, study)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=DPI)
        drawn[name] = out.getvalue()
    return drawn


def _hit_rates(figure: Any, study: Study, outcomes: Sequence[Outcome]) -> None:
    pools = list(dict.fromkeys(o.pool for o in outcomes))
    for axes, pool in zip(np.atleast_1d(figure.subplots(1, len(pools), sharey=True)), pools, strict=True):
        mine = [o for o in outcomes if o.pool == pool]
        for i, policy in enumerate(dict.fromkeys(o.policy for o in mine)):
            line = [o for o in mine if o.policy == policy]
            x, y = [100 * o.slots for o in line], [100 * (o.hit_rate or 0) for o in line]
            axes.plot(x, y, marker=".", color=f"C{i % 10}", linestyle=LINES[i // 10 % len(LINES)], label=str(policy))
        axes.axvline(
            100 * study.trace.k / study.trace.n_experts, color="grey", linestyle=":", label="one token's demand"
        )
        axes.set(title=f"pool: {pool}", xlabel="slots, % of experts", ylim=(0, 100))
    figure.axes[0].set_ylabel("hit rate, %")
    figure.axes[-1].legend(fontsize="small")


def _reuse(figure: Any, study: Study) -> None:
    edges, counts = reuse_distances(study.trace)
    axes = figure.subplots()
    axes.stairs(100 * counts / max(counts.sum(), 1), edges, fill=True)
    axes.set(
        xscale="log", xlabel="tokens since the expert was last picked in its layer", ylabel="% of picks that repeat one"
    )


def _heat(figure: Any, study: Study) -> None:
    axes = figure.subplots()
    share = 100 * expert_uses(study.trace) / max(study.trace.n_tokens, 1)
    image = axes.imshow(share, aspect="auto", interpolation="nearest", cmap="magma")
    axes.set(xlabel="expert", ylabel="layer")
    figure.colorbar(image, label="% of tokens that pick it")


def _needs(figure: Any, study: Study) -> None:
    axes = figure.subplots()
    curves = study.curves()
    for rate in NEEDED_RATES:
        axes.plot(slots_for(curves, study.needed.sum(0), rate), marker=".", label=f"{rate:.0%} hits")
    axes.set(xlabel="layer", ylabel="slots that lrfu:16 needs", ylim=(0, study.trace.n_experts))
    axes.legend()
