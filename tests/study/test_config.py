"""Test the evaluation steps and the score of trials, and the data of a study."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpaan import Phase, Split, open_features, write_features
from cpaan.data.reference import DataReference
from cpaan.study.config import PRESETS, StudyConfig
from helpers.tables import hdf5_pair, in_other_order, random_table

SPLIT = Split(
    validation=Phase(base=("class0",), novel=("class1",)),
    test=Phase(base=("class2",), novel=("class3",)),
)


@pytest.mark.parametrize(
    ("settings", "num_episodes", "eval_steps"),
    [
        ({}, 200, (50, 100, 200)),
        ({"num_rungs": 3}, 100_000, (12_500, 25_000, 50_000, 100_000)),
        ({"reduction_factor": 3, "num_rungs": 1}, 90, (30, 90)),
        ({"num_rungs": 0}, 200, (200,)),
        # A quarter of 200 is 50. The nearest multiples of four workers are 48 and 52.
        ({"workers_per_trial": 4}, 200, (48, 96, 200)),
        ({"workers_per_trial": 3, "reduction_factor": 3}, 99, (12, 36, 99)),
        ({}, 3, (1, 2, 3)),
        ({}, 1, (1,)),
        ({"workers_per_trial": 2}, 2, (2,)),
    ],
)
def test_a_trial_is_evaluated_at_the_rungs_and_at_its_end(settings, num_episodes, eval_steps):
    assert StudyConfig(**settings).eval_steps(num_episodes) == eval_steps


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"ray_train": True}, True),
        ({"workers_per_trial": 2}, True),
        ({"gpus_per_worker": 0.25}, True),
        ({"gpus_per_worker": 0.25, "ray_train": False}, False),
    ],
)
def test_a_single_process_on_a_cpu_needs_no_ray_train(settings, expected):
    assert StudyConfig(**settings).uses_ray_train == expected


@pytest.mark.parametrize("preset", PRESETS)
def test_trials_of_a_preset_have_all_its_rungs(preset):
    config, (training, _) = StudyConfig(**PRESETS[preset].study), PRESETS[preset].recommended()

    assert len(config.eval_steps(training.num_episodes)) == config.num_rungs + 1


@pytest.mark.parametrize(
    ("novel_weight", "all_weight", "score"), [(1, 1, 50), (3, 1, 45), (1, 0, 40), (0, 0.1, 60)]
)
def test_the_score_is_the_weighted_mean_of_both_accuracies(novel_weight, all_weight, score):
    config = StudyConfig(novel_weight=novel_weight, all_weight=all_weight)

    assert config.score({"novel_top5": 40.0, "all_calibrated_top5": 60.0}) == pytest.approx(score)


def through_json(reference: DataReference) -> DataReference:
    return DataReference.from_dict(json.loads(json.dumps(reference.to_dict())))


def test_a_reference_to_data_holds_wherever_a_process_stands_until_they_change(
    tmp_path, monkeypatch
):
    write_features(Path("features.parquet"), random_table())
    reference = DataReference.of(random_table(), SPLIT, ["features.parquet"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert through_json(reference) == reference
    assert through_json(reference).open().fingerprint == random_table().fingerprint
    other = random_table(num_rows=20)
    write_features(tmp_path / "features.parquet", other)
    changed = f"its fingerprint is {other.fingerprint}, not {reference.fingerprint}"
    with pytest.raises(ValueError, match=f"features.parquet changed: {changed}"):
        reference.open()


def test_names_of_numbered_classes_are_a_part_of_the_reference(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    split = Split(Phase(("ant",), ("bee",)), Phase(("cat",), ("dog",)), label_names=names)
    paths = [str(path) for path in hdf5_pair(tmp_path)]
    table = open_features(*paths, label_names=names)

    again = through_json(DataReference.of(table, split, paths))

    assert again.split == split
    assert again.open().class_names == ("ant", "bee", "cat")


def test_features_are_opened_in_the_order_of_others(tmp_path):
    table, paths = random_table(), [str(tmp_path / f"{name}.parquet") for name in "ab"]
    write_features(Path(paths[0]), table)
    write_features(Path(paths[1]), in_other_order(table))

    ordered = through_json(DataReference.of(table, SPLIT, paths[1:], paths[:1]))

    assert np.array_equal(ordered.open().features, table.features)
    with pytest.raises(ValueError, match="parquet changed"):
        replace(ordered, in_order_of=()).open()
