"""Test the parameters of a search, and its first points."""

import re
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gan.episodes import check_training
from cpaan.gan.gans import GANS, check_objective
from cpaan.methods.registry import METHODS, num_episodes_of, rows_of_table
from cpaan.study.config import PRESETS
from cpaan.study.row import AS_PRINTED, RECOMMENDED, Resolved, StudyRow
from helpers.studies import row_of_preset

PROTOCOL = Path(__file__).parents[2] / "results" / "protocol.md"
OF_ALL_GANS = {"generator_learning_rate"}
OF_THE_GAN = {
    "c-GAN": set(),
    "cCyc-GAN": {"cycle_weight"},
    "cDeLi-GAN": {"cycle_weight", "num_components", "noise_spread"},
    "cCov-GAN": {"cycle_weight", "covariance_weight", "ky_fan_order", "noise"},
}
OF_THE_GAN["CP-AAN+"] = OF_THE_GAN["cCov-GAN"] | {"prototype_weight"}
OTHER_ROWS = [name for name, method in METHODS.items() if method.gan is None]


def settings_of(resolved: Resolved) -> dict[str, object]:
    return {**resolved.evaluation.to_dict(), **resolved.training.to_dict()}


def propose_point(space: StudyRow, whose: str) -> Resolved:
    """Return the settings from a point that is enqueued in an Optuna study."""
    study = optuna.create_study()
    study.enqueue_trial(space.point(whose))
    return space.propose(study.ask(), whose)


def test_every_term_of_a_gan_is_searched_and_nothing_without_effect():
    for method, of_the_gan in OF_THE_GAN.items():
        for suffix in ("", "-PN"):
            space, always = row_of_preset(f"{method}{suffix}"), of_the_gan | OF_ALL_GANS
            assert set(space.searched) == always | {"perplexity"}
            hard = space.training.with_overrides({"neighbours": "hard"})
            assert set(replace(space, training=hard).searched) == always | {"num_neighbours"}


def test_the_protocol_lists_the_few_dimensions_that_a_dozen_trials_search():
    """The paper's best GAN has six, with every term that the paper weighs; ours has seven."""
    lines = re.findall(r"^\| (.+) \| (\d) \| .+ \|$", PROTOCOL.read_text(), re.M)
    listed = {name: int(count) for names, count in lines for name in names.split(", ")}

    spaces = {name: set(row_of_preset(name, "paper").searched) for name in rows_of_table()}
    assert {name: len(space) for name, space in spaces.items()} == listed
    best = {"cCov-GAN": 6, "cCov-GAN-PN": 6, "CP-AAN+": 7, "CP-AAN+-PN": 7}
    assert {name: count for name, count in listed.items() if count > 5} == best
    learning_rates = {"learning_rate", "generator_learning_rate"}
    for name, space in spaces.items():
        assert num_episodes_of(METHODS[name].config) == 0 or learning_rates & space, name


@pytest.mark.parametrize("preset", PRESETS)
def test_the_recommended_point_changes_nothing_and_has_the_printed_values(preset):
    for method in METHODS:
        space = row_of_preset(method, preset)
        assert propose_point(space, RECOMMENDED) == Resolved(space.training, space.evaluation)

    point = row_of_preset("cCov-GAN", preset).point(RECOMMENDED)
    assert (point["cycle_weight"], point["covariance_weight"]) == (5, 0.5)
    assert (point["ky_fan_order"], point["perplexity"], point["noise"]) == (10, 10, "gaussian")
    assert row_of_preset("cDeLi-GAN", preset).point(RECOMMENDED)["num_components"] == 50


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "method", [*GANS, *(name for name in OTHER_ROWS if METHODS[name].published)]
)
def test_the_point_of_a_source_is_the_source_at_the_sizes_of_the_study(method, preset):
    space, chosen = row_of_preset(method, preset), METHODS[method]

    resolved = propose_point(space, AS_PRINTED)

    assert space.point(AS_PRINTED) == {}
    if chosen.gan is None:
        # At the paper's scale, a source has its own sizes, except for the training length.
        sizes = {"num_episodes", *(chosen.quick if preset == "quick" else ())}
        printed, ours = chosen.published.to_dict(), space.training.to_dict()
        for name, value in resolved.training.to_dict().items():
            assert value == (ours if name in sizes else printed)[name], name
        assert resolved.evaluation == space.evaluation
        return
    printed, sizes = TrainConfig.as_printed(), ("num_episodes", "num_ways", "batch_size")
    ours = {name: getattr(space.training, name) for name in (*sizes, "hidden_dim")}
    shots = (max(space.training.episode_shots),)
    assert resolved.training == printed.with_overrides({**ours, "episode_shots": shots})
    assert resolved.evaluation == space.evaluation.with_overrides(META_TESTING_AS_PRINTED)
    if preset == "paper":
        in_report = resolved.times_as_long(PRESETS[preset].study_of(method).report_length)
        assert in_report.training == printed


@pytest.mark.parametrize("neighbours", ["soft", "hard"])
@pytest.mark.parametrize("method", GANS)
def test_whatever_is_proposed_can_be_trained(method, neighbours):
    """Use small data, on which settings exceed their limits first."""
    gan, counts = GANS[method], torch.full((24,), 5)
    space = row_of_preset(method, num_dims=8, num_base=12)
    space = replace(space, training=space.training.with_overrides({"neighbours": neighbours}))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    for _ in range(40):
        training = space.propose(study.ask()).training
        check_training(training, counts, 8, with_covariances=gan.has_covariance)
        check_objective(gan, training)


@pytest.mark.parametrize("method", OTHER_ROWS)
def test_what_is_proposed_reaches_training_or_evaluation(method):
    space = row_of_preset(method)
    asked = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()

    resolved = space.propose(asked)

    assert set(asked.params) == set(space.searched) == set(METHODS[method].space)
    before = settings_of(Resolved(space.training, space.evaluation))
    assert settings_of(resolved) == {**before, **asked.params}
    if method == "DC":  # whole numbers stay whole numbers
        assert isinstance(asked.params["num_nearest"], int)


@pytest.mark.parametrize(("num_base", "highest"), [(50, 30.0), (20, 20.0), (8, 10.0)])
def test_perplexity_stays_below_half_of_the_base_classes_and_reaches_the_recommended(
    num_base, highest
):
    space = row_of_preset("copy", num_base=num_base)

    assert space.searched["perplexity"].high == highest
    assert space.point(RECOMMENDED)["perplexity"] == 10


def test_what_is_outside_its_range_is_refused():
    """In eight dimensions, there are fewer than ten singular values."""
    with pytest.raises(ValueError, match=r"value 10 of the parameter .ky_fan_order. is out of"):
        row_of_preset(num_dims=8).point(RECOMMENDED)
