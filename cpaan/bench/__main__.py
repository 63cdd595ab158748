"""``python -m cpaan.bench NAME``: measure, and print what was found as JSON."""

import argparse
import json
import sys

from cpaan.bench import scaling, starting
from cpaan.cli.guard import guarded
from cpaan.cli.options import Parser, add_traceback, new_progress
from cpaan.provenance import describe_run

BENCHMARKS = {"scaling": scaling, "starting": starting}


def main() -> int:
    """Run a benchmark and return the exit status."""
    parser = Parser(
        prog="python -m cpaan.bench",
        description="Measure ratios, side by side in one run:\n\n"
        + "\n".join(f"  {name:<10} {module.HELP}" for name, module in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(BENCHMARKS))
    add_traceback(parser)
    options = parser.parse_args()

    def run() -> int:
        found = BENCHMARKS[options.name].measure(new_progress())
        print(json.dumps({"run": describe_run(), **found}, indent=1))
        return 0

    return guarded(parser.prog, run, traceback=options.traceback)


sys.exit(main())
