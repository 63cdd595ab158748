"""The command line."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from cpaan.benchmark import Results, evaluate
from cpaan.config import LINEAR_AS_IN_BENCHMARK, EvaluationConfig, parse_settings
from cpaan.evaluation import COLUMNS
from cpaan.feature_cache import open_features
from cpaan.features import FeatureTable
from cpaan.methods import TRANSLATIONS, check_methods
from cpaan.provenance import TEST_READS
from cpaan.splits import TEST_PHASE, VALIDATION_PHASE, Split, read_draws, read_split
from cpaan.summary import check_row, is_only_row
from cpaan.synthetic import gaussian_classes
from cpaan.tables import accuracy_table, difference_table
from cpaan.tasks import check_phase

BAD_INPUT = 2
INTERRUPTED = 130
CLOSED_PIPE = 141

_EVALUATE_HELP = """\
Score low-shot methods on novel classes, and print the table.

Without --features this runs on a synthetic set of Gaussian classes, to see how it works.
On your own features:

  python -m cpaan evaluate --features features.parquet --split split.json

The table's columns, each as top-1 and top-5 accuracy in percent, for every number of shots:

{columns}

Choose everything on the validation phase. Each read of the test phase is noted in {log}.
"""

_EVALUATE_EXAMPLES = """\
examples:
  every control, all five numbers of shots, five draws:
    python -m cpaan evaluate --features F.parquet --split split.json --out results/mine
  one shot only, 50 draws for narrow intervals, compared with the plain cosine head:
    python -m cpaan evaluate ... --shots 1 --draws 50 --against none/cosine
  the benchmark's own HDF5 files, splits and draws:
    python -m cpaan evaluate --features features/ResNet10 --split label_idx.json \\
      --draws-file splitfile_1.json splitfile_2.json splitfile_3.json \\
      splitfile_4.json splitfile_5.json
  less weight for the real shots:
    python -m cpaan evaluate ... --set mixing_weight=0.2
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, 0 if all was done."""
    parser = _Parser(prog="python -m cpaan", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_evaluate(commands)
    options = parser.parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if options.traceback or (isinstance(error, RuntimeError) and not _is_memory(error)):
            raise
        print(f"python -m cpaan {options.command}: error: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _is_memory(error: Exception) -> bool:
    """Return whether memory ran out; on the CPU, torch has no type of its own for that."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _one_line(error: Exception) -> str:
    if _is_memory(error):
        return f"not enough memory: {' '.join(str(error).split())}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _add_evaluate(commands: Any) -> None:
    columns = "\n".join(f"  {name:12} {meaning}" for name, meaning in COLUMNS.items())
    parser = commands.add_parser(
        "evaluate",
        help="score low-shot methods on a feature table",
        description=_EVALUATE_HELP.format(columns=columns, log=TEST_READS),
        epilog=_EVALUATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_evaluate)
    defaults = EvaluationConfig()
    data = parser.add_argument_group("data")
    data.add_argument(
        "--features",
        nargs="+",
        metavar="F",
        help="a Parquet file; or the train and the test file of an HDF5 pair, or their folder",
    )
    data.add_argument(
        "--split",
        metavar="S",
        help="split.json or the benchmark's label_idx.json; by default the one beside the features",
    )
    data.add_argument(
        "--phase",
        choices=[VALIDATION_PHASE, TEST_PHASE],
        default=VALIDATION_PHASE,
        help="which classes to score (default: %(default)s)",
    )
    data.add_argument(
        "--allow-trained-novel",
        action="store_true",
        help="go on although the backbone was trained on novel classes",
    )
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--methods",
        type=_names,
        default=list(TRANSLATIONS),
        metavar="M,M,...",
        help=f"of {', '.join(TRANSLATIONS)} (default: all)",
    )
    what.add_argument(
        "--heads", type=_names, metavar="H,H,...", help=f"of {', '.join(defaults.heads)}"
    )
    what.add_argument(
        "--shots",
        type=_positive_numbers,
        metavar="K,K,...",
        help=f"default: {','.join(map(str, defaults.shots))}",
    )
    draws = what.add_mutually_exclusive_group()
    draws.add_argument(
        "--draws",
        type=_positive_number,
        metavar="N",
        help=f"how many seeded draws of the shots (default: {defaults.num_draws})",
    )
    draws.add_argument(
        "--draws-file",
        nargs="+",
        metavar="J",
        help="draws as JSON: rows by class, or the benchmark's index files",
    )
    what.add_argument(
        "--seeds", type=_positive_number, metavar="N", help="how many training seeds (default: 1)"
    )
    what.add_argument("--seed", type=int, metavar="N", help="the first training seed (default: 0)")
    what.add_argument("--draw-seed", type=int, metavar="N", help="seed of the draws (default: 0)")
    what.add_argument(
        "--linear",
        choices=["quick", "benchmark"],
        default="quick",
        help="train the linear head by 200 decaying steps, or by the benchmark's own 10,000",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting: " + ", ".join(defaults.to_dict()),
    )
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--against",
        metavar="METHOD[/HEAD]",
        help="the row that others are compared with, draw by draw (default: none, same head)",
    )
    show.add_argument(
        "--out", type=Path, metavar="DIR", help="write results.csv, results.json and accuracy.svg"
    )
    parser.add_argument("--device", help="default: cuda where there is one, otherwise cpu")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")


def _evaluate(options: argparse.Namespace) -> int:
    config = _config_from(options)
    device = _device_from(options.device)
    check_methods(options.methods)
    table, split = _open_data(options)
    check_phase(table, split, options.phase, allow_trained_novel=options.allow_trained_novel)
    shot_rows = None
    if options.draws_file:
        shot_rows = read_draws(
            options.draws_file, table, split, options.phase, max_shots=max(config.shots)
        )
    against = options.against or ("none" if "none" in options.methods else None)
    if against:
        check_row(against, [(method, head) for method in options.methods for head in config.heads])
    if options.out:
        _check_writable(options.out)

    started = time.monotonic()

    def progress(message: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {message}", file=sys.stderr, flush=True)

    results = evaluate(
        table,
        split,
        phase=options.phase,
        methods=options.methods,
        config=config,
        shot_rows=shot_rows,
        device=device,
        allow_trained_novel=options.allow_trained_novel,
        progress=progress,
    )
    progress("done")
    if options.out:  # before any printing, which a closed pipe can end
        try:
            results.write(options.out)
        except OSError:
            _print_results(results, against)  # nothing is lost to a full disk
            raise
    _print_results(results, against)
    if options.out:
        print(f"\nWritten: {options.out}/results.csv, results.json, accuracy.svg")
    return 0


def _print_results(results: Results, against: str | None) -> None:
    print(_describe(results))
    print(f"\n{accuracy_table(results.scores)}")
    if against and not is_only_row(against, results.scores):
        print(f"\n{difference_table(results.scores, against)}")
    if results.about["phase"] == TEST_PHASE:
        reads = results.about["test_reads"]
        print(f"\nThe test phase of these features was read {reads} times so far ({TEST_READS}).")


def _config_from(options: argparse.Namespace) -> EvaluationConfig:
    config = EvaluationConfig()
    if options.linear == "benchmark":
        config = config.with_overrides(LINEAR_AS_IN_BENCHMARK)
    given = {
        "shots": options.shots,
        "heads": None if options.heads is None else tuple(options.heads),
        "num_draws": options.draws,
        "num_seeds": options.seeds,
        "seed": options.seed,
        "draw_seed": options.draw_seed,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    return config.with_overrides({**overrides, **parse_settings(options.set, config)})


def _device_from(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    # A name torch does not know, a device that is not there, one torch was not built for.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name} cannot be used: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is cpu or cuda, got {name}")
    return device


def _open_data(options: argparse.Namespace) -> tuple[FeatureTable, Split]:
    if options.features is None:
        if options.split is not None:
            raise ValueError("--split needs --features")
        made = gaussian_classes()
        return made.table, made.split
    split = read_split(options.split or _split_beside(Path(options.features[0])))
    table = open_features(*options.features, label_names=split.label_names)
    return table, split


def _split_beside(features: Path) -> Path:
    if not features.exists():
        raise FileNotFoundError(f"no such file: {features}")
    folder = features if features.is_dir() else features.parent
    for name in ("split.json", "label_idx.json"):
        if (folder / name).exists():
            return folder / name
    raise ValueError(f"no split.json or label_idx.json in {folder}: give one with --split")


def _check_writable(folder: Path) -> None:
    """Find out before the work whether its results can be written, and leave nothing behind."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error


def _describe(results: Results) -> str:
    about = results.about
    draws = results.scores["draw"].nunique()
    return (
        f"\n{about['phase'].capitalize()} phase: {about['classes']['base']} base and "
        f"{about['classes']['novel']} novel classes, {about['queries']} queries, {draws} draws, "
        f"{results.scores['seed'].nunique()} training seeds."
    )


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _positive_number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _positive_numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive_number(part) for part in text.split(","))
