"""Results of a benchmark as a table in llama-bench's form, as CSV or as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hotset.bench.runner import Result
from hotset.bench.units import count_text, percent_text, size_text

FORMATS = ("md", "csv", "json", "jsonl")
SWEPT = ("threads", "cache")


@dataclass(frozen=True)
class Setting:
    """What was measured and on what; `per_token` is the bytes of weights a token reads, `read_rate` the machine's bytes per second."""

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

    @property
    def ceiling(self) -> float | None:
        """Decoded tokens per second if reading the weights were all."""
        return self.read_rate / self.per_token if self.read_rate else None


@dataclass(frozen=True)
class Line:
    """One result under one setting."""

    setting: Setting
    result: Result

    @property
    def share(self) -> float | None:
        """Decode speed as a share of the ceiling."""
        ceiling = self.setting.ceiling
        return self.result.mean / ceiling if ceiling and self.result.test.kind == "tg" else None

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
            "hit rate": percent_text(r.hit_rate),
            "MiB/token": f"{r.bytes_per_token / (1 << 20):.2f}",
            "policy": s.policy,
            "of ceiling": percent_text(self.share),
        }

    def facts(self) -> dict[str, Any]:
        """Everything, as plain values."""
        r = self.result
        return {
            **asdict(self.setting),
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
            "bytes_fetched_per_token": r.bytes_per_token,
            "ceiling_tokens_per_s": self.setting.ceiling,
            "share_of_ceiling": self.share,
        }


class Table:
    """Writes lines as they come, in one of FORMATS; `swept` names the settings that vary, which get columns of their own."""

    def __init__(self, form: str, swept: Sequence[str]) -> None:
        self._form = form
        self._hidden = [name for name in SWEPT if name not in swept]
        self._began = False
        self._all: list[dict[str, Any]] = []

    def add(self, line: Line) -> str:
        """The text for one more line; a header comes with the first."""
        self._all.append(line.facts())
        if self._form == "jsonl":
            return json.dumps(line.facts()) + "\n"
        if self._form == "json":
            return ""
        write = markdown_row if self._form == "md" else csv_row
        cells = {
            k: v
            for k, v in (line.cells() if self._form == "md" else flat(line.facts())).items()
            if k not in self._hidden
        }
        head = (
            ""
            if self._began
            else write(list(cells)) + (markdown_row(["---"] * len(cells)) if self._form == "md" else "")
        )
        self._began = True
        return head + write(list(cells.values()))

    @property
    def facts(self) -> list[dict[str, Any]]:
        """All lines as plain values."""
        return self._all


def markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def csv_row(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def flat(facts: Mapping[str, Any]) -> dict[str, str]:
    """Values for CSV: lists with spaces, nothing for None."""
    return {
        key: " ".join(map(str, v)) if isinstance(v, list) else "" if v is None else str(v) for key, v in facts.items()
    }
