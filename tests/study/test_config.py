"""When trials are evaluated, what their score is, and which data a study is about."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpaan import Phase, Split, open_features, write_features
from cpaan.data.reference import DataReference
from cpaan.study.config import StudyConfig
from helpers.tables import hdf5_pair, in_other_order, random_table

SPLIT = Split(
    validation=Phase(base=("class0",), novel=("class1",)),
    test=Phase(base=("class2",), novel=("class3",)),
)


def through_json(reference: DataReference) -> DataReference:
    return DataReference.from_dict(json.loads(json.dumps(reference.to_dict())))


@pytest.fixture
def reference(tmp_path) -> DataReference:
    """Forty rows in ``features.parquet``."""
    write_features(tmp_path / "features.parquet", random_table())
    path = str(tmp_path / "features.parquet")
    return DataReference.of(open_features(path), SPLIT, [path])


@pytest.mark.parametrize(
    ("settings", "num_episodes", "eval_steps"),
    [
        ({}, 200, (50, 100, 200)),
        ({"num_rungs": 3}, 100_000, (12_500, 25_000, 50_000, 100_000)),
        ({"reduction_factor": 3, "num_rungs": 1}, 90, (30, 90)),
        ({"num_rungs": 0}, 200, (200,)),
        # A quarter of 200 is 50, and the nearest multiple of four workers 48 or 52.
        ({"workers_per_trial": 4}, 200, (48, 96, 200)),
        ({}, 3, (1, 2, 3)),
        ({}, 1, (1,)),
        ({"workers_per_trial": 2}, 2, (2,)),
    ],
)
def test_a_trial_is_evaluated_at_the_rungs_and_at_its_end(settings, num_episodes, eval_steps):
    assert StudyConfig(**settings).eval_steps(num_episodes) == eval_steps


@pytest.mark.parametrize(
    ("num_workers", "reduction_factor", "num_rungs"), [(1, 4, 5), (2, 2, 1), (3, 3, 2), (8, 2, 0)]
)
def test_marks_rise_by_the_reduction_factor_in_whole_shares(
    num_workers, reduction_factor, num_rungs
):
    config = StudyConfig(
        workers_per_trial=num_workers, reduction_factor=reduction_factor, num_rungs=num_rungs
    )

    for num_steps in range(1, 100):
        num_episodes = num_steps * num_workers
        *rungs, last = eval_steps = config.eval_steps(num_episodes)

        assert last == num_episodes
        assert len(eval_steps) <= num_rungs + 1
        assert all(step % num_workers == 0 for step in eval_steps)
        assert rungs == [rungs[0] * reduction_factor**number for number in range(len(rungs))]
        assert all(rung < last for rung in rungs)


@pytest.mark.parametrize(
    ("novel_weight", "all_weight", "score"), [(1, 1, 50), (3, 1, 45), (1, 0, 40), (0, 0.1, 60)]
)
def test_the_score_is_the_weighted_mean_of_both_accuracies(novel_weight, all_weight, score):
    config = StudyConfig(novel_weight=novel_weight, all_weight=all_weight)

    assert config.score(novel_top5=40.0, all_top5=60.0) == pytest.approx(score)


def test_a_study_reads_back_from_json():
    config = StudyConfig(method="c-GAN", novel_weight=2.0)

    assert StudyConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_reference_to_data_reads_back_from_json(reference):
    again = through_json(reference)

    assert again == reference
    assert again.open().fingerprint == random_table().fingerprint


def test_a_reference_holds_wherever_a_process_stands(reference, tmp_path, monkeypatch):
    relative = DataReference.of(reference.open(), SPLIT, ["features.parquet"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert relative == reference
    assert relative.open().fingerprint == reference.fingerprint


def test_names_of_numbered_classes_are_a_part_of_the_reference(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    split = Split(Phase(("ant",), ("bee",)), Phase(("cat",), ("dog",)), label_names=names)
    paths = [str(path) for path in hdf5_pair(tmp_path)]
    table = open_features(*paths, label_names=names)

    again = through_json(DataReference.of(table, split, paths))

    assert again.split == split
    assert again.open().class_names == ("ant", "bee", "cat")


def test_changed_data_are_refused(reference, tmp_path):
    other = random_table(num_rows=20)
    write_features(tmp_path / "features.parquet", other)

    with pytest.raises(
        ValueError,
        match=f"features.parquet changed: the fingerprint is {other.fingerprint} and not "
        f"{reference.fingerprint}",
    ):
        reference.open()


def test_features_are_opened_in_the_order_of_others(tmp_path, reference):
    table = reference.open()
    path = str(tmp_path / "other.parquet")
    write_features(Path(path), in_other_order(table))
    ordered = replace(reference, features=(path,), in_order_of=reference.features)

    assert through_json(ordered) == ordered
    assert np.array_equal(through_json(ordered).open().features, table.features)
    with pytest.raises(ValueError, match="parquet changed"):
        replace(ordered, in_order_of=()).open()
