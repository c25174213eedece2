"""Results of a benchmark as a table in llama-bench's form, as CSV or as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hotset.bench.markdown import markdown_table
from hotset.bench.runner import Result
from hotset.bench.units import count_text, percent_text, size_text
from hotset.engine.nvml import UNKNOWN, GpuState

FORMATS = ("md", "csv", "json", "jsonl")
# Columns that are shown only where they say something: settings that vary, and what a GPU alone has.
SWEPT = ("threads", "cache")
GPU_ONLY = ("ahead", "ms in misses", "bus GB/s", "VRAM peak")
FORECAST = "forecast"


@dataclass(frozen=True)
class Setting:
    """What was measured and on what.

    `per_token` is the bytes of weights a token reads, `read_rate` what the memory they lie in gives in bytes per second, `bus_rate` what
    pinned copies of a span's size reach. `bus_factor` times every span is fetched; `routing` takes the router's place in decoding.
    """

    model: str
    size: int
    params: int
    backend: str
    threads: int
    cache: str
    policy: str
    active: bool
    per_token: int
    read_rate: float | None
    n_slots: tuple[int, ...] = ()
    n_experts: int = 0
    n_picks: int = 0
    bus_rate: float | None = None
    bus_factor: int = 1
    routing: str | None = None

    @property
    def ceiling(self) -> float | None:
        """Decoded tokens per second if reading the weights were all."""
        return self.read_rate / self.per_token if self.read_rate else None


@dataclass(frozen=True)
class Line:
    """One result under one setting; `resident_s` is the seconds of a decode step with every expert on the GPU, where that was measured.

    `forecast` is the tokens per second that the machine's kept figures promise at the measured hit rate, where there are some; `gpu` how the
    GPU ran, as asked right after the test.
    """

    setting: Setting
    result: Result
    resident_s: float | None = None
    verdict: str = ""
    forecast: float | None = None
    gpu: GpuState | None = None

    @property
    def forecast_error(self) -> float | None:
        """How much more than measured was forecast, as a share."""
        return self.forecast / self.result.mean - 1 if self.forecast and self.result.mean else None

    @property
    def ceiling(self) -> float | None:
        """Decoded tokens per second that bytes and bandwidth allow: a resident step (or reading the weights), then the misses over the bus."""
        s = self.setting
        if self.result.test.kind != "tg" or not (s.ceiling or self.resident_s):
            return None
        step = self.resident_s or 1 / (s.ceiling or 1)
        return 1 / (step + self.missed_bytes / s.bus_rate) if s.bus_rate else 1 / step

    @property
    def share(self) -> float | None:
        """Decode speed as a share of the ceiling."""
        return self.result.mean / self.ceiling if self.ceiling else None

    @property
    def missed_bytes(self) -> float:
        """Bytes over the bus per token."""
        return self.result.bytes_per_token * self.setting.bus_factor

    @property
    def reached_rate(self) -> float | None:
        """Bytes per second that fetches reached; they brought what had not come ahead."""
        ms = self.result.fetch_ms
        return self.result.awaited_bytes * self.setting.bus_factor / ms * 1e3 if ms else None

    def cells(self) -> dict[str, str]:
        """The columns of the table, as text."""
        s, r = self.setting, self.result
        return {
            "model": s.model,
            "size": size_text(s.size),
            "params": count_text(s.params),
            "backend": s.backend,
            "threads": str(s.threads),
            "cache": s.cache,
            "test": r.test.name,
            "t/s": f"{r.mean:.2f} ± {r.deviation:.2f}",
            "first t/s": f"{r.first.rate:.2f}",
            "hit rate": percent_text(r.hit_rate),
            "MiB/token": f"{r.bytes_per_token / (1 << 20):.2f}",
            "ahead": self._ahead_text(),
            "cores": "-" if r.busy_cores is None else f"{r.busy_cores:.1f}",
            "ms in misses": "-" if r.fetch_ms is None else f"{r.fetch_ms:.3f}",
            "bus GB/s": self._bus_text(),
            "VRAM peak": "-" if r.vram_bytes is None else size_text(r.vram_bytes),
            "policy": s.policy,
            "ceiling": "-" if self.ceiling is None else f"{self.ceiling:.2f}",
            "of ceiling": percent_text(self.share),
            FORECAST: "-" if self.forecast is None else f"{self.forecast:.2f}",
        }

    def _ahead_text(self) -> str:
        """As in "5.12 of 30.25": the needed part of what came before it was picked, MiB per token."""
        ahead = self.result.prefetched
        return f"{ahead[0] / (1 << 20):.2f} of {sum(ahead) / (1 << 20):.2f}" if ahead else "-"

    def _bus_text(self) -> str:
        """As in "44.1 of 52.0": reached, and measured as a pinned copy."""
        reached, measured = self.reached_rate, self.setting.bus_rate
        return f"{reached / 1e9:.1f} of {measured / 1e9:.1f}" if reached and measured else "-"

    def facts(self) -> dict[str, Any]:
        """Everything, as plain values."""
        r = self.result
        ahead = r.prefetched or (None, None)
        return {
            **asdict(self.setting),
            "n_slots": list(self.setting.n_slots),
            "test": r.test.name,
            "kind": r.test.kind,
            "n": r.test.n,
            "cold": r.cold,
            "tokens_per_s": r.mean,
            "deviation": r.deviation,
            "median": r.median,
            "spread": r.spread,
            "noisy": r.is_noisy,
            "first_tokens_per_s": r.first.rate,
            "samples_tokens_per_s": r.rates,
            "hit_rate": r.hit_rate,
            "first_hit_rate": r.first.hit_rate,
            "bytes_fetched_per_token": r.bytes_per_token,
            "prefetched_needed_per_token": ahead[0],
            "prefetched_in_vain_per_token": ahead[1],
            "fetch_ms_per_token": r.fetch_ms,
            "fetch_bytes_per_s": self.reached_rate,
            "vram_peak_bytes": r.vram_bytes,
            "resident_step_s": self.resident_s,
            "ceiling_tokens_per_s": self.ceiling,
            "share_of_ceiling": self.share,
            "forecast_tokens_per_s": self.forecast,
            "forecast_error": self.forecast_error,
            "busy_cores": r.busy_cores,
            **(self.gpu or UNKNOWN).facts(),
            "verdict": self.verdict,
        }


class Table:
    """Lines in one of FORMATS; `shown` names those of SWEPT, GPU_ONLY and FORECAST that get columns."""

    def __init__(self, form: str, shown: Sequence[str], lines: Sequence[Line]) -> None:
        self._form = form
        self._hidden = [name for name in (*SWEPT, *GPU_ONLY, FORECAST) if name not in shown]
        self._lines = lines

    @property
    def text(self) -> str:
        """All lines, below a header where the form has one; nothing for "json", which is `facts`."""
        if self._form == "jsonl":
            return "".join(json.dumps(facts) + "\n" for facts in self.facts)
        if self._form == "json":
            return ""
        if self._form == "csv":
            rows = [flat(facts) for facts in self.facts]
            return "".join(csv_row(list(cells)) for cells in (rows[0], *(row.values() for row in rows)))
        cells = [[(k, v) for k, v in line.cells().items() if k not in self._hidden] for line in self._lines]
        return markdown_table([k for k, _ in cells[0]], [[v for _, v in row] for row in cells])

    @property
    def facts(self) -> list[dict[str, Any]]:
        """All lines as plain values."""
        return [line.facts() for line in self._lines]


def csv_row(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Values for CSV: lists with spaces, nothing for None."""
    return {
        key: " ".join(map(str, v)) if isinstance(v, list) else "" if v is None else str(v) for key, v in facts.items()
    }
