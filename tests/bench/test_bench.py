"""The fast path equals the plain definition; benchmarks print and write rows, or one error line.

Tests do not time.
"""

import json
from functools import partial
from itertools import combinations, product

import pytest
import torch

from cpaan.bench import kyfan
from cpaan.bench.__main__ import main
from cpaan.bench.evaluate import compare_logits
from cpaan.bench.measuring import Subject, growth, interleave
from cpaan.bench.plain import PlainRun, plain_terms
from cpaan.bench.scales import real_classes
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import ky_fan_norm
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.gans import GANS, Gan, Networks
from cpaan.gan.loop import TERMS, TrainingRun
from cpaan.gan.objectives import (
    discriminator_objective,
    discriminator_terms,
    generator_objective,
    moment_terms,
    pair_terms,
)
from cpaan.protocol.config import LINEAR_AS_IN_BENCHMARK, EvaluationConfig
from cpaan.protocol.tasks import BaseSet
from helpers.gan_runs import tiny_config, tiny_data
from helpers.tasks import small_task

pytestmark = pytest.mark.usefixtures("builtin_cache")


def config_of(**settings) -> TrainConfig:
    others = {"episode_shots": (1, 3), "num_neighbours": 2, "num_covariance_classes": 3}
    return tiny_config(**{**others, **settings})


def both_terms(gan: Gan, data: TrainingData, config: TrainConfig, *, weight_size: float) -> tuple:
    """Return networks with drawn weights, and one episode's terms by the fast path and the plain.

    Terms are those of discriminators, then those of generators.
    """
    networks = Networks(gan, data, config, new_rng(0), has_reverse_generator=gan.has_cycle)
    for_weights = new_rng(3)
    with torch.no_grad():  # residual generators start with zeros, where gradients vanish
        for parameter in networks.parameters():
            parameter.copy_(weight_size * torch.randn(parameter.shape, generator=for_weights))
    rng = new_rng(1)
    episode = MetaEpisodes(data, config).draw(rng)
    state = rng.get_state()
    moved = networks.translate(episode, rng)
    fast = (
        discriminator_terms(networks, episode, moved),
        {
            **moment_terms(gan, episode, moved, data, config),
            **pair_terms(gan, networks, episode, moved, config, rng),
        },
    )
    rng.set_state(state)
    return networks, fast, plain_terms(gan, networks, episode, data, config, rng)


def assert_plain_terms(name: str, *, is_positive: bool = False, **settings) -> None:
    """Compare terms and gradients of fast path and plain definition, at weights that are drawn."""
    config = config_of(**settings)
    networks, fast, plain = both_terms(
        GANS[name], tiny_data(config, is_positive=is_positive), config, weight_size=0.5
    )
    sides = (networks.discriminator_parameters(), networks.generator_parameters())
    for ours, reference, parameters in zip(fast, plain, sides, strict=True):
        assert ours.keys() == reference.keys()
        for term, value in reference.items():
            torch.testing.assert_close(ours[term].to(value), value, rtol=1e-9, atol=1e-12)
            if not value.requires_grad:
                continue
            wanted, found = (
                torch.autograd.grad(
                    each, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for each in (value, ours[term])
            )
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


SWITCHES = {
    "neighbours": ("soft", "hard"),
    "residual": ("none", "identity", "mean-shift"),
    "sampling": ("shared", "uniform"),
}
# Every value of a switch meets every GAN and every value of every other switch.
CASES = [
    (name, dict(zip(SWITCHES, values, strict=True)))
    for name, *values in (
        ("c-GAN", "soft", "none", "shared"),
        ("c-GAN", "hard", "identity", "uniform"),
        ("c-GAN", "soft", "mean-shift", "uniform"),
        ("cCyc-GAN", "hard", "none", "shared"),
        ("cCyc-GAN", "soft", "identity", "uniform"),
        ("cCyc-GAN", "hard", "mean-shift", "shared"),
        ("cDeLi-GAN", "hard", "none", "uniform"),
        ("cDeLi-GAN", "soft", "identity", "shared"),
        ("cDeLi-GAN", "soft", "mean-shift", "shared"),
        ("cCov-GAN", "hard", "none", "shared"),
        ("cCov-GAN", "soft", "identity", "shared"),
        ("cCov-GAN", "hard", "mean-shift", "uniform"),
    )
]


def test_the_cases_have_every_pair_of_values():
    rows = [{"name": name, **settings} for name, settings in CASES]
    values = {"name": GANS, **SWITCHES}

    for first, second in combinations(values, 2):
        met = {(row[first], row[second]) for row in rows}
        assert met == set(product(values[first], values[second]))


TO_THE_LETTER = {"normalised_weights": False, "sampling": "uniform"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *CASES,
        *(("cCov-GAN", {**s, "noise": "mixture"}) for name, s in CASES if name == "cCov-GAN"),
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
    ],
    ids=str,
)
def test_the_fast_path_is_the_plain_definition(name, settings):
    assert_plain_terms(name, **settings)


def test_features_that_are_not_negative_are_translated_to_such():
    assert_plain_terms("cCov-GAN", is_positive=True)


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


def comparison() -> kyfan.Comparison:
    config = config_of()
    return kyfan.compare(tiny_data(config), config, seed=0, is_moved=True)


def test_both_sides_of_kyfan_have_the_same_gradient():
    found = comparison()

    norms, gradient = kyfan.ours(found)
    plain = kyfan.plain(found, torch.arange(found.classes.numel()))

    torch.testing.assert_close(norms, ky_fan_norm(found.differences, found.m))
    torch.testing.assert_close(gradient, plain)


def test_exact_norms_have_no_error():
    found = kyfan.errors(comparison())

    assert found["checked_pairs"] == 6  # two novel classes, three base classes each
    errors = [found[key] for key in ("relative_error", "largest_relative_error", "pairing_error")]
    assert max(errors) < 1e-12


def test_an_ordinary_loop_finds_the_logits_of_the_linear_head():
    rng = new_rng(0)
    base, shots = (torch.randn(3, 8, 4, generator=rng).tolist() for _ in range(2))
    task = small_task(base, shots)
    synthetic = torch.randn(1, 3, 5, 4, generator=rng)
    config = EvaluationConfig(**{**LINEAR_AS_IN_BENCHMARK, "linear_batch_size": 24})

    error = compare_logits(task, synthetic, torch.randn(9, 4, generator=rng), config, 10, seed=0)

    assert error < 1e-5


def test_classes_beyond_the_real_ones_have_covariances_of_real_examples():
    table_classes = real_classes(78)

    assert [len(rows) for rows in table_classes[75:]] == [150, 75, 75]
    assert all((rows >= 0).all() and rows.std(dim=0).mean() > 0 for rows in table_classes)
    assert not torch.equal(table_classes[76], table_classes[77])


def test_functions_are_called_in_turn():
    calls = []
    subjects = {name: Subject(lambda name=name: calls.append(name), 2) for name in "ab"}

    times = interleave(subjects, torch.device("cpu"), repeats=3, most_seconds=60.0)

    assert calls == ["a", "b"] * 5  # two of each warm up
    assert [times[name].repeats for name in "ab"] == [3, 3]
    assert times["a"].peak_memory_mb is None

    calls.clear()  # without time, once at least
    interleave(subjects, torch.device("cpu"), repeats=9, most_seconds=0.0)
    assert calls == ["a", "b"] * 3


def test_growth_is_the_power_of_the_size():
    rows = [
        {"family": "x", "varied": ["size"], "size": size, "ours_ms": size**2, "plain_ms": None}
        for size in (2, 4, 8)
    ]

    assert growth(rows) == ["x with size from 2 to 8: ours by the power 2.00"]


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["kyfan", "--only", "kyfan"], "kyfan"),
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
        assert {"commit", "command", "seed", "torch", "device_name"} <= row.keys()
    errors = [row["relative_error"] for row in rows if row["relative_error"] is not None]
    assert errors
    assert max(errors) < 1e-2
    printed = capsys.readouterr().out
    assert all(row["name"] in printed for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        ([], "the following arguments are required: NAME"),
        (["kyfan", "--scale", "huge"], "invalid choice: 'huge'"),
        (["kyfan", "--device", "abacus"], "device abacus cannot be used"),
        (["kyfan", "--json", "."], "--json names a file, but . is a folder"),
        (["kyfan", "--json", "/proc/x/rows.json"], "cannot write to /proc/x"),
        (["kyfan", "--seed", "-1"], "--seed must not be negative, got -1"),
        (["kyfan", "--scale", "small", "--only", "xyz"], "no row of kyfan has 'xyz' in its name"),
        (["kyfan", "--device", "meta"], "device is cpu or cuda, got meta"),
    ],
)
def test_a_mistake_is_one_line_and_the_status_two(arguments, message, capsys):
    try:
        status = main(arguments)
    except SystemExit as ending:
        status = ending.code

    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m cpaan.bench: error: ")
    assert message in line


def test_the_help_explains_every_benchmark_and_column(capsys):
    with pytest.raises(SystemExit) as ending:
        main(["--help"])

    assert ending.value.code == 0
    text = capsys.readouterr().out
    for word in ("kyfan", "episode", "evaluate", "trial", "data-parallel"):
        assert f"\n  {word}" in text
    for key in ("ours_ms", "plain_ms", "ratio", "relative_error", "peak_memory_mb"):
        assert key in text


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
    """On real features, where covariances are compared by their leading directions alone."""
    config = TrainConfig(**REAL, noise=noise, neighbours=neighbours, residual="mean-shift")
    gan = GANS[name]
    classes = [rows[:, :64] for rows in real_classes(20)]
    base = BaseSet(torch.cat(classes), torch.tensor([len(rows) for rows in classes]))
    data = TrainingData.prepare(base, config, with_covariances=True)
    networks, fast, plain = both_terms(gan, data, config, weight_size=0.1)
    sides = (
        (networks.discriminator_parameters(), discriminator_objective),
        (networks.generator_parameters(), partial(generator_objective, config=config)),
    )
    for ours, reference, (parameters, objective) in zip(fast, plain, sides, strict=True):
        for term, value in reference.items():
            torch.testing.assert_close(ours[term], value, rtol=1e-4, atol=1e-6)
        found, wanted = (
            torch.cat([g.flatten() for g in torch.autograd.grad(objective(zeros(t)), parameters)])
            for t in (ours, reference)
        )
        assert (found - wanted).norm() <= 1e-4 * wanted.norm()


def zeros(terms):
    """Terms that a GAN lacks are zero."""
    return {**dict.fromkeys(TERMS, torch.zeros(())), **terms}
