"""What a search asks for, and the paper's own points in it."""

import optuna
import pytest
import torch

from cpaan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gans import GANS, check_objective
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.space import AS_PRINTED, RECOMMENDED, Settled, Space
from cpaan.training_data import check_training

SIZES = {"num_episodes", "num_ways", "batch_size", "episode_shots", "hidden_dim"}
OF_THE_GAN = {
    "c-GAN": set(),
    "cCyc-GAN": {"cycle_weight", "noise_dim"},
    "cDeLi-GAN": {"cycle_weight", "noise_dim", "num_components", "noise_spread"},
    "cCov-GAN": {"cycle_weight", "covariance_weight", "ky_fan_order", "noise", "noise_dim"},
}
OF_A_WIDE_SEARCH = {
    "generator_learning_rate",
    "discriminator_learning_rate",
    "episode_shots",
    "residual",
    "mixing_shots",
    "num_synthetic",
}


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


def new_space(method: str = "cCov-GAN", preset: str = "quick", **fields: object) -> Space:
    """Around a preset, on data like the built-in ones: 512 dimensions, 100 base classes."""
    training, evaluation = PRESETS[preset].recommended()
    settings = {"training": training, "evaluation": evaluation, "num_dims": 512, "num_base": 100}
    return Space(method=method, **{**settings, "wide": False, **fields})


def asked_for(space: Space, whose: str = RECOMMENDED, **choices: str) -> set[str]:
    trial = LowEnds(**choices)
    space.propose(trial, whose)
    return trial.asked


def propose_point(space: Space, whose: str) -> Settled:
    """Return what becomes of a point that waits in an Optuna study."""
    study = optuna.create_study()
    study.enqueue_trial(space.point(whose))
    return space.propose(study.ask(), whose)


@pytest.mark.parametrize("method", GANS)
def test_a_parameter_is_asked_for_only_where_it_applies(method):
    space = new_space(method)

    assert asked_for(space, neighbours="soft") == OF_THE_GAN[method] | {"neighbours", "perplexity"}
    assert asked_for(space, neighbours="hard") == (
        OF_THE_GAN[method] | {"neighbours", "num_neighbours"}
    )
    assert asked_for(space, AS_PRINTED) == OF_THE_GAN[method] | {"neighbours"}


def test_components_are_asked_for_only_with_a_mixture():
    of_mixtures = {"num_components", "noise_spread"}
    space = new_space("cCov-GAN")

    assert not asked_for(space, noise="gaussian") & of_mixtures
    assert asked_for(space, noise="mixture") == asked_for(space, noise="gaussian") | of_mixtures


@pytest.mark.parametrize("method", GANS)
def test_a_wide_search_asks_for_more_and_another_for_none_of_it(method):
    narrow, wide = new_space(method), new_space(method, wide=True)

    assert asked_for(wide) == asked_for(narrow) | OF_A_WIDE_SEARCH
    assert not asked_for(narrow) & OF_A_WIDE_SEARCH


def test_what_the_paper_does_without_is_not_asked_for_in_its_own_point():
    more = asked_for(new_space(wide=True), AS_PRINTED) - asked_for(new_space(), AS_PRINTED)

    assert more == OF_A_WIDE_SEARCH - {"mixing_shots", "num_synthetic"}


def test_a_chosen_number_of_episode_shots_reaches_training():
    space = new_space(wide=True)

    for text, shots in {"1,2,5": (1, 2, 5), "1": (1,), "5": (5,)}.items():
        settled = space.propose(LowEnds(episode_shots=text))
        assert settled.training.episode_shots == shots


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", GANS)
def test_the_recommended_point_changes_nothing(method, preset, wide):
    space = new_space(method, preset, wide=wide)

    assert propose_point(space, RECOMMENDED) == Settled(space.training, space.evaluation)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_first_trial_has_the_printed_values(preset):
    point = new_space("cCov-GAN", preset).point(RECOMMENDED)

    assert (point["cycle_weight"], point["covariance_weight"]) == (5, 0.5)
    assert (point["ky_fan_order"], point["noise_dim"], point["neighbours"]) == (10, 100, "soft")
    assert new_space("cDeLi-GAN", preset).point(RECOMMENDED)["num_components"] == 50


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", GANS)
def test_the_point_as_printed_is_the_paper_at_the_sizes_of_the_preset(method, preset, wide):
    space = new_space(method, preset, wide=wide)

    settled = propose_point(space, AS_PRINTED)

    printed = TrainConfig.as_printed().to_dict()
    found = settled.training.to_dict()
    assert {name for name in printed if found[name] != printed[name]} <= SIZES
    for name in SIZES - {"episode_shots"}:
        assert found[name] == getattr(space.training, name)
    assert found["episode_shots"] == (max(space.training.episode_shots),)
    assert settled.evaluation == space.evaluation.with_overrides(META_TESTING_AS_PRINTED)


def test_the_paper_preset_has_the_printed_sizes():
    training, _ = PRESETS["paper"].recommended()

    assert (training.num_episodes, training.batch_size) == (100_000, 1_000)
    assert (training.num_ways, training.episode_shots) == (20, (10,))
    assert propose_point(new_space(preset="paper"), AS_PRINTED).training == TrainConfig.as_printed()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_study(preset):
    config = StudyConfig(**PRESETS[preset].study)
    training, _ = PRESETS[preset].recommended()

    assert len(config.marks(training.num_episodes)) == config.num_rungs + 1


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("method", GANS)
def test_whatever_is_proposed_can_be_trained(method, wide):
    """On few classes of few examples in few dimensions, where settings leave their limits first."""
    space = new_space(method, num_dims=8, num_base=24, wide=wide)
    counts = torch.full((24,), 5)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    for _ in range(40):
        training = space.propose(study.ask()).training
        check_training(training, counts, 8, with_covariances=GANS[method].has_covariance)
        check_objective(GANS[method], training)


def test_equal_proposals_of_both_kinds_are_compatible_with_one_study():
    """Optuna refuses choices that change from trial to trial."""
    space, study = new_space(wide=True), optuna.create_study()
    for whose in (RECOMMENDED, AS_PRINTED, RECOMMENDED, AS_PRINTED):
        space.propose(study.ask(), whose)

    assert len(study.trials) == 4


def test_a_printed_value_outside_its_range_is_refused():
    """Eight dimensions have no ten singular values."""
    with pytest.raises(ValueError, match=r"^ky_fan_order is 10, but the search goes from 1 to 8$"):
        new_space(num_dims=8).point(RECOMMENDED)


def test_what_is_set_does_not_move_the_paper_s_point():
    changed = new_space().training.with_overrides({"cycle_weight": 80.0, "neighbours": "none"})

    point = new_space(training=changed).point(RECOMMENDED)

    assert point == new_space().point(RECOMMENDED)
