"""``spiral``: the paper's toy experiment, as one picture."""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from cpaan.cli.options import add_traceback, check_writable, new_progress, positive_number
from cpaan.core.files import write_whole
from cpaan.core.provenance import describe_run
from cpaan.core.settings import parse_settings
from cpaan.gan.config import TrainConfig
from cpaan.gan.gans import GANS
from cpaan.gan.spiral import SPIRAL_CONFIG, SpiralOutcome, check_spiral, draw_points, run_spiral
from cpaan.report.figures.synthetic import draw_spiral

_HELP = """\
Train the four GANs on a spiral in the plane, and draw their translations (Figure 3 of the paper).

Two base arms, top and bottom, are translated into two novel ones, left and right, of which only
four points are known (crosses). The picture shows the first seed; the table, medians over all.

  diversity   mean distance of two translated points over that of two true ones: one is right
  |log|       how far that is from one, in either direction
  covariance  size of the error of the translated points' covariance, relative to the true one
"""


def add_command(commands: Any) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "spiral",
        help="draw what the four GANs do to a toy data set",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_spiral)
    add, usual = parser.add_argument, TrainConfig().to_dict()
    own = {name: value for name, value in SPIRAL_CONFIG.to_dict().items() if value != usual[name]}
    add("--out", type=Path, required=True, metavar="DIR", help="write spiral.svg and spiral.json")
    add("--seeds", type=positive_number, default=1, metavar="N", help="default: %(default)s")
    add("--episodes", type=positive_number, metavar="N", help=f"default: {own['num_episodes']}")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting of meta-training (see `python -m cpaan settings`); here others apply: "
        + ", ".join(f"{name}={value}" for name, value in own.items()),
    )
    add_traceback(parser)


def _spiral(options: argparse.Namespace) -> int:
    (overrides,) = parse_settings(options.set, SPIRAL_CONFIG)
    if options.episodes is not None:
        overrides = {"num_episodes": options.episodes, **overrides}
    unused = sorted(set(overrides) & {"num_ways", "episode_shots", "real_examples"})
    if unused:
        raise ValueError(f"the spiral has no episodes of classes, and no {', '.join(unused)}")
    config = SPIRAL_CONFIG.with_overrides(overrides)
    check_spiral(config)
    check_writable(options.out)
    run, progress = describe_run(), new_progress()
    outcomes: dict[str, list[SpiralOutcome]] = {name: [] for name in GANS}
    for seed in range(options.seeds):
        for name, found in outcomes.items():
            progress(f"{name}, seed {seed}")
            found.append(run_spiral(name, draw_points(seed), config, seed, progress))
    progress("done")

    picture = draw_spiral(draw_points(0), {name: found[0] for name, found in outcomes.items()})
    rows = [_summary(name, found) for name, found in outcomes.items()]
    content = {"run": run, "config": config.to_dict(), "seeds": options.seeds, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
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
    """Return medians over seeds, and every seed's own values."""
    ratios = [outcome.diversity_ratio for outcome in outcomes]
    gaps = [outcome.covariance_gap for outcome in outcomes]
    return {
        "method": name,
        "diversity_ratio": statistics.median(ratios),
        "log_diversity_ratio": statistics.median(
            abs(math.log(ratio)) if ratio else math.inf for ratio in ratios
        ),
        "covariance_gap": statistics.median(gaps),
        "diversity_ratios": ratios,
        "covariance_gaps": gaps,
    }
