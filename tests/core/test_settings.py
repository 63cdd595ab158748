import pytest

from cpaan.core.settings import parse_settings
from cpaan.gan.config import TrainConfig
from cpaan.protocol.config import EvaluationConfig


def test_settings_take_the_type_of_their_field():
    (overrides,) = parse_settings(
        ["mixing_weight=1", "shots=1,5", "linear_decays=false", "heads=knn", "prior=0.8", "seed=3"],
        EvaluationConfig(),
    )

    assert overrides == {
        "mixing_weight": 1.0,
        "shots": (1, 5),
        "linear_decays": False,
        "heads": ("knn",),
        "prior": 0.8,
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("perplexity", "given as name=value, got 'perplexity'"),
        ("perplexty=3", "unknown setting 'perplexty': the names are .*mixing_weight.*perplexity"),
        ("seed=1.5", "setting seed needs a whole number, got '1.5'"),
        ("seed=none", "setting seed needs a whole number, got 'none'"),
        ("linear_decays=maybe", "setting linear_decays needs true or false, got 'maybe'"),
        ("prior=high", "setting prior needs a number or none, got 'high'"),
        ("shots=1,,5", "setting shots needs .* with commas between, got '1,,5'"),
    ],
)
def test_what_is_no_setting_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        parse_settings([assignment], EvaluationConfig())


def test_a_name_that_two_configs_have_is_set_in_both():
    assignments = ["perplexity=3", "num_draws=2", "episode_shots=1, 5"]

    evaluation, training = parse_settings(assignments, EvaluationConfig(), TrainConfig())

    assert evaluation == {"perplexity": 3.0, "num_draws": 2}
    assert training == {"perplexity": 3.0, "episode_shots": (1, 5)}


def test_a_setting_that_need_not_be_a_number_may_be_none():
    evaluation, training = parse_settings(
        ["perplexity=none", "mixing_weight=none"], EvaluationConfig(), TrainConfig()
    )

    assert evaluation == {"perplexity": None, "mixing_weight": None}
    assert training == {"perplexity": None}


def test_a_choice_that_is_called_none_is_a_name():
    (overrides,) = parse_settings(["normalisation=none"], TrainConfig())

    assert overrides == {"normalisation": "none"}
    assert TrainConfig(**overrides).normalisation == "none"


def test_an_unknown_choice_is_left_to_the_config():
    (overrides,) = parse_settings(["sampling=other"], TrainConfig())

    with pytest.raises(ValueError, match="sampling must be one of shared, uniform"):
        TrainConfig().with_overrides(overrides)


def test_an_unknown_name_is_refused_with_the_names_of_all_configs():
    with pytest.raises(ValueError, match=r"'cicle_weight'.* cycle_weight.* heads"):
        parse_settings(["cicle_weight=1"], EvaluationConfig(), TrainConfig())
