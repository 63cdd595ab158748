"""What a search asks for, and the points that it begins with."""

import optuna
import pytest
import torch

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gan.episodes import check_training
from cpaan.gan.gans import GANS, check_objective
from cpaan.methods.registry import METHODS, ROWS
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.space import AS_PRINTED, RECOMMENDED, Resolved, Space

SIZES = {"num_episodes", "num_ways", "batch_size", "episode_shots", "hidden_dim"}
OF_ALL_GANS = {
    *("neighbours", "mixing_shots", "generator_learning_rate", "discriminator_learning_rate")
}
OF_THE_GAN = {
    "c-GAN": set(),
    "cCyc-GAN": {"cycle_weight", "noise_dim"},
    "cDeLi-GAN": {"cycle_weight", "noise_dim", "num_components", "noise_spread"},
    "cCov-GAN": {"cycle_weight", "covariance_weight", "ky_fan_order", "noise", "noise_dim"},
}
OTHER_ROWS = [name for name, row in ROWS.items() if row.gan is None]


def new_space(method: str = "cCov-GAN", preset: str = "quick", **fields: object) -> Space:
    """Around a preset, on data like the built-in ones: 512 dimensions, 100 base classes."""
    training, evaluation = PRESETS[preset].recommended(method)
    settings = {"training": training, "evaluation": evaluation, "num_dims": 512, "num_base": 100}
    return Space(method=method, **{**settings, **fields})


class LowEnds:
    """Takes the lower end of every range, and of choices those that are named."""

    def __init__(self, **choices: str) -> None:
        self._choices = choices
        self.asked: set[str] = set()

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        self.asked.add(name)
        return low

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        self.asked.add(name)
        return low

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        self.asked.add(name)
        return self._choices.get(name, choices[0])


def asked_for(space: Space, whose: str = RECOMMENDED, **choices: str) -> set[str]:
    trial = LowEnds(**choices)
    space.propose(trial, whose)
    return trial.asked


def propose_point(space: Space, whose: str) -> Resolved:
    """Return what becomes of a point that waits in an Optuna study."""
    study = optuna.create_study()
    study.enqueue_trial(space.point(whose))
    return space.propose(study.ask(), whose)


@pytest.mark.parametrize("method", GANS)
@pytest.mark.parametrize("suffix", ["", "-PN"])
def test_a_parameter_is_asked_for_only_where_it_applies(method, suffix):
    space, always = new_space(f"{method}{suffix}"), OF_THE_GAN[method] | OF_ALL_GANS

    assert asked_for(space, neighbours="soft") == always | {"perplexity"}
    assert asked_for(space, neighbours="hard") == always | {"num_neighbours"}


def test_components_are_asked_for_only_with_a_mixture_and_shots_without_a_weight():
    space = new_space("cCov-GAN")
    gaussian = asked_for(space, noise="gaussian")

    assert asked_for(space, noise="mixture") == gaussian | {"num_components", "noise_spread"}
    weighed = new_space(evaluation=space.evaluation.with_overrides({"mixing_weight": 0.5}))
    assert asked_for(weighed, noise="gaussian") == gaussian - {"mixing_shots"}


def test_cp_aan_plus_is_searched_for_what_it_adds_too():
    added = {"prototype_weight", "residual"}

    assert asked_for(new_space("CP-AAN+")) == asked_for(new_space("cCov-GAN")) | added


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_the_recommended_point_changes_nothing(method, preset):
    space = new_space(method, preset)

    assert propose_point(space, RECOMMENDED) == Resolved(space.training, space.evaluation)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_first_trial_has_the_printed_values(preset):
    point = new_space("cCov-GAN", preset).point(RECOMMENDED)

    assert (point["cycle_weight"], point["covariance_weight"]) == (5, 0.5)
    assert (point["ky_fan_order"], point["noise_dim"], point["neighbours"]) == (10, 100, "soft")
    assert new_space("cDeLi-GAN", preset).point(RECOMMENDED)["num_components"] == 50


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", GANS)
def test_the_point_as_printed_is_the_paper_at_the_sizes_of_the_preset(method, preset):
    space = new_space(method, preset)

    resolved = propose_point(space, AS_PRINTED)

    printed, found = TrainConfig.as_printed().to_dict(), resolved.training.to_dict()
    assert {name for name in printed if found[name] != printed[name]} <= SIZES
    for name in SIZES - {"episode_shots"}:
        assert found[name] == getattr(space.training, name)
    assert found["episode_shots"] == (max(space.training.episode_shots),)
    assert resolved.evaluation == space.evaluation.with_overrides(META_TESTING_AS_PRINTED)
    if preset == "paper":
        assert resolved.training == TrainConfig.as_printed()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", [name for name in OTHER_ROWS if ROWS[name].published])
def test_the_point_of_a_source_is_the_source_at_the_sizes_of_the_study(method, preset):
    space = new_space(method, preset)

    resolved = propose_point(space, AS_PRINTED)

    # At the paper's scale, a source has its own sizes but for the length of training.
    sizes = {"num_episodes", *(ROWS[method].quick if preset == "quick" else ())}
    printed, ours = ROWS[method].published.to_dict(), space.training.to_dict()
    for name, value in resolved.training.to_dict().items():
        assert value == (ours if name in sizes else printed)[name], name
    assert resolved.evaluation == space.evaluation
    assert space.point(AS_PRINTED) == {}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_study(preset):
    config = StudyConfig(**PRESETS[preset].study)
    training, _ = PRESETS[preset].recommended()

    assert len(config.eval_steps(training.num_episodes)) == config.num_rungs + 1


@pytest.mark.parametrize("method", GANS)
def test_whatever_is_proposed_can_be_trained(method):
    """On few classes of few examples in few dimensions, where settings leave their limits first."""
    gan, counts = GANS[method], torch.full((24,), 5)
    space = new_space(method, num_dims=8, num_base=24)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    for _ in range(40):
        training = space.propose(study.ask()).training
        check_training(training, counts, 8, with_covariances=gan.has_covariance)
        check_objective(gan, training)

    assert len({trial.params["neighbours"] for trial in study.trials}) == 2


@pytest.mark.parametrize("method", OTHER_ROWS)
def test_what_is_proposed_reaches_training_or_evaluation(method):
    space = new_space(method)
    asked = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()

    resolved = space.propose(asked)

    assert set(asked.params) == set(space.searched) == set(ROWS[method].space)
    used = {**resolved.evaluation.to_dict(), **resolved.training.to_dict()}
    before = {**space.evaluation.to_dict(), **space.training.to_dict()}
    assert used == {**before, **asked.params}
    if method == "DC":  # whole numbers are searched as such
        assert isinstance(asked.params["num_nearest"], int)


@pytest.mark.parametrize(("num_base", "highest"), [(100, 30.0), (40, 20.0), (16, 10.0)])
def test_perplexity_stays_below_half_of_the_base_classes_and_reaches_the_recommended(
    num_base, highest
):
    space = new_space("copy", num_base=num_base)

    assert space.searched["perplexity"].high == highest
    assert space.point(RECOMMENDED)["perplexity"] == 10


def test_what_is_outside_its_range_or_searched_is_refused():
    """Eight dimensions have no ten singular values."""
    with pytest.raises(ValueError, match=r"value 10 of the parameter .ky_fan_order. is out of"):
        new_space(num_dims=8).point(RECOMMENDED)
    space = new_space("PN")
    space.check_fixed(["num_ways", "hidden_dim"])
    with pytest.raises(ValueError, match=r"^dropout is searched, so it cannot be set$"):
        space.check_fixed(["num_ways", "dropout"])
