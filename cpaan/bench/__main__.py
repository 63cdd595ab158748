"""Run ``python -m cpaan.bench NAME``: measure, print a table, and write the rows as JSON."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cpaan.bench import episode, evaluate, kyfan, methods
from cpaan.bench.measuring import Bench
from cpaan.bench.scales import SCALES
from cpaan.cli.command import Parser, add_traceback, check_writable, guarded, new_progress
from cpaan.core.devices import choose_device

BENCHMARKS = {
    "kyfan": (kyfan.measure, kyfan.HELP),
    "episode": (episode.measure, episode.HELP),
    "methods": (methods.measure, methods.HELP),
    "evaluate": (evaluate.measure, evaluate.HELP),
}

_HELP = """\
Compare our code with a plain PyTorch implementation, alternately and on the same inputs.

{benchmarks}

Columns of the table, keys of the JSON file:

  ours_ms, plain_ms  median milliseconds, with the distance of the quartiles beside them. Plain is
                     the reference engine, on a CPU with torch.linalg.svd for the covariance term
                     (episode), this function with autograd (kyfan), or a plain loop
  ratio              plain over ours: above one, ours is faster
  relative_error     of ours: to norms in float64 (kyfan), plain losses (episode, methods) or plain
                     logits (evaluate)
  peak_memory_mb     of ours on a GPU, MiB; null on the CPU

If the plain side would take minutes, a part of it is timed and the rest extrapolated: see
plain_pairs and plain_timed_iterations. The covariance term compares a novel class with some base
classes; similarity_left_out is the share of similarity of the others.

Scales:

  paper   D 512, 389 classes, 20 ways, 10 shots, B 1,000: 16,000 pairs; 76 of the classes are real,
          the others made of real examples. For a GPU; kyfan and episode take minutes on a CPU.
  slice   D 512, the 76 base classes of the built-in features, B 300: minutes on two cores
  small   seconds: to see whether it works

example: python -m cpaan.bench kyfan --scale slice --json kyfan.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark and return the exit status."""
    names = "\n".join(f"  {name:<14} {text}" for name, (_, text) in BENCHMARKS.items())
    parser = Parser(
        prog="python -m cpaan.bench",
        description=_HELP.format(benchmarks=names),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(BENCHMARKS), metavar="NAME", help="one of the above")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--scale", choices=list(SCALES), default="slice", help="default: slice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write each row to a file")
    parser.add_argument("--only", metavar="TEXT", help="only rows whose name contains this")
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
        bench = Bench(
            device=choose_device(options.device),
            scale=SCALES[options.scale],
            seed=options.seed,
            say=new_progress(),
            only=options.only,
            path=options.json,
        )
        measure, _ = BENCHMARKS[options.name]
        measure(bench)
        if not bench.rows:
            raise ValueError(f"no row of {options.name} has {options.only!r} in its name")
        print(bench.table())
        return 0

    return guarded(parser.prog, run, traceback=options.traceback)


# Child processes import this file and must not run it.
if __name__ == "__main__":
    sys.exit(main())
