"""``evaluate``: score low-shot methods on a feature table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cpaan.cli.command import INCOMPLETE, check_writable, new_progress
from cpaan.cli.options import overrides_of
from cpaan.core.devices import choose_device
from cpaan.core.files import write_whole
from cpaan.core.provenance import TEST_READS
from cpaan.core.settings import Settings, assignments_for, parse_settings
from cpaan.data.reference import open_data
from cpaan.data.split_files import read_draws
from cpaan.data.splits import TEST_PHASE
from cpaan.data.table import counted
from cpaan.evaluation.few_shot import evaluate_few_shot, few_shot_table
from cpaan.evaluation.few_shot_tasks import FewShotConfig
from cpaan.evaluation.runner import Results, evaluate
from cpaan.gan.config import META_TESTING_AS_PRINTED
from cpaan.methods.controls import CONTROLS
from cpaan.methods.registry import METHODS, ROWS, SETTINGS, TABLE_1, expand_methods, with_episodes
from cpaan.methods.table_row import FEATURES, PN, TABLES
from cpaan.protocol.config import LINEAR_AS_IN_BENCHMARK, OWN, EvaluationConfig
from cpaan.protocol.statistics import check_row, is_only_row
from cpaan.report.table_one import TableOne, tables_of
from cpaan.report.tables import accuracy_table, difference_table, diversity_table

_SHARED = ""  # stands for the evaluation among the methods


def run(options: argparse.Namespace, __: Sequence[str]) -> int:
    """Evaluate, write files, print the table; return the exit status."""
    named = tuple(CONTROLS) if options.methods is None else options.methods
    has_cosine, is_table_one = options.cosine_features is not None, TABLE_1 in named
    methods = expand_methods(named, TABLES if has_cosine else [FEATURES])
    config, settings = _resolve(options, methods)
    if options.protocol == "episodes":
        return _run_few_shot(options, methods, config, settings)
    for option in ("--ways", "--num-queries", "--num-tasks"):
        if getattr(options, f"num_{option.split('-')[-1]}"):
            raise ValueError(f"{option} needs --protocol episodes")
    missing = {ROWS[name].head for name in methods} - {*config.heads, OWN}
    if is_table_one and missing:
        raise ValueError(f"{TABLE_1} also needs --heads {','.join(sorted(missing))}")
    against = options.against or ("none" if "none" in methods else None)
    if against:
        heads = {method: ROWS[method].heads_among(config.heads) for method in methods}
        check_row(against, [(method, head) for method in methods for head in heads[method]])
    device, progress = choose_device(options.device), new_progress()
    table, split = open_data(options.features, options.split, progress)
    cosine_table = None
    if has_cosine:
        cosine_table, _ = open_data(options.cosine_features, options.split, progress)
    shot_rows = None
    if options.draws_file:
        files, max_shots = options.draws_file, max(config.shots)
        shot_rows = read_draws(files, table, split, options.phase, max_shots=max_shots)
    # The table takes long: finished parts are always kept.
    out: Path | None = options.out or (Path("results") / TABLE_1 if is_table_one else None)
    for folder in filter(None, (out, options.checkpoints)):
        check_writable(folder)
    results = evaluate(
        table,
        split,
        phase=options.phase,
        methods=methods,
        config=config,
        settings=settings,
        cosine_table=cosine_table,
        checkpoints=options.checkpoints or (out / "checkpoints" if out and is_table_one else None),
        shot_rows=shot_rows,
        device=device,
        allow_trained_novel=options.allow_trained_novel,
        progress=progress,
        num_processes=options.jobs,
        locations=dict(zip(TABLES, (options.features, options.cosine_features), strict=True)),
        cache=out / "parts" if out and (is_table_one or options.jobs > 1) else None,
    )
    labels = {name: name for name in results.about["methods"]}
    tables = tables_of(results.scores, labels, results.heads) if is_table_one else []
    try:
        if out:
            _write(results, tables, out)
    finally:  # a failed write must not hide the results
        _print(results, tables, against)
    if out:
        of_table = ", table-1.md, table-1.tex" if tables else ""
        print(f"\nWritten: {out}/results.csv, results.json, accuracy.svg{of_table}")
    for name, reason in results.about["failed"].items():
        print(f"{name} failed with {reason}")
    return INCOMPLETE if results.about["failed"] else 0


def _run_few_shot(
    options: argparse.Namespace,
    methods: Sequence[str],
    config: EvaluationConfig,
    settings: dict[str, Settings],
) -> int:
    """Evaluate N-way K-shot tasks; print the table, and write the accuracy of every task."""
    for name in ("num_draws", "draws_file", "against", "cosine_features"):
        if getattr(options, name):
            option = name.removeprefix("num_").replace("_", "-")
            raise ValueError(f"--{option} needs --protocol benchmark")
    tasks = FewShotConfig(**overrides_of(options, FewShotConfig) | {"seed": config.draw_seed})
    progress = new_progress()
    table, split = open_data(options.features, options.split, progress)
    out: Path | None = options.out
    for folder in filter(None, (out, options.checkpoints)):
        check_writable(folder)
    scores = evaluate_few_shot(
        table,
        split,
        methods=methods,
        phase=options.phase,
        tasks=tasks,
        config=config,
        settings=settings,
        checkpoints=options.checkpoints or (out and out / "checkpoints"),
        device=choose_device(options.device),
        allow_trained_novel=options.allow_trained_novel,
        progress=progress,
        num_processes=options.jobs,
        locations=options.features,
        cache=out and out / "parts",
    )
    print(
        f"\n{options.phase.capitalize()} phase, {counted(tasks.num_tasks, 'task')} of "
        f"{counted(tasks.num_ways, 'class')} with {tasks.num_queries} queries each, "
        f"{counted(config.num_seeds, 'training seed')}.\n"
        "Accuracy, %, ± 95 % interval over tasks and training seeds\n"
        f"{few_shot_table(scores)}"
    )
    if out:
        write_whole(out / "episodes.csv", scores.to_csv(index=False))
        print(f"\nWritten: {out}/episodes.csv")
    return 0


def _resolve(
    options: argparse.Namespace, methods: Sequence[str]
) -> tuple[EvaluationConfig, dict[str, Settings]]:
    """Return the settings of the evaluation, and those of every method."""
    config = EvaluationConfig()
    if options.as_printed:
        config = config.with_overrides(META_TESTING_AS_PRINTED)
    if options.linear == "benchmark":
        config = config.with_overrides(LINEAR_AS_IN_BENCHMARK)
    config = config.with_overrides(overrides_of(options, EvaluationConfig))
    used = list(methods)
    if PN not in used and any(ROWS[name].is_embedded for name in methods):
        used.append(PN)  # its settings are those of the embedding
    settings = {}
    for name in used:
        method = METHODS[name]
        each = method.published if options.as_printed and method.published else method.config
        is_named = options.episodes and name in methods
        settings[name] = with_episodes(each, options.episodes) if is_named else each
    known = {name: set(each.to_dict()) - {"shots"} for name, each in settings.items()}
    known[_SHARED] = set(config.to_dict())
    (of_config,) = parse_settings(assignments_for(_SHARED, options.set, known, SETTINGS), config)
    for name, each in settings.items():
        (of_method,) = parse_settings(assignments_for(name, options.set, known, SETTINGS), each)
        settings[name] = each.with_overrides(of_method)
    return config.with_overrides(of_config), settings


def _write(results: Results, tables: Sequence[TableOne], out: Path) -> None:
    results.write(out)
    # Imported here, because matplotlib takes half a second to import.
    from cpaan.report.figures.accuracy import draw_accuracy

    write_whole(out / "accuracy.svg", draw_accuracy(results.scores))
    if tables:
        write_whole(out / "table-1.md", "\n\n".join(table.markdown for table in tables))
        write_whole(out / "table-1.tex", "\n".join(table.latex for table in tables))


def _print(results: Results, tables: Sequence[TableOne], against: str | None) -> None:
    about, scores = results.about, results.scores
    print(
        f"\n{about['phase'].capitalize()} phase: {about['classes']['base']} base and "
        f"{about['classes']['novel']} novel classes, {about['queries']} queries, "
        f"{counted(scores['draw'].nunique(), 'draw')}, "
        f"{counted(scores['seed'].nunique(), 'training seed')}."
    )
    for text in [table.text for table in tables] or [accuracy_table(scores)]:
        print(f"\n{text}")
    if not results.diversity.empty:
        print(f"\n{diversity_table(results.diversity)}")
    if not tables and against and not is_only_row(against, scores):
        print(f"\n{difference_table(scores, against)}")
    if about["phase"] == TEST_PHASE:
        reads = counted(about["test_reads"], "time")
        print(f"\nThe test phase of these features was read {reads} so far ({TEST_READS}).")
