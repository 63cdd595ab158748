"""What a search asks for, and the paper's own points in it."""

import optuna
import pytest
import torch

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gan.episodes import check_training
from cpaan.gan.gans import GANS, check_objective
from cpaan.methods.registry import ROWS
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.space import AS_PRINTED, RECOMMENDED, RowSpace, Settled, Space
from helpers.studies import new_space

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
    space, always = new_space(method), OF_THE_GAN[method] | {"neighbours", "mixing_shots"}

    assert asked_for(space, neighbours="soft") == always | {"perplexity"}
    assert asked_for(space, neighbours="hard") == always | {"num_neighbours"}
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

    assert more == OF_A_WIDE_SEARCH - {"num_synthetic"}


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
    training, _ = PRESETS["paper"].recommended("cCov-GAN")

    assert (training.num_episodes, training.batch_size) == (100_000, 1_000)
    assert (training.num_ways, training.episode_shots) == (20, (10,))
    for method in ("cCov-GAN", "CP-AAN+"):
        printed = propose_point(new_space(method, preset="paper"), AS_PRINTED).training
        assert printed == TrainConfig.as_printed()


def test_cp_aan_plus_is_searched_for_what_it_adds_too_but_not_in_the_paper_s_point():
    added = {"prototype_weight", "residual"}

    assert asked_for(new_space("CP-AAN+")) == asked_for(new_space("cCov-GAN")) | added
    assert asked_for(new_space("CP-AAN+"), AS_PRINTED) == asked_for(new_space(), AS_PRINTED)
    assert asked_for(new_space("CP-AAN+", wide=True)) >= added | OF_A_WIDE_SEARCH


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_study(preset):
    config = StudyConfig(**PRESETS[preset].study)
    training, _ = PRESETS[preset].recommended()

    assert len(config.marks(training.num_episodes)) == config.num_rungs + 1


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("method", GANS)
def test_whatever_is_proposed_can_be_trained(method, wide):
    """On few classes of few examples in few dimensions, where settings leave their limits first."""
    gan, counts = GANS[method], torch.full((24,), 5)
    space = new_space(method, num_dims=8, num_base=24, wide=wide)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    refused = []

    for _ in range(40):
        training = space.propose(study.ask()).training
        try:
            check_training(training, counts, 8, with_covariances=gan.has_covariance)
            check_objective(gan, training)
        except ValueError as error:
            refused.append(str(error))

    assert refused == []
    assert len({trial.params["neighbours"] for trial in study.trials}) == 2


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


def row_space(method: str, preset: str = "quick", num_base: int = 100, **evaluation) -> RowSpace:
    training, config = PRESETS[preset].recommended(method)
    return RowSpace(method, training, config.with_overrides(evaluation), num_base)


OTHER_ROWS = [name for name, row in ROWS.items() if not isinstance(row.config, TrainConfig)]


def test_a_baseline_begins_with_our_settings_and_with_those_of_its_source():
    assert row_space("MN").points == (RECOMMENDED, AS_PRINTED)
    assert row_space("copy").points == row_space("LR").points == (RECOMMENDED,)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", OTHER_ROWS)
def test_the_recommended_point_of_a_baseline_changes_nothing(method, preset):
    space = row_space(method, preset)

    assert propose_point(space, RECOMMENDED) == Settled(space.training, space.evaluation)


@pytest.mark.parametrize("method", OTHER_ROWS)
def test_what_is_proposed_reaches_training_or_evaluation(method):
    space = row_space(method)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    asked = study.ask()

    settled = space.propose(asked)

    assert set(asked.params) == set(space.searched) == set(ROWS[method].space)
    used = {**settled.evaluation.to_dict(), **settled.training.to_dict()}
    assert {name: used[name] for name in asked.params} == asked.params
    # And nothing else is changed.
    before = {**space.evaluation.to_dict(), **space.training.to_dict()}
    assert {name for name in used if used[name] != before[name]} <= set(asked.params)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", [name for name in OTHER_ROWS if ROWS[name].published])
def test_the_point_of_a_source_is_the_source_at_the_sizes_of_the_study(method, preset):
    space = row_space(method, preset)

    settled = propose_point(space, AS_PRINTED)

    # At the paper's scale, a source has its own sizes but for the length of training.
    sizes = {"num_episodes", *(ROWS[method].quick if preset == "quick" else ())}
    printed, ours = ROWS[method].published.to_dict(), space.training.to_dict()
    for name, value in settled.training.to_dict().items():
        assert value == (ours if name in sizes else printed)[name], name
    assert settled.evaluation == space.evaluation
    assert space.point(AS_PRINTED) == {}


@pytest.mark.parametrize(("num_base", "highest"), [(100, 30.0), (40, 20.0), (16, 10.0)])
def test_perplexity_stays_below_half_of_the_base_classes_and_reaches_the_recommended(
    num_base, highest
):
    space = row_space("copy", num_base=num_base)

    space.check_point({"perplexity": highest})
    with pytest.raises(ValueError, match=f"but the search goes from 1.5 to {highest}"):
        space.check_point({"perplexity": highest + 0.1})


def test_whole_numbers_are_searched_as_such():
    study = optuna.create_study()

    row_space("DC").propose(asked := study.ask())

    assert isinstance(asked.params["num_nearest"], int)
    assert isinstance(asked.params["tukey_power"], float)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"dropout": 0.9}, r"^dropout is 0\.9, but the search goes from 0\.0 to 0\.8$"),
        ({"dropuot": 0.5}, "^no parameters of such a point: dropuot$"),
        ({"num_ways": 5}, "^no parameters of such a point: num_ways$"),
        ({"output": "relu"}, "^output is relu, but the search knows sphere, linear$"),
    ],
)
def test_points_outside_the_space_of_a_baseline_are_refused(point, message):
    with pytest.raises(ValueError, match=message):
        row_space("PN").check_point(point)


def test_what_is_searched_cannot_be_fixed():
    space = row_space("PN")

    space.check_fixed(["num_ways", "hidden_dim"])
    with pytest.raises(ValueError, match=r"^dropout is searched: --points has values of it"):
        space.check_fixed(["num_ways", "dropout"])


@pytest.mark.parametrize("method", [f"{name}-PN" for name in GANS])
def test_in_an_embedding_a_gan_is_searched_as_on_features(method):
    name = method.removesuffix("-PN")

    assert asked_for(new_space(method)) == asked_for(new_space(name))
    assert new_space(method).point(RECOMMENDED) == new_space(name).point(RECOMMENDED)
