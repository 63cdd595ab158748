"""Timing of functions, and the rows of results."""

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cpaan.bench.scales import Scale
from cpaan.core.provenance import describe_run
from cpaan.core.randomness import new_rng

BenchRow = dict[str, Any]
"""One measurement: the keys of `Bench.row`, null where not applicable, and further keys."""

_SLOW_SECONDS = 2.0
"""Calls slower than this have no warm-up, which would take long and change little."""


class Subject(NamedTuple):
    """A function to time."""

    function: Callable[[], object]
    num_units: int = 1
    """Number of units, such as episodes, in one call."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds per unit in each round."""

    times_ms: Sequence[float]
    peak_memory_mb: float | None = None
    """Peak memory that torch allocated on the GPU during a call, in MiB; None on the CPU."""

    def times(self, factor: float) -> "Timing":
        """Return the timing of ``factor`` times the work."""
        return Timing([factor * each for each in self.times_ms], self.peak_memory_mb)

    def plus(self, other: "Timing") -> "Timing":
        """Return the timing of both in sequence, over the rounds that both have."""
        peaks = [peak for peak in (self.peak_memory_mb, other.peak_memory_mb) if peak is not None]
        sums = [a + b for a, b in zip(self.times_ms, other.times_ms, strict=False)]
        return Timing(sums, max(peaks, default=None))

    def figures(self) -> BenchRow:
        """Return the median, interquartile range, minimum and number of the times."""
        first, median, third = np.quantile(self.times_ms, [0.25, 0.5, 0.75]).tolist()
        return {
            "ms": median,
            "spread_ms": third - first,
            "best_ms": min(self.times_ms),
            "repeats": len(self.times_ms),
            "peak_memory_mb": self.peak_memory_mb,
        }


@dataclass(frozen=True)
class Peaks:
    """Peak performance of the device, measured in the same run."""

    flop_per_second: float
    """Speed of a large matrix product, in the lowest precision that training uses there."""
    bytes_per_second: float
    """Bandwidth of a large copy, read and written."""

    def floor_ms(self, flop: float, num_bytes: float) -> float:
        """Return the least time of this arithmetic and traffic if they overlap fully."""
        return 1e3 * max(flop / self.flop_per_second, num_bytes / self.bytes_per_second)


def measure_peaks(device: torch.device) -> Peaks:
    """Time a large matrix product and a large copy, far beyond the caches; return the best."""
    is_cuda = device.type == "cuda"
    size, num_bytes = (8192, 2**30) if is_cuda else (1536, 2**28)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    # Random numbers, because a GPU is faster with equal ones.
    left = torch.randn(size, size, generator=new_rng(0, device=device), device=device, dtype=dtype)
    source = torch.zeros(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    product = min(_time_once(lambda: left @ left, device)[0] for _ in range(8))
    copying = min(_time_once(lambda: target.copy_(source), device)[0] for _ in range(8))
    return Peaks(2 * size**3 / product, 2 * num_bytes / copying)


def interleave(
    subjects: Mapping[str, Subject], device: torch.device, *, repeats: int, most_seconds: float
) -> dict[str, Timing]:
    """Time functions in turn, round after round, so that other load affects all equally.

    Measures wall time, with the GPU synchronised before and after. Each function has two warm-up
    calls, unless it is slow. At most ``repeats`` calls within ``most_seconds`` follow, but at least
    one. A function that compiles kernels must have been called before.
    """
    measured: dict[str, list[float]] = {name: [] for name in subjects}
    spent = dict.fromkeys(subjects, 0.0)
    peaks: dict[str, list[float]] = {name: [] for name in subjects}
    for round_number in range(2 + repeats):
        for name, (function, num_units) in subjects.items():
            times = measured[name]
            if len(times) == repeats or (times and spent[name] > most_seconds):
                continue
            seconds, peak = _time_once(function, device)
            spent[name] += seconds
            peaks[name] += [] if peak is None else [peak]
            if round_number >= 2 or seconds > _SLOW_SECONDS:
                times.append(1e3 * seconds / num_units)
    return {name: Timing(measured[name], max(peaks[name], default=None)) for name in subjects}


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
    """One run of a benchmark: its options and its rows so far."""

    device: torch.device
    scale: Scale
    seed: int
    say: Callable[[str], None]
    only: str | None = None
    """Text that the names of measured rows must contain."""
    keep: Callable[[Sequence[BenchRow]], None] = lambda rows: None
    """Called with all rows after each new row, so that an interrupted run keeps its rows."""
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

    @cached_property
    def peaks(self) -> Peaks:
        """Peak performance of the device, measured once."""
        peaks = measure_peaks(self.device)
        speed, traffic = peaks.flop_per_second / 1e12, peaks.bytes_per_second / 1e9
        self.say(f"the device at best: {speed:.3g} TFLOP/s, {traffic:.3g} GB/s")
        return peaks

    def row(
        self,
        name: str,
        ours: Timing,
        plain: Timing | None = None,
        *,
        work: tuple[float, float] | None = None,
        relative_error: float | None = None,
        **more: Any,
    ) -> None:
        """Add a row with these timings, further keys and the description of the run.

        The floor is the least time of ``work``, in FLOP and bytes.
        """
        own = ours.figures()
        other = plain.figures() if plain else dict.fromkeys(own)
        floor_ms = self.peaks.floor_ms(*work) if work else None
        row: BenchRow = {
            "name": name,
            "device": self.device.type,
            "scale": self.scale.name,
            "ours_ms": own["ms"],
            "plain_ms": other["ms"],
            "ratio": other["ms"] / own["ms"] if plain else None,
            "relative_error": relative_error,
            "floor_ms": floor_ms,
            "floor_ratio": own["ms"] / floor_ms if floor_ms else None,
            "peak_memory_mb": own["peak_memory_mb"],
            "ours_spread_ms": own["spread_ms"],
            "ours_best_ms": own["best_ms"],
            "repeats": own["repeats"],
            **{f"plain_{key}": other[key] for key in own if key != "ms"},
            **more,
            "seed": self.seed,
            **self.about,
        }
        self.say(f"{name}: {own['ms']:.4g} ms")
        self.rows.append(row)
        self.keep(self.rows)


def _processor() -> str:
    """Return the name of the processor, if known."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    return next(names, platform.machine())


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
    "floor_ms": "floor ms",
    "floor_ratio": "over floor",
    "peak_memory_mb": "peak MiB",
}


def table(rows: Sequence[BenchRow]) -> str:
    """Return rows as text."""
    width = max(len(row["name"]) for row in rows) + 2
    lines = ["name".ljust(width) + "".join(title.rjust(11) for title in _TITLES.values())]
    for row in rows:
        cells = ("-" if row[key] is None else f"{row[key]:.4g}" for key in _TITLES)
        lines.append(row["name"].ljust(width) + "".join(cell.rjust(11) for cell in cells))
    return "\n".join(lines)
