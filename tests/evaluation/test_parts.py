"""Test that parts of an evaluation give the same results in any executor, cached or resumed."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cpaan import FeatureTable, Phase, Split, evaluate, write_features
from cpaan.cli import main
from cpaan.core.provenance import TEST_READS
from cpaan.core.settings import Settings
from cpaan.evaluation.runner import Results
from cpaan.methods.registry import METHODS
from helpers.runs import QUICK, tiny
from helpers.tables import in_other_order, write_data

NAMES = ["none", "copy", "AWG"]


def settings_of(names: list[str], **changes: dict[str, object]) -> dict[str, Settings]:
    return {
        name: tiny(METHODS[name].config).with_overrides(changes.get(name, {}))
        for name in [*names, "PN"]
    }


def run(gaussians, said: list[str], *, names: list[str] = NAMES, **changes) -> Results:
    """Run parts in this process, with a cache in the folder "parts"."""
    arguments = {
        "table": gaussians.table,
        "split": gaussians.split,
        "config": QUICK,
        "methods": names,
        "settings": settings_of(names),
        "cache": Path("parts"),
        "progress": said.append,
        **changes,
    }
    return evaluate(**arguments)


def done(said: list[str]) -> list[str]:
    """Return the parts that were run, in order, and clear the lines."""
    parts = [line.partition(":")[0] for line in said if ": done (" in line]
    said.clear()
    return parts


def assert_same(results: Results, expected: Results) -> None:
    for name in ("scores", "diversity", "biases", "heads"):
        frame, wanted = getattr(results, name), getattr(expected, name)
        pd.testing.assert_frame_equal(frame, wanted, check_exact=True, obj=name)


@pytest.mark.slow
def test_two_processes_give_what_one_gives_to_the_last_bit_and_read_the_test_phase_once(
    gaussians, tmp_path
):
    names = ["none", "copy", "AWG", "AWG-cosine", "c-GAN-PN"]
    features, cosine = write_data(tmp_path, gaussians), tmp_path / "cosine.parquet"
    write_features(cosine, in_other_order(gaussians.table))
    said: list[str] = []
    arguments = {
        "names": names,
        "config": QUICK.with_overrides({"num_seeds": 2}),
        "phase": "test",
        "cosine_table": in_other_order(gaussians.table),
        "locations": {"features": [str(features)], "cosine-features": [str(cosine)]},
    }

    together = run(gaussians, said, num_processes=2, cache=None, **arguments)

    reads = [json.loads(line)["features"] for line in TEST_READS.read_text().splitlines()]
    assert len(reads) == len(set(reads)) == 2  # plain and cosine-trained features
    assert together.about["test_reads"] == 1
    assert set(done(said)) == {f"{name}, seed {seed}" for name in names for seed in (0, 1)}
    assert_same(together, run(gaussians, said, **arguments))


def test_only_what_is_missing_is_run_and_cached_parts_are_those_of_a_plain_evaluation(gaussians):
    said: list[str] = []
    first, plain = run(gaussians, said), run(gaussians, [], cache=None)
    assert done(said) == ["none, seed 0", "copy, seed 0", "AWG, seed 0"]

    part_of("copy").unlink()
    again = run(gaussians, said)

    assert "2 of 3 parts loaded from the cache" in said
    assert "copy, seed 0: done (3 of 3)" in said
    assert done(said) == ["copy, seed 0"]
    for results in (first, again, run(gaussians, said)):
        assert_same(results, plain)
    assert done(said) == []


def test_on_the_test_phase_choices_of_the_validation_phase_are_kept_with_a_part(gaussians):
    first, again = (run(gaussians, [], phase="test") for _ in range(2))

    assert_same(again, first)
    assert (first.about["test_reads"], again.about["test_reads"]) == (1, 2)


def part_of(name: str) -> Path:
    (path,) = Path("parts").glob(f"{name}-seed0-*.zip")
    return path


@pytest.mark.parametrize("kind", ["empty", "no archive", "truncated", "of another commit"])
def test_a_part_that_is_damaged_or_of_another_commit_is_measured_again(
    gaussians, kind, monkeypatch
):
    said: list[str] = []
    first = run(gaussians, said)
    done(said)

    path = part_of("copy")
    content = {"empty": b"", "no archive": b"PK", "truncated": path.read_bytes()[:-40]}
    if kind in content:
        path.write_bytes(content[kind])
    else:
        monkeypatch.setenv("CPAAN_COMMIT", "another")

    assert_same(run(gaussians, said), first)
    assert done(said) == [f"{name}, seed 0" for name in (["copy"] if kind in content else NAMES)]


def other_row(table: FeatureTable) -> FeatureTable:
    features = np.array(table.features)
    features[0, 0] += 1e-3
    return table.with_changes(features=features)


def fewer_base_classes(split: Split) -> Split:
    validation = split.validation
    return Split(Phase(validation.base[:-2], validation.novel), split.test)


def quick(**changes: object) -> dict[str, object]:
    return {"config": QUICK.with_overrides(changes)}


NONE, EMBEDDED, WITH_COSINE = ["none"], ["none", "c-GAN-PN"], [*NAMES, "AWG-cosine"]
DROPOUT = {"dropout": 0.1}
CHANGES = {
    "features": (NONE, lambda data: {"table": other_row(data.table)}, NONE),
    "split": (NONE, lambda data: {"split": fewer_base_classes(data.split)}, NONE),
    "draws": (NONE, lambda data: quick(draw_seed=1), NONE),
    "config": (NONE, lambda data: quick(linear_num_steps=4), NONE),
    "heads": (NONE, lambda data: quick(heads=("knn", "linear")), NONE),
    "phase": (NONE, lambda data: {"phase": "test"}, NONE),
    # The key has the content of the features and the settings of the part's own method.
    "renamed": (NONE, lambda data: {"table": replace(data.table, backbone="renamed")}, []),
    "settings": (NAMES, lambda data: {"settings": settings_of(NAMES, AWG=DROPOUT)}, ["AWG"]),
    "embedding": (
        EMBEDDED,
        lambda data: {"settings": settings_of(EMBEDDED, PN=DROPOUT)},
        ["c-GAN-PN"],
    ),
    "more": (
        NONE,
        lambda data: {"names": ["copy", "none"], **quick(num_seeds=2)},
        ["copy", "copy, seed 1", "none, seed 1"],
    ),
    "cosine": (
        WITH_COSINE,
        lambda data: {"cosine_table": in_other_order(other_row(data.table))},
        ["AWG-cosine"],
    ),
}
"""By what has changed: the rows, the change, and the parts that are run again."""


@pytest.mark.parametrize(("names", "change", "again"), CHANGES.values(), ids=CHANGES)
def test_only_parts_that_a_change_concerns_are_run_again(gaussians, names, change, again):
    said: list[str] = []
    cosine = in_other_order(gaussians.table) if "AWG-cosine" in names else None
    run(gaussians, said, names=names, cosine_table=cosine)
    done(said)
    changed = {"names": names, "cosine_table": cosine, **change(gaussians)}

    results = run(gaussians, said, **changed)

    assert done(said) == [name if "," in name else f"{name}, seed 0" for name in again]
    assert_same(results, run(gaussians, [], cache=None, **changed))


DIVERGING = settings_of(NAMES, AWG={"learning_rate": 1e30})


def test_a_row_that_fails_leaves_the_others_and_is_named(gaussians):
    said: list[str] = []
    expected = run(gaussians, [], names=["none", "copy"])

    results = run(gaussians, said, names=["none", "AWG", "copy"], settings=DIVERGING)

    assert results.about["methods"] == ["none", "copy"]
    assert list(results.about["failed"]) == ["AWG"]
    assert "seed 0: " in results.about["failed"]["AWG"]
    assert "diverged" in results.about["failed"]["AWG"]
    assert_same(results, expected)
    assert not list(Path("parts").glob("AWG-*"))  # so the next run tries it again
    with pytest.raises(ValueError, match=r"^AWG failed with seed 0: .*diverged"):
        run(gaussians, [], names=["AWG"], settings=DIVERGING)


def test_the_command_names_a_row_that_failed_and_says_so_by_its_status(gaussians, capsys):
    features = str(write_data(Path(), gaussians))
    options = ["evaluate", "--features", features, "--split", "split.json", "--shots", "1,2"]
    options += ["--draws", "2", "--heads", "centroid", "--jobs", "2", "--out", "out", "--methods"]
    assert main([*options, "none"]) == 0

    # One of two parts is cached, so the other one runs in this process.
    sets = ["--set", "AWG.learning_rate=1e30", "--set", "AWG.episode_shots=1,2", "--episodes", "3"]
    status = main([*options, "none,AWG", *sets])

    output, progress = capsys.readouterr()
    assert status == 1
    assert "1 of 2 parts loaded from the cache" in progress
    assert "AWG failed with seed 0: " in output.splitlines()[-1]
    content = json.loads(Path("out/results.json").read_text())
    assert list(content["failed"]) == ["AWG"]
    assert {row["method"] for row in content["rows"]} == {"none"}
