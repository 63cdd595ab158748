"""Timing, and the rows of measurements."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from cpaan.bench.scales import Scale
from cpaan.core.provenance import describe_run

BenchRow = dict[str, Any]
"""One measurement: the keys of `Bench.row`, null where one does not apply, and further ones."""

_SLOW_SECONDS = 2.0
"""A slower call counts from the first on: a warm-up would be a long wait and change little."""


@dataclass(frozen=True)
class Subject:
    """A function to be timed."""

    function: Callable[[], object]
    count: int = 1
    """Units, such as episodes, of one call."""
    is_warm: bool = True
    """Whether the first call counts if it is slow. Otherwise it compiles kernels, for example."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one unit."""

    median_ms: float
    spread_ms: float
    """From the first quartile to the third."""
    best_ms: float
    repeats: int
    peak_memory_mb: float | None
    """Largest memory that torch had allocated on the GPU during a call, in MiB; None on the CPU."""

    def times(self, factor: float) -> "Timing":
        """Return the timing of ``factor`` times the work."""
        return replace(
            self,
            median_ms=self.median_ms * factor,
            spread_ms=self.spread_ms * factor,
            best_ms=self.best_ms * factor,
        )

    def plus(self, other: "Timing") -> "Timing":
        """Return the timing of both, one after the other."""
        peaks = [peak for peak in (self.peak_memory_mb, other.peak_memory_mb) if peak is not None]
        return Timing(
            median_ms=self.median_ms + other.median_ms,
            spread_ms=self.spread_ms + other.spread_ms,
            best_ms=self.best_ms + other.best_ms,
            repeats=min(self.repeats, other.repeats),
            peak_memory_mb=max(peaks, default=None),
        )


def interleave(
    subjects: Mapping[str, Subject], device: torch.device, *, repeats: int, most_seconds: float
) -> dict[str, Timing]:
    """Time functions in turn, round after round, so that a busy machine disturbs all alike.

    Wall time, with the GPU synchronised before and after. Each function has two warm-up calls,
    unless it is slow, then at most ``repeats`` calls within ``most_seconds``, but at least one.
    """
    measured: dict[str, list[float]] = {name: [] for name in subjects}
    spent = dict.fromkeys(subjects, 0.0)
    peaks: dict[str, float | None] = dict.fromkeys(subjects)
    for round_number in range(2 + repeats):
        for name, subject in subjects.items():
            times = measured[name]
            if len(times) == repeats or (times and spent[name] > most_seconds):
                continue
            seconds, peak = _time_once(subject.function, device)
            spent[name] += seconds
            if peak is not None:
                peaks[name] = max(peak, peaks[name] or 0.0)
            is_slow = seconds > _SLOW_SECONDS and (subject.is_warm or round_number > 0)
            if round_number == 0 and not subject.is_warm:
                spent[name] = 0.0
            if round_number >= 2 or is_slow:
                times.append(1e3 * seconds / subject.count)
    return {name: summarise(times, peaks[name]) for name, times in measured.items()}


def summarise(times_ms: Sequence[float], peak_memory_mb: float | None = None) -> Timing:
    """Return the median and the spread of times."""
    spread = 0.0
    if len(times_ms) > 1:
        first, _, third = statistics.quantiles(times_ms, n=4, method="inclusive")
        spread = third - first
    median = statistics.median(times_ms)
    return Timing(median, spread, min(times_ms), len(times_ms), peak_memory_mb)


def _time_once(function: Callable[[], object], device: torch.device) -> tuple[float, float | None]:
    """Return seconds, and the peak memory on a GPU in MiB."""
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    function()
    if is_cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    return seconds, torch.cuda.max_memory_allocated(device) / 2**20 if is_cuda else None


@dataclass(frozen=True, eq=False)
class Bench:
    """One run of a benchmark: its options, and the rows so far."""

    device: torch.device
    scale: Scale
    seed: int
    say: Callable[[str], None]
    only: str | None = None
    """Measure only rows whose name contains this."""
    keep: Callable[[Sequence[BenchRow]], None] = lambda rows: None
    """Called with all rows after each, so that an interrupted run keeps its rows."""
    rows: list[BenchRow] = field(default_factory=list)

    @cached_property
    def about(self) -> dict[str, Any]:
        """Description of the run and the machine."""
        is_cuda = self.device.type == "cuda"
        return {
            **describe_run(),
            "device_name": torch.cuda.get_device_name(self.device) if is_cuda else _processor(),
            "num_cores": len(os.sched_getaffinity(0)),
            "num_threads": torch.get_num_threads(),
        }

    def wants(self, name: str) -> bool:
        """Return whether to measure a row of this name."""
        return self.only is None or self.only in name

    def time(self, **subjects: Subject) -> dict[str, Timing]:
        """Time functions in turn, with the repeats of the scale."""
        repeats, most_seconds = self.scale.repeats, self.scale.most_seconds
        return interleave(subjects, self.device, repeats=repeats, most_seconds=most_seconds)

    def row(
        self,
        name: str,
        ours: Timing,
        plain: Timing | None = None,
        *,
        relative_error: float | None = None,
        **more: Any,
    ) -> None:
        """Add a row with these figures, further keys and the description of the run."""

        def of_plain(key: str) -> Any:
            return None if plain is None else getattr(plain, key)

        row: BenchRow = {
            "name": name,
            "device": self.device.type,
            "scale": self.scale.name,
            "ours_ms": ours.median_ms,
            "plain_ms": of_plain("median_ms"),
            "ratio": None if plain is None else plain.median_ms / ours.median_ms,
            "relative_error": relative_error,
            "peak_memory_mb": ours.peak_memory_mb,
            "ours_spread_ms": ours.spread_ms,
            "plain_spread_ms": of_plain("spread_ms"),
            "ours_best_ms": ours.best_ms,
            "plain_best_ms": of_plain("best_ms"),
            "repeats": ours.repeats,
            "plain_repeats": of_plain("repeats"),
            "plain_peak_memory_mb": of_plain("peak_memory_mb"),
            **more,
            "seed": self.seed,
            **self.about,
        }
        figures = {"plain_ms": "plain", "ratio": "ratio", "relative_error": "error"}
        said = [f"{title} {row[key]:.4g}" for key, title in figures.items() if row[key] is not None]
        self.say(", ".join([f"{name}: {row['ours_ms']:.4g} ms", *said]))
        self.rows.append(row)
        self.keep(self.rows)


def _processor() -> str:
    """Return the name of the processor, if the system knows it."""
    try:
        with open("/proc/cpuinfo") as file:
            named = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        named = []
    return named[0] if named else platform.machine()


def to_json(rows: Sequence[BenchRow]) -> str:
    """Return rows as JSON, with null and without NaN."""
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


_TITLES = {
    "ours_ms": "ours ms",
    "ours_spread_ms": "spread",
    "plain_ms": "plain ms",
    "plain_spread_ms": "spread",
    "ratio": "ratio",
    "relative_error": "error",
    "peak_memory_mb": "peak MiB",
}


def table(rows: Sequence[BenchRow]) -> str:
    """Return rows as text, and the growth of the cost with each size that was varied."""
    width = max(len(row["name"]) for row in rows) + 2
    lines = ["name".ljust(width) + "".join(title.rjust(11) for title in _TITLES.values())]
    for row in rows:
        cells = ("-" if row[key] is None else f"{row[key]:.4g}" for key in _TITLES)
        lines.append(row["name"].ljust(width) + "".join(cell.rjust(11) for cell in cells))
    return "\n".join([*lines, *growth(rows)])


def growth(rows: Sequence[BenchRow]) -> list[str]:
    """Return a line for each varied size: the power of it with which the cost grows.

    The slope of a least-squares line through logarithms. Rows with the same ``family`` whose
    ``varied`` names the size belong together.
    """
    families: dict[tuple[str, str], list[BenchRow]] = {}
    for row in rows:
        for key in row.get("varied", ()):
            families.setdefault((row["family"], key), []).append(row)
    lines = []
    for (family, key), members in families.items():
        sizes = [row[key] for row in members]
        if len(set(sizes)) < 2:
            continue
        powers = {
            side: statistics.linear_regression(
                [math.log(size) for size in sizes],
                [math.log(row[f"{side}_ms"]) for row in members],
            ).slope
            for side in ("ours", "plain")
            if all(row[f"{side}_ms"] for row in members)
        }
        text = ", ".join(f"{side} by the power {power:.2f}" for side, power in powers.items())
        lines.append(f"{family} with {key} from {min(sizes)} to {max(sizes)}: {text}")
    return lines
