"""``spiral``: the paper's toy experiment, as one picture."""

import argparse
import json
import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from cpaan.cli.command import check_writable, new_progress
from cpaan.core.files import write_whole
from cpaan.core.provenance import describe_run
from cpaan.core.settings import parse_settings
from cpaan.gan.gans import GANS
from cpaan.gan.spiral import (
    SPIRAL_CONFIG,
    SpiralOutcome,
    check_spiral,
    draw_points,
    run_spiral,
    to_plain,
)
from cpaan.report.figures.synthetic import draw_spiral


def run(options: argparse.Namespace, _: Sequence[str]) -> int:
    """Train the GANs, write the picture and print the table; return the exit status."""
    (overrides,) = parse_settings(options.set, SPIRAL_CONFIG)
    if options.episodes is not None:
        overrides = {"num_episodes": options.episodes, **overrides}
    unused = sorted(set(overrides) & {"num_ways", "episode_shots", "real_examples"})
    if unused:
        raise ValueError(f"the spiral does not use {', '.join(unused)}; remove them from --set")
    config = SPIRAL_CONFIG.with_overrides(overrides)
    check_spiral(config)
    check_writable(options.out)
    about, progress = describe_run(), new_progress()
    outcomes: dict[str, list[SpiralOutcome]] = {name: [] for name in GANS}
    for seed in range(options.seeds):
        for name, of_seeds in outcomes.items():
            progress(f"{name}, seed {seed}: training")
            of_seeds.append(run_spiral(name, draw_points(seed), config, seed, progress))
    first = {name: of_seeds[0] for name, of_seeds in outcomes.items()}
    picture = draw_spiral(to_plain(draw_points(0), first))
    rows = [_summary(*outcome) for outcome in outcomes.items()]
    content = {"run": about, "config": config.to_dict(), "seeds": options.seeds, "rows": rows}
    write_whole(options.out / "spiral.svg", picture.file("svg").decode())
    write_whole(options.out / "spiral.json", json.dumps(content, indent=1))
    print(f"{'method':<12}{'diversity':<11}{'|log|':<8}covariance")
    for row in rows:
        print(
            f"{row['method']:<12}{row['diversity_ratio']:<11.2f}"
            f"{row['log_diversity_ratio']:<8.2f}{row['covariance_gap']:.2f}"
        )
    print(f"\nWritten: {options.out}/spiral.svg, spiral.json")
    return 0


def _summary(name: str, outcomes: list[SpiralOutcome]) -> dict[str, Any]:
    """Return medians over seeds, and the values of every seed."""
    ratios = [outcome.diversity_ratio for outcome in outcomes]
    gaps = [outcome.covariance_gap for outcome in outcomes]
    return {
        "method": name,
        "diversity_ratio": median(ratios),
        "log_diversity_ratio": median(abs(math.log(r)) if r else math.inf for r in ratios),
        "covariance_gap": median(gaps),
        "diversity_ratios": ratios,
        "covariance_gaps": gaps,
    }
