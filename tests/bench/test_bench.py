"""Test that benchmarks write rows or an error; no test measures time."""

import json
from dataclasses import replace

import pytest
import torch

from cpaan.bench import kyfan
from cpaan.bench.__main__ import main
from cpaan.bench.measuring import Bench, Subject
from cpaan.bench.scales import SCALES, real_classes
from helpers.commands import refused
from helpers.gan_runs import tiny_config, tiny_data

pytestmark = pytest.mark.usefixtures("builtin_cache")


def test_both_sides_of_kyfan_have_the_same_gradient_and_exact_norms_have_no_error():
    config = tiny_config(num_covariance_classes=3)
    comparison = kyfan.compare(tiny_data(config), config, seed=0, is_shifted=True)

    _, gradient = kyfan.ours(comparison)
    plain = kyfan.plain(comparison, torch.arange(comparison.classes.numel()))
    precision = kyfan.errors(comparison)

    torch.testing.assert_close(gradient, plain)
    assert precision.pop("checked_pairs") == 6  # two novel classes, three base classes
    assert max(precision.values()) < 1e-12


def test_classes_beyond_the_real_ones_have_covariances_of_real_examples():
    table_classes = real_classes(78)

    assert [len(rows) for rows in table_classes[75:]] == [150, 75, 75]
    assert all((rows >= 0).all() and rows.std(dim=0).mean() > 0 for rows in table_classes)
    assert not torch.equal(table_classes[76], table_classes[77])


@pytest.mark.parametrize(
    ("repeats", "most_seconds", "num_measured"),
    [(3, 60.0, 3), (9, 0.0, 1)],  # without time, they are measured once
)
def test_functions_are_called_in_turn(repeats, most_seconds, num_measured):
    calls = []
    subjects = {name: Subject(lambda name=name: calls.append(name), 2) for name in "ab"}
    scale = replace(SCALES["small"], repeats=repeats, most_seconds=most_seconds)

    times = Bench(torch.device("cpu"), scale, seed=0, say=print).time(**subjects)

    assert calls == ["a", "b"] * (2 + num_measured)  # includes two warm-up calls
    assert [len(times[name].times_ms) for name in "ab"] == [num_measured] * 2
    assert times["a"].peak_memory_mb is None


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        pytest.param(["kyfan", "--only", "kyfan"], "kyfan", marks=pytest.mark.slow),
        pytest.param(["episode", "--only", "cCov-GAN"], "episode cCov-GAN", marks=pytest.mark.slow),
        pytest.param(["evaluate"], "evaluate linear iteration", marks=pytest.mark.slow),
    ],
)
def test_rows_are_printed_and_written(arguments, first, tmp_path, capsys):
    path = tmp_path / "new" / "rows.json"

    status = main([*arguments, "--device", "cpu", "--scale", "small", "--json", str(path)])

    assert status == 0
    rows = json.loads(path.read_text())
    assert rows[0]["name"] == first
    for row in rows:
        assert (row["device"], row["scale"]) == ("cpu", "small")
        assert row["ours_ms"] > 0
        if row["plain_ms"] is not None:  # on a CPU, some steps have nothing to compare with
            assert row["ratio"] == pytest.approx(row["plain_ms"] / row["ours_ms"])
        assert row["peak_memory_mb"] is None
        assert {"commit", "command", "seed", "torch", "device_name"} <= row.keys()
    errors = [row["relative_error"] for row in rows if row["relative_error"] is not None]
    assert max(errors, default=0.0) < 1e-2
    printed = capsys.readouterr().out
    assert all(row["name"] in printed for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "argument NAME: invalid choice: 'nothing'"),
        (["kyfan", "--device", "abacus"], "device abacus cannot be used"),
        (["kyfan", "--json", "."], "--json names a file, but . is a folder"),
        (["kyfan", "--json", "/proc/x/rows.json"], "cannot write to /proc/x"),
        (["kyfan", "--seed", "-1"], "--seed must not be negative, got -1"),
        (["kyfan", "--scale", "small", "--only", "xyz"], "no row of kyfan has 'xyz' in its name"),
        (["kyfan", "--device", "meta"], "device must be cpu or cuda, got meta"),
    ],
)
def test_a_mistake_is_one_line_and_the_status_two(arguments, message, capsys):
    line = refused(capsys, main, *arguments)
    assert line.startswith(f"python -m cpaan.bench: error: {message}")
