"""How things are timed, what a device could do at best, and the rows that come of it."""

import json
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
from cpaan.core.randomness import new_rng

Row = dict[str, Any]

ROW_KEYS = (
    "name",
    "device",
    "scale",
    "ours_ms",
    "plain_ms",
    "ratio",
    "relative_error",
    "floor_ms",
    "peak_memory_mb",
)
"""What every row has, null where a figure does not apply; further keys say what made it."""

_SLOW_SECONDS = 2.0
"""A call that takes longer counts from the first on: a start's cost is lost in it, and a second
call would be a long wait."""


@dataclass(frozen=True)
class Subject:
    """Something to be timed."""

    function: Callable[[], object]
    count: int = 1
    """How many of what is counted, such as episodes, one call does."""
    is_warm: bool = True
    """Whether a first call that takes long is slow by itself, and counts. Otherwise it is the cost
    of a start, such as a kernel's compilation, which later calls do not have."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one of what is counted."""

    median_ms: float
    spread_ms: float
    """From the first quartile to the third."""
    best_ms: float
    """The least, which a busy machine disturbs least."""
    repeats: int
    peak_memory_mb: float | None
    """The most that torch had allocated on the GPU during a call, in MiB, with all that was there
    before; None on the CPU."""

    def times(self, factor: float) -> "Timing":
        """Return the timing of so many times the work, if each part takes as long."""
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
    """Time functions in turn, round after round, so that a slow minute meets all of them.

    A clock of this process before and after, with the GPU waited for both times: what a user
    waits. Two calls of each warm up; of one that is slow by itself, none.

    Args:
        subjects: By name.
        device: What they run on.
        repeats: Measured calls of each, at most.
        most_seconds: For each of them; one that has spent them is called no more, but once.
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
    return Timing(
        median_ms=statistics.median(times_ms),
        spread_ms=spread,
        best_ms=min(times_ms),
        repeats=len(times_ms),
        peak_memory_mb=peak_memory_mb,
    )


def _time_once(function: Callable[[], object], device: torch.device) -> tuple[float, float | None]:
    """Return seconds, and the most memory on a GPU in MiB."""
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


@dataclass(frozen=True)
class Peaks:
    """What the device does at best, measured in the same run."""

    flop_per_second: float
    """Of a large product of matrices, of the narrowest numbers that training multiplies here."""
    bytes_per_second: float
    """Of a large copy: what is read and what is written."""

    def floor_ms(self, flop: float, num_bytes: float) -> float:
        """Return the least time of so much arithmetic and traffic, were they to overlap fully.

        Nothing but the counted work is in it: no starts of kernels, no steps that wait for each
        other. How far off one is says what could at most be gained; to be below it means that the
        device was busier when its best was measured.
        """
        return 1e3 * max(flop / self.flop_per_second, num_bytes / self.bytes_per_second)


def measure_peaks(device: torch.device) -> Peaks:
    """Multiply large matrices and copy a large tensor; the best of several times counts.

    The sizes are far beyond the caches, and large enough for a GPU to be busy all over.
    """
    size, num_bytes = (8192, 2**30) if device.type == "cuda" else (1536, 2**28)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    # Random numbers: a GPU is quicker, by a cooler chip, with those that are all alike.
    left = torch.randn(size, size, generator=new_rng(0, device=device), device=device, dtype=dtype)
    source = torch.zeros(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    product = min(_time_once(lambda: left @ left, device)[0] for _ in range(8))
    copying = min(_time_once(lambda: target.copy_(source), device)[0] for _ in range(8))
    return Peaks(2 * size**3 / product, 2 * num_bytes / copying)


@dataclass(frozen=True, eq=False)
class Bench:
    """What all benchmarks of a run have in common."""

    device: torch.device
    scale: Scale
    seed: int
    say: Callable[[str], None]
    only: str | None = None
    """A part of the names of the rows that are wanted; None: all."""
    keep: Callable[[Sequence[Row]], None] = lambda rows: None
    """Called with all rows so far after each: a run that is stopped has not been for nothing."""
    _rows: list[Row] = field(default_factory=list)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What every row says of the run and the machine that made it."""
        is_cuda = self.device.type == "cuda"
        return {
            **describe_run(),
            "device_name": torch.cuda.get_device_name(self.device) if is_cuda else _processor(),
            "num_cores": len(os.sched_getaffinity(0)),
            "num_threads": torch.get_num_threads(),
        }

    def wants(self, name: str) -> bool:
        """Return whether a row of this name is wanted."""
        return self.only is None or self.only in name

    @cached_property
    def peaks(self) -> Peaks:
        """What the device does at best."""
        peaks = measure_peaks(self.device)
        self.say(
            f"the device at best: {peaks.flop_per_second / 1e12:.3g} TFLOP/s, "
            f"{peaks.bytes_per_second / 1e9:.3g} GB/s"
        )
        return peaks

    def time(self, subjects: Mapping[str, Subject]) -> dict[str, Timing]:
        """Time functions in turn, as often as the scale has it."""
        return interleave(
            subjects,
            self.device,
            repeats=self.scale.repeats,
            most_seconds=self.scale.most_seconds,
        )

    def row(
        self,
        name: str,
        ours: Timing,
        plain: Timing | None,
        *,
        relative_error: float | None = None,
        floor_ms: float | None = None,
        **more: Any,
    ) -> Row:
        """Return one row: the named figures, what else is to be said, and what made them."""
        ratio = None if plain is None else plain.median_ms / ours.median_ms
        row: Row = {
            "name": name,
            "device": self.device.type,
            "scale": self.scale.name,
            "ours_ms": ours.median_ms,
            "plain_ms": None if plain is None else plain.median_ms,
            "ratio": ratio,
            "relative_error": relative_error,
            "floor_ms": floor_ms,
            "peak_memory_mb": ours.peak_memory_mb,
            "floor_ratio": None if floor_ms is None else ours.median_ms / floor_ms,
            "ours_spread_ms": ours.spread_ms,
            "plain_spread_ms": None if plain is None else plain.spread_ms,
            "ours_best_ms": ours.best_ms,
            "plain_best_ms": None if plain is None else plain.best_ms,
            "repeats": ours.repeats,
            "plain_repeats": None if plain is None else plain.repeats,
            "plain_peak_memory_mb": None if plain is None else plain.peak_memory_mb,
            **more,
            "seed": self.seed,
            **self.about,
        }
        self.say(_line(row))
        self._rows.append(row)
        self.keep(self._rows)
        return row


def _processor() -> str:
    """Return the name of the processor, as well as the system knows it."""
    try:
        with open("/proc/cpuinfo") as file:
            named = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        named = []
    return named[0] if named else platform.machine()


def to_json(rows: Sequence[Row]) -> str:
    """Return rows as JSON, which has null and no NaN."""
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


TITLES = {
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
"""Of the table's columns."""


def table(rows: Sequence[Row], titles: Mapping[str, str] = TITLES) -> str:
    """Return rows as text, and how the cost grows with each size that was varied."""
    width = max([len(row["name"]) for row in rows] + [4]) + 2
    lines = ["name".ljust(width) + "".join(title.rjust(11) for title in titles.values())]
    for row in rows:
        cells = (_cell(row.get(key)).rjust(11) for key in titles)
        lines.append(row["name"].ljust(width) + "".join(cells))
    return "\n".join([*lines, *growth(rows)])


def growth(rows: Sequence[Row]) -> list[str]:
    """Return a line for each size that rows vary: the power of it that the cost grows with.

    A least-squares line through the logarithms; rows say by ``varied`` and ``family`` which
    belong together.
    """
    families: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for key in row.get("varied", ()):
            families.setdefault((row["family"], key), []).append(row)
    lines = []
    for (family, key), members in families.items():
        sizes = [row[key] for row in members]
        if len(set(sizes)) < 2:
            continue
        logs = [torch.tensor(size).log().item() for size in sizes]
        powers = {
            side: statistics.linear_regression(
                logs, [torch.tensor(row[f"{side}_ms"]).log().item() for row in members]
            ).slope
            for side in ("ours", "plain")
            if all(row[f"{side}_ms"] for row in members)
        }
        text = ", ".join(f"{side} by the power {power:.2f}" for side, power in powers.items())
        lines.append(f"{family} with {key} from {min(sizes)} to {max(sizes)}: {text}")
    return lines


def _line(row: Row) -> str:
    plain = "" if row["plain_ms"] is None else f", plain {row['plain_ms']:.4g} ms"
    ratio = "" if row["ratio"] is None else f", ratio {row['ratio']:.3g}"
    error = "" if row["relative_error"] is None else f", error {row['relative_error']:.2g}"
    return f"{row['name']}: {row['ours_ms']:.4g} ms{plain}{ratio}{error}"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
