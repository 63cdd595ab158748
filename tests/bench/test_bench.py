"""Test that the fast path equals the plain definition, and that benchmarks write rows or an error.

The tests measure no times.
"""

import json
from dataclasses import replace

import pytest
import torch

from cpaan.bench import kyfan
from cpaan.bench.__main__ import main
from cpaan.bench.episode import count_flop
from cpaan.bench.measuring import Bench, Peaks, Subject
from cpaan.bench.plain import PlainRun, both_terms
from cpaan.bench.scales import SCALES, real_base, real_classes
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.gans import GANS, Networks
from cpaan.gan.loop import TrainingRun
from helpers.commands import refused
from helpers.gan_runs import tiny_config, tiny_data

pytestmark = pytest.mark.usefixtures("builtin_cache")


def config_of(**settings) -> TrainConfig:
    others = {"episode_shots": (1, 3), "num_neighbours": 2, "num_covariance_classes": 3}
    return tiny_config(**{**others, **settings})


def assert_plain(
    name: str, data: TrainingData, config: TrainConfig, size: float, tolerance: float
) -> None:
    """Compare each term and its gradient for the weights of its side with the plain definition."""
    networks, rng = Networks(GANS[name], data, config, new_rng(0)), new_rng(3)
    for parameter in networks.parameters():  # residual generators start at zero without gradients
        parameter.data.copy_(size * torch.randn(parameter.shape, generator=rng))
    fast, plain = both_terms(GANS[name], networks, data, config, new_rng(1))
    sides = (networks.discriminator_parameters(), networks.generator_parameters())
    for ours, reference, parameters in zip(fast, plain, sides, strict=True):
        assert ours.keys() == reference.keys()
        for term, value in reference.items():
            torch.testing.assert_close(
                ours[term].to(value), value, rtol=tolerance, atol=1e-2 * tolerance
            )
            if value.requires_grad:
                found, wanted = (
                    torch.cat([part.flatten() for part in gradients_of(each, parameters)])
                    for each in (ours[term], value)
                )
                # The fast path compares wide covariances in their leading directions only.
                most = 100 * tolerance if term == "covariance" else tolerance
                assert (found - wanted).norm() <= most * wanted.norm(), term


def gradients_of(value: torch.Tensor, parameters: list) -> tuple[torch.Tensor, ...]:
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(value, parameters, **options)


CASES = [
    (name, {"neighbours": neighbours, "residual": residual, "sampling": sampling})
    for name in GANS
    for neighbours in ("soft", "hard")
    for residual in ("none", "identity", "mean-shift")
    for sampling in ("shared", "uniform")
]
TO_THE_LETTER = {"normalised_weights": False, "sampling": "uniform"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *CASES,
        *(("cCov-GAN", {**s, "noise": "mixture"}) for name, s in CASES[::5] if name == "cCov-GAN"),
        ("cCov-GAN", {"covariance_classes": "all"}),
        ("cCov-GAN", TO_THE_LETTER),
        ("cCov-GAN", {"covariance_classes": "all", "perplexity": None, **TO_THE_LETTER}),
        ("cCov-GAN", {"covariance_classes": "all", "neighbours": "hard", **TO_THE_LETTER}),
        ("cCov-GAN", {"generator_loss": "minimax"}),
        ("cCov-GAN", {"output": "relu"}),
        ("cCov-GAN", {"neighbours": "none"}),
        ("cCov-GAN", {"real_examples": "shots"}),
        ("cCov-GAN", {"adversarial_weight": 0.0}),
        ("cCov-GAN", {"cycle_weight": 0.0}),
        ("cCov-GAN", {"covariance_weight": 0.0}),
        ("cCov-GAN", {"prototype_weight": 0.0}),
        ("cCov-GAN", {"normalisation": "none"}),
        ("cCov-GAN", {"is_positive": True}),  # non-negative features and translations
    ],
    ids=str,
)
def test_the_fast_path_is_the_plain_definition(name, settings):
    config = config_of(**{key: settings[key] for key in settings if key != "is_positive"})
    data = tiny_data(config, is_positive="is_positive" in settings)

    assert_plain(name, data, config, size=0.5, tolerance=1e-9)


@pytest.mark.parametrize("name", GANS)
def test_plain_training_takes_the_same_steps(name):
    config = config_of(noise="mixture", anneal_every_episodes=2)
    episodes = MetaEpisodes(tiny_data(config), config)
    run = TrainingRun(GANS[name], episodes, config, new_rng(0))
    plain = PlainRun(GANS[name], episodes, config, new_rng(0))

    run.advance(4)
    for _ in range(4):
        plain.step()

    for wanted, found in zip(plain.networks.parameters(), run.networks.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


def test_both_sides_of_kyfan_have_the_same_gradient_and_exact_norms_have_no_error():
    config = config_of()
    comparison = kyfan.compare(tiny_data(config), config, seed=0, is_moved=True)

    _, gradient = kyfan.ours(comparison)
    plain = kyfan.plain(comparison, torch.arange(comparison.classes.numel()))
    found = kyfan.errors(comparison)

    torch.testing.assert_close(gradient, plain)
    assert found["checked_pairs"] == 6  # two novel classes, three base classes each
    errors = [found[key] for key in ("relative_error", "largest_relative_error", "pairing_error")]
    assert max(errors) < 1e-12


def test_the_floor_is_the_slower_of_arithmetic_and_traffic():
    peaks = Peaks(flop_per_second=1e12, bytes_per_second=1e9)

    assert peaks.floor_ms(3e9, 1e6) == 3.0
    assert peaks.floor_ms(3e9, 5e6) == 5.0
    # A step of the paper's cCov-GAN: 0.46 TFLOP of matrix products.
    flop = count_flop(GANS["cCov-GAN"], SCALES["paper"].training, 512, 389)
    assert flop == pytest.approx(0.463e12, rel=1e-2)


def test_classes_beyond_the_real_ones_have_covariances_of_real_examples():
    table_classes = real_classes(78)

    assert [len(rows) for rows in table_classes[75:]] == [150, 75, 75]
    assert all((rows >= 0).all() and rows.std(dim=0).mean() > 0 for rows in table_classes)
    assert not torch.equal(table_classes[76], table_classes[77])


@pytest.mark.parametrize(
    ("repeats", "most_seconds", "num_measured"),
    [(3, 60.0, 3), (9, 0.0, 1)],  # without time, each is measured once
)
def test_functions_are_called_in_turn(repeats, most_seconds, num_measured):
    calls = []
    subjects = {name: Subject(lambda name=name: calls.append(name), 2) for name in "ab"}
    scale = replace(SCALES["small"], repeats=repeats, most_seconds=most_seconds)

    times = Bench(torch.device("cpu"), scale, seed=0, say=print).time(**subjects)

    assert calls == ["a", "b"] * (2 + num_measured)  # includes two warm-up calls each
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
        assert row["ratio"] == pytest.approx(row["plain_ms"] / row["ours_ms"])
        assert row["peak_memory_mb"] is None
        if arguments[0] != "evaluate":
            assert row["floor_ratio"] == pytest.approx(row["ours_ms"] / row["floor_ms"])
        assert {"commit", "command", "seed", "torch", "device_name"} <= row.keys()
    errors = [row["relative_error"] for row in rows if row["relative_error"] is not None]
    assert errors
    assert max(errors) < 1e-2
    printed = capsys.readouterr().out
    assert all(row["name"] in printed for row in rows)
    assert "over floor" in printed


@pytest.mark.slow
def test_the_parts_of_a_data_parallel_step_make_up_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr("cpaan.bench.data_parallel._REPEATS", 1)  # for a short test
    path = tmp_path / "rows.json"

    status = main(["data-parallel", "--device", "cpu", "--scale", "small", "--json", str(path)])

    assert status == 0
    whole, *parts = json.loads(path.read_text())
    assert [row["name"] for row in parts] == [
        f"data-parallel step: {part}" for part in ("compute", "all-reduce", "wait")
    ]
    assert all(row["ours_ms"] > 0 for row in parts)
    # Two episodes make a step.
    assert sum(row["ours_ms"] for row in parts) == pytest.approx(2 * whole["ours_ms"])


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


REAL = {
    "num_ways": 4,
    "episode_shots": (5,),
    "batch_size": 80,
    "perplexity": 8.0,
    "hidden_dim": 32,
    "noise_dim": 8,
    "num_components": 5,
    "num_covariance_classes": 6,
    "ky_fan_order": 5,
}


@pytest.mark.parametrize("neighbours", ["soft", "hard"])
@pytest.mark.parametrize(
    ("name", "noise"), [*((name, "gaussian") for name in GANS), ("cCov-GAN", "mixture")]
)
def test_losses_and_gradients_in_float32_are_plain_to_four_digits(name, noise, neighbours):
    """Use real features, whose covariances are compared in their leading directions only."""
    config = TrainConfig(**REAL, noise=noise, neighbours=neighbours, residual="mean-shift")
    data = TrainingData.prepare(real_base(20, 64), config, with_covariances=True)

    assert_plain(name, data, config, size=0.1, tolerance=1e-4)
