"""``evaluate``: score low-shot methods on a feature table."""

import argparse
from pathlib import Path
from typing import Any

from cpaan.cli.evaluate_options import add_parser, configs_from
from cpaan.cli.guard import INCOMPLETE
from cpaan.cli.options import check_writable, choose_device, new_progress, open_data
from cpaan.core.files import write_whole
from cpaan.core.provenance import TEST_READS
from cpaan.data.splits import TEST_PHASE, read_draws
from cpaan.evaluation.runner import Results, evaluate
from cpaan.methods.registry import ROWS, TABLE_1, expand_methods
from cpaan.methods.table_row import FEATURES, TABLES
from cpaan.protocol.config import OWN
from cpaan.protocol.statistics import check_row, is_only_row
from cpaan.protocol.tasks import check_phase
from cpaan.report.table_one import tables_of
from cpaan.report.tables import accuracy_table, difference_table, diversity_table

PARTS, CHECKPOINTS = "parts", "checkpoints"


def add_command(commands: Any) -> None:
    """Add the command and its options."""
    add_parser(commands).set_defaults(run=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    has_cosine = options.cosine_features is not None
    methods = expand_methods(options.methods, TABLES if has_cosine else [FEATURES])
    config, settings = configs_from(options, methods)
    device = choose_device(options.device)
    table, split = open_data(options.features, options.split)
    cosine_table = open_data(options.cosine_features, options.split)[0] if has_cosine else None
    check_phase(table, split, options.phase, allow_trained_novel=options.allow_trained_novel)
    shot_rows = None
    if options.draws_file:
        shot_rows = read_draws(
            options.draws_file, table, split, options.phase, max_shots=max(config.shots)
        )
    against = options.against or ("none" if "none" in methods else None)
    if against:
        heads = {method: ROWS[method].heads_among(config.heads) for method in methods}
        rows = [(method, head) for method in methods for head in heads[method]]
        check_row(against, rows)
    as_table_1 = TABLE_1 in options.methods
    if as_table_1 and not options.out:  # it is long: what is done must not be lost
        options.out = Path("results") / TABLE_1
    for folder in (options.out, options.checkpoints):
        if folder:
            check_writable(folder)
    missing = {ROWS[name].head for name in methods} - {*config.heads, OWN}
    if as_table_1 and missing:
        raise ValueError(f"{TABLE_1} needs the heads {', '.join(sorted(missing))} too")

    progress = new_progress()
    checkpoints, cache = options.checkpoints, None
    if options.out and (as_table_1 or options.jobs > 1):
        cache = options.out / PARTS
    if as_table_1:
        checkpoints = checkpoints or options.out / CHECKPOINTS
    results = evaluate(
        table,
        split,
        phase=options.phase,
        methods=methods,
        config=config,
        settings=settings,
        cosine_table=cosine_table,
        checkpoints=checkpoints,
        shot_rows=shot_rows,
        device=device,
        allow_trained_novel=options.allow_trained_novel,
        progress=progress,
        num_processes=options.jobs,
        locations=dict(zip(TABLES, (options.features, options.cosine_features), strict=True)),
        cache=cache,
    )
    progress("done")
    if options.out:  # before any printing, which a closed pipe can end
        try:
            results.write(options.out)
            # Here, because matplotlib takes half a second to import.
            from cpaan.report.figures.accuracy import draw_accuracy

            write_whole(options.out / "accuracy.svg", draw_accuracy(results.scores))
            if as_table_1:
                tables = tables_of(results.scores, _labels_of(results), results.heads)
                write_whole(
                    options.out / "table-1.md", "\n\n".join(each.markdown for each in tables)
                )
                write_whole(options.out / "table-1.tex", "\n".join(each.latex for each in tables))
        except OSError:  # nothing is lost to a full disk
            _print_results(results, against, as_table_1=as_table_1)
            raise
    _print_results(results, against, as_table_1=as_table_1)
    if options.out:
        print(f"\nWritten: {options.out}/results.csv, results.json, accuracy.svg")
        if as_table_1:
            print(f"The table: {options.out}/table-1.md, table-1.tex")
    for name, reason in results.about["failed"].items():
        print(f"{name} has no scores: {reason}")
    return INCOMPLETE if results.about["failed"] else 0


def _print_results(results: Results, against: str | None, *, as_table_1: bool) -> None:
    print(_describe(results))
    if as_table_1:
        for table in tables_of(results.scores, _labels_of(results), results.heads):
            print(f"\n{table.text}")
    else:
        print(f"\n{accuracy_table(results.scores)}")
    if not results.diversity.empty:
        print(f"\n{diversity_table(results.diversity)}")
    if not as_table_1 and against and not is_only_row(against, results.scores):
        print(f"\n{difference_table(results.scores, against)}")
    _print_reads(results)


def _labels_of(results: Results) -> dict[str, str]:
    """Return the rows of the table, which are methods by their names."""
    return {name: name for name in results.about["methods"]}


def _print_reads(results: Results) -> None:
    if results.about["phase"] == TEST_PHASE:
        reads = results.about["test_reads"]
        print(f"\nThe test phase of these features was read {reads} times so far ({TEST_READS}).")


def _describe(results: Results) -> str:
    about = results.about
    draws = results.scores["draw"].nunique()
    return (
        f"\n{about['phase'].capitalize()} phase: {about['classes']['base']} base and "
        f"{about['classes']['novel']} novel classes, {about['queries']} queries, {draws} draws, "
        f"{results.scores['seed'].nunique()} training seeds."
    )
