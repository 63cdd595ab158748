"""``python -m cpaan.bench NAME``: measure, print a table, and write what was found as JSON."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cpaan.bench import (
    analogies,
    data_parallel,
    episode,
    evaluate,
    kyfan,
    trial,
)
from cpaan.bench.measuring import TITLES, Bench, Row, table, to_json
from cpaan.bench.scales import SCALES
from cpaan.cli.guard import guarded
from cpaan.cli.options import Parser, add_traceback, check_writable, choose_device, new_progress
from cpaan.core.files import write_whole

BENCHMARKS = {
    "kyfan": kyfan,
    "episode": episode,
    "evaluate": evaluate,
    "analogies": analogies,
    "data-parallel": data_parallel,
    "trial": trial,
}

_HELP = """\
Measure ours against the plain way of doing the same, in turn and on the same inputs.

{benchmarks}

Columns of the table, keys of the JSON file:

  ours_ms, plain_ms  median milliseconds; the spread beside them goes from the first quartile to the
                     third. Plain means layers that are not split and, for the covariance term,
                     torch.linalg.svd with autograd
  ratio              plain over ours: above one, ours is faster
  relative_error     of ours: to norms in float64 (kyfan), to plain losses (episode) or plain logits
                     (evaluate), to cosines in float64 (analogies)
  floor_ms           the least arithmetic and traffic at the best this device did in the same run
  floor_ratio        ours over that
  peak_memory_mb     of ours on a GPU, MiB; null on the CPU

Where the plain side would take minutes, it does a part and its time is in proportion: plain_pairs
and plain_timed_iterations say of what. The covariance term looks at some base classes of every
novel one; similarity_left_out is the share of similarity of the others. Analogies are between
random clusters; their plain side multiplies the differences of all ordered pairs.

Trials of driver take what was measured elsewhere, by a simulated clock; what proposes, decides and
records is real, and ours_ms its processor time. study-time is a model: its assumptions are in the
JSON file.

Scales:

  paper   D 512, 389 classes, 20 ways, 10 shots, B 1,000: 16,000 pairs; 76 of the classes are real,
          the others made of real examples. For a GPU; kyfan and episode take minutes on a CPU.
  slice   D 512, the 76 base classes of the built-in features, B 300: minutes on two cores
  small   seconds: whether it works, not what it finds

example: python -m cpaan.bench kyfan --scale slice --json kyfan.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit status."""
    names = "\n".join(f"  {name:<14} {module.HELP}" for name, module in BENCHMARKS.items())
    parser = Parser(
        prog="python -m cpaan.bench",
        description=_HELP.format(benchmarks=names),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(BENCHMARKS), metavar="NAME", help="one of the above")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--scale", choices=list(SCALES), default="slice", help="default: slice")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows, too, each as it comes"
    )
    parser.add_argument("--only", metavar="TEXT", help="only rows whose name has this in it")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    add_traceback(parser)
    options = parser.parse_args(arguments)

    def run() -> int:
        if options.seed < 0:
            raise ValueError(f"--seed must not be negative, got {options.seed}")
        if options.json is not None:
            if options.json.is_dir():
                raise ValueError(f"--json names a file, but {options.json} is a folder")
            check_writable(options.json.absolute().parent)

        def keep(rows: Sequence[Row]) -> None:
            if options.json is not None:
                write_whole(options.json, to_json(rows))

        bench = Bench(
            device=choose_device(options.device),
            scale=SCALES[options.scale],
            seed=options.seed,
            say=new_progress(),
            only=options.only,
            keep=keep,
        )
        module = BENCHMARKS[options.name]
        rows = module.measure(bench)
        if not rows:
            raise ValueError(f"no row of {options.name} has {options.only!r} in its name")
        print(table(rows, getattr(module, "TITLES", TITLES)))
        return 0

    return guarded(parser.prog, run, traceback=options.traceback)


# Processes that this one starts read this file again, and must not start anew.
if __name__ == "__main__":
    sys.exit(main())
