import numpy as np
import pandas as pd
import pytest

from cpaan import EvaluationConfig, Phase, Split, evaluate
from cpaan.core.provenance import count_test_reads
from cpaan.evaluation.runner import RESULT_COLUMNS, Results
from cpaan.methods.controls import CONTROLS
from cpaan.protocol.config import COLUMNS
from helpers.runs import QUICK
from helpers.tables import in_other_order, poisoned
from helpers.tasks import shots_of


def run(gaussians, **arguments) -> Results:
    arguments = {"config": QUICK, "methods": ["none", "copy"], **arguments}
    return evaluate(gaussians.table, gaussians.split, **arguments)


def cells(results: Results, **which) -> pd.DataFrame:
    scores = results.scores
    for name, value in which.items():
        scores = scores[scores[name] == value]
    return scores.reset_index(drop=True)


def test_there_is_one_row_for_each_cell_and_seeds_change_only_what_is_random(gaussians):
    results = run(gaussians, config=QUICK.with_overrides({"num_seeds": 3, "seed": 7}))

    scores = results.scores
    assert list(scores.columns) == RESULT_COLUMNS
    keys = ["method", "head", "column", "shots", "draw", "seed"]
    assert len(scores) == 2 * 4 * 5 * 2 * 2 * 3
    assert not scores.duplicated(keys).any()
    assert set(scores["column"]) == set(COLUMNS)
    assert set(scores["seed"]) == {7, 8, 9}
    assert scores[["top1", "top5"]].min().min() >= 0
    assert (scores["top1"] <= scores["top5"]).all()

    def top5(method: str, seed: int) -> list[float]:
        return cells(results, method=method, head="centroid", seed=seed)["top5"].tolist()

    assert top5("none", 7) == top5("none", 8)
    assert top5("copy", 7) != top5("copy", 8)


def test_explicit_draws_are_used(gaussians):
    shot_rows = shots_of(gaussians.table, gaussians.split)

    explicit = run(gaussians, shot_rows=shot_rows[::-1])

    pd.testing.assert_frame_equal(
        cells(explicit, draw=0, head="centroid", method="none").drop(columns="draw"),
        cells(run(gaussians), draw=1, head="centroid", method="none").drop(columns="draw"),
    )


def test_shots_from_python_are_checked_like_those_of_a_file(gaussians):
    shot_rows = shots_of(gaussians.table, gaussians.split, max_shots=5)
    with_test_row = shot_rows.copy()
    with_test_row[0, 0, 0] = gaussians.table.rows_of(gaussians.split.validation.novel[0], "test")[0]

    for refused, message in [
        (shot_rows[..., :2], "5 shots are requested, but 2 are given"),
        (shot_rows[:, :3], r"must have the shape \(draws, 12 novel classes, shots\)"),
        (with_test_row, f"distinct train rows of this class: row {with_test_row[0, 0, 0]}"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(gaussians, shot_rows=refused)


def test_fewer_draws_shots_and_heads_give_the_same_scores_for_what_is_left(gaussians):
    """Seven draws run in two parts."""
    config = QUICK.with_overrides({"num_draws": 7, "heads": ("centroid", "knn")})
    fewer = config.with_overrides({"num_draws": 6, "shots": (5,), "heads": ("knn",)})

    many, few = (run(gaussians, config=chosen) for chosen in (config, fewer))

    assert set(many.scores["draw"]) == set(range(7))
    of_many = cells(many, column="novel", shots=5, head="knn")
    pd.testing.assert_frame_equal(
        of_many[of_many["draw"] < 6].reset_index(drop=True), cells(few, column="novel")
    )


def test_methods_that_draw_alike_draw_the_same(gaussians):
    """LR is the row without augmentation; its linear head draws its batches."""
    results = run(gaussians, methods=["LR", "copy", "none"])

    pd.testing.assert_frame_equal(
        cells(results, method="LR").drop(columns="method"),
        cells(results, method="none").drop(columns="method"),
    )


def test_the_validation_phase_reads_nothing_of_the_test_phase(gaussians):
    split = gaussians.split

    def is_allowed(name: str, is_train: bool) -> bool:
        return name in split.validation.base + split.validation.novel or (
            name in split.test.base and is_train
        )

    clean = evaluate(gaussians.table, split, methods=list(CONTROLS), config=QUICK)
    table = poisoned(gaussians, is_allowed)
    scores = evaluate(table, split, methods=list(CONTROLS), config=QUICK).scores

    assert table.fingerprint != gaussians.table.fingerprint
    pd.testing.assert_frame_equal(scores, clean.scores)


def test_a_test_run_counts_itself_once_and_has_the_biases_of_the_validation_phase(gaussians):
    on_test, on_validation = run(gaussians, phase="test"), run(gaussians)

    assert on_test.about["test_reads"] == count_test_reads(gaussians.table.fingerprint) == 1
    assert set(on_test.scores["phase"]) == {"test"}
    pd.testing.assert_frame_equal(on_test.biases, on_validation.biases)


def test_what_keeps_biases_from_being_chosen_is_told(gaussians):
    split = gaussians.split
    smaller = Split(Phase(split.validation.base, (*split.validation.novel, "yeti")), split.test)

    with pytest.raises(ValueError, match=r"biases are chosen on .* lack class yeti .*--set novel"):
        evaluate(gaussians.table, smaller, phase="test", config=QUICK)
    evaluate(gaussians.table, smaller, phase="test", config=QUICK.with_overrides({"novel_bias": 0}))
    # The backbone may know the classes of the validation phase.
    known = gaussians.table.with_changes(backbone_classes=frozenset(split.validation.novel))
    assert len(evaluate(known, split, phase="test", config=QUICK).biases) == 4 * 2


def test_calibrated_scores_are_never_below_plain_ones_where_the_bias_was_chosen(gaussians):
    results = run(gaussians, config=QUICK.with_overrides({"num_draws": 4, "num_seeds": 2}))

    means = results.scores.groupby(["column", "method", "head", "shots"])[["top1", "top5"]].mean()
    gain = means.loc["all_calibrated"] - means.loc["all"]
    assert (gain.to_numpy() > -1e-9).all()
    assert (gain.to_numpy() > 1).any(), "a bias is worth points somewhere"
    biases = results.biases.set_index(["method", "head", "shots"])
    unbiased = (biases == 0).to_numpy() & (gain.loc[biases.index].to_numpy() != 0)
    assert not unbiased.any()


def test_related_base_examples_help_at_one_shot_where_families_share_their_covariance(gaussians):
    config = EvaluationConfig(shots=(1,), num_draws=10, perplexity=4, heads=("knn",))

    results = run(gaussians, config=config)

    none, copies = (
        cells(results, method=method, column="novel")["top5"] for method in ("none", "copy")
    )
    assert (copies - none).mean() > 2


def test_cosine_trained_features_of_other_rows_or_of_novel_classes_are_refused(gaussians):
    table, novel = gaussians.table, gaussians.split.validation.novel
    is_train = np.array(table.is_train)
    is_train[table.rows_of(novel[3], "train")[0]] = False
    fewer = table.with_changes(is_train=is_train)

    with pytest.raises(
        ValueError, match=f"different rows: class {novel[3]} has 24 train rows, not"
    ):
        run(gaussians, methods=["AWG-cosine"], cosine_table=fewer)
    with pytest.raises(ValueError, match="backbone was trained on 1 of 12 novel classes"):
        run(gaussians, methods=["AWG-cosine"], cosine_table=in_other_order(table, novel[:1]))
