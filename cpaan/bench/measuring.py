"""Timing of functions, and the rows of results."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cpaan.bench.scales import Scale, training_data
from cpaan.core.files import write_whole
from cpaan.core.provenance import describe_run
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import TrainingData

_SLOW_SECONDS = 2.0
"""Calls slower than this have no warm-up, which would take long and change little."""
_TITLES = {
    "ours_ms": "ours ms",
    "ours_spread_ms": "spread",
    "plain_ms": "plain ms",
    "plain_spread_ms": "spread",
    "ratio": "ratio",
    "relative_error": "error",
    "peak_memory_mb": "peak MiB",
}


class Subject(NamedTuple):
    """A function to time."""

    function: Callable[[], object]
    num_units: int = 1
    """Number of units, such as episodes, in one call."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds per unit, by round."""

    times_ms: Sequence[float]
    peak_memory_mb: float | None = None
    """Peak memory that torch allocated on the GPU during a call, in MiB; None on the CPU."""

    def times(self, factor: float) -> "Timing":
        """Return the timing of ``factor`` times the work."""
        return Timing([factor * ms for ms in self.times_ms], self.peak_memory_mb)

    def plus(self, other: "Timing") -> "Timing":
        """Return the timing of both in sequence, over the rounds that both have."""
        peaks = [peak for peak in (self.peak_memory_mb, other.peak_memory_mb) if peak is not None]
        sums = [a + b for a, b in zip(self.times_ms, other.times_ms, strict=False)]
        return Timing(sums, max(peaks, default=None))

    def figures(self) -> dict[str, Any]:
        """Return the median, interquartile range, minimum and number of the times."""
        first, median, third = np.quantile(self.times_ms, [0.25, 0.5, 0.75]).tolist()
        return {
            "ms": median,
            "spread_ms": third - first,
            "best_ms": min(self.times_ms),
            "repeats": len(self.times_ms),
            "peak_memory_mb": self.peak_memory_mb,
        }


class Case(NamedTuple):
    """A training step to measure, and the data for it."""

    name: str
    config: TrainConfig
    data: TrainingData

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the step, for its row."""
        names = "num_ways num_base_examples num_covariance_classes batch_size hidden_dim"
        of_config = {key: getattr(self.config, key) for key in (*names.split(), "ky_fan_order")}
        num_dims = self.data.base.features.shape[1]
        return {"num_classes": len(self.data.base.counts), "num_dims": num_dims, **of_config}


@dataclass(frozen=True, eq=False)
class Bench:
    """One run of a benchmark: its options and its rows so far.

    A row is one measurement: the keys of `row`, null where not applicable, and further keys.
    """

    device: torch.device
    scale: Scale
    seed: int
    say: Callable[[str], None]
    only: str | None = None
    """Text that the names of measured rows must contain."""
    path: Path | None = None
    """JSON file, written after every new row, so that an interrupted run keeps its rows."""
    rows: list[dict[str, Any]] = field(default_factory=list)

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

    def cases(self, name: str, *sizes: str, endings: Sequence[str] = ("",)) -> Iterator[Case]:
        """Yield the wanted cases: the scale itself, then with one of some sizes changed at a time.

        The names of rows start with ``name``; those at the scale itself end with ``endings``.
        """
        scale = self.scale
        usual = {**scale.training.to_dict(), "num_dims": scale.num_dims}
        changes: dict[str, dict[str, int]] = {ending: {} for ending in endings}
        for size in sizes:
            others = [value for value in scale.varied[size] if value != usual[size]]
            changes |= {f" {size}={value}": {size: value} for value in others}
        for ending, change in changes.items():
            if self.wants(name + ending):
                self.say(f"{name}{ending} ...")
                settings = {**usual, **change}
                num_dims, order = settings.pop("num_dims"), settings["ky_fan_order"]
                data = training_data(scale.num_classes, num_dims, order, str(self.device))
                yield Case(name + ending, TrainConfig(**settings), data)

    def time(self, **subjects: Subject) -> dict[str, Timing]:
        """Time functions in turn, round after round, so that other load affects all equally.

        Measures wall time, with the GPU synchronised before and after. Each function has two
        warm-up calls, unless it is slow. At most the scale's ``repeats`` calls within
        ``most_seconds`` follow, but at least one. A function that compiles kernels must have been
        called before.
        """
        repeats, most_seconds = self.scale.repeats, self.scale.most_seconds
        measured: dict[str, list[float]] = {name: [] for name in subjects}
        spent = dict.fromkeys(subjects, 0.0)
        peaks: dict[str, list[float]] = {name: [] for name in subjects}
        for round_number in range(2 + repeats):
            for name, (function, num_units) in subjects.items():
                times = measured[name]
                if len(times) == repeats or (times and spent[name] > most_seconds):
                    continue
                seconds, peak = _time_once(function, self.device)
                spent[name] += seconds
                peaks[name] += [] if peak is None else [peak]
                if round_number >= 2 or seconds > _SLOW_SECONDS:
                    times.append(1e3 * seconds / num_units)
        return {name: Timing(measured[name], max(peaks[name], default=None)) for name in subjects}

    def row(
        self,
        name: str,
        ours: Timing,
        plain: Timing | None = None,
        *,
        relative_error: float | None = None,
        **more: Any,
    ) -> None:
        """Add a row with these timings, further keys and the description of the run."""
        of_ours = ours.figures()
        of_plain = plain.figures() if plain else dict.fromkeys(of_ours)
        self.rows.append(
            {
                "name": name,
                "device": self.device.type,
                "scale": self.scale.name,
                "ours_ms": of_ours["ms"],
                "plain_ms": of_plain["ms"],
                "ratio": of_plain["ms"] / of_ours["ms"] if plain else None,
                "relative_error": relative_error,
                "peak_memory_mb": of_ours["peak_memory_mb"],
                "ours_spread_ms": of_ours["spread_ms"],
                "ours_best_ms": of_ours["best_ms"],
                "repeats": of_ours["repeats"],
                **{f"plain_{key}": value for key, value in of_plain.items() if key != "ms"},
                **more,
                "seed": self.seed,
                **self.about,
            }
        )
        self.say(f"{name}: {of_ours['ms']:.4g} ms")
        if self.path is not None:
            write_whole(self.path, json.dumps(self.rows, indent=1, allow_nan=False) + "\n")

    def table(self) -> str:
        """Return the rows as text."""
        width = max(len(row["name"]) for row in self.rows) + 2
        lines = ["name".ljust(width) + "".join(title.rjust(11) for title in _TITLES.values())]
        for row in self.rows:
            cells = ("-" if row[key] is None else f"{row[key]:.4g}" for key in _TITLES)
            lines.append(row["name"].ljust(width) + "".join(cell.rjust(11) for cell in cells))
        return "\n".join(lines)


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


def _processor() -> str:
    """Return the name of the processor, if known."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    return next(names, platform.machine())
