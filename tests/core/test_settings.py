import pytest

from cpaan.core.settings import parse_settings
from cpaan.gan.config import TrainConfig
from cpaan.protocol.config import EvaluationConfig


def test_settings_take_the_type_of_their_field():
    texts = "mixing_weight=1 shots=1,5 linear_decays=false heads=knn novel_bias=0.8 seed=3"

    (overrides,) = parse_settings(texts.split(), EvaluationConfig())

    numbers = {"mixing_weight": 1.0, "novel_bias": 0.8, "seed": 3}
    assert overrides == {"shots": (1, 5), "linear_decays": False, "heads": ("knn",), **numbers}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("perplexity", "must have the form NAME=VALUE, got 'perplexity'"),
        (
            "perplexty=3",
            "unknown setting 'perplexty', did you mean perplexity\\?; `cpaan settings`",
        ),
        ("seed=1.5", "setting seed must be a whole number, got '1.5'"),
        ("seed=none", "setting seed must be a whole number, got 'none'"),
        ("linear_decays=maybe", "setting linear_decays must be true or false, got 'maybe'"),
        ("novel_bias=high", "setting novel_bias must be a number or none, got 'high'"),
        ("shots=1,,5", "setting shots must be .* separated by commas, got '1,,5'"),
    ],
)
def test_a_bad_assignment_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        parse_settings([assignment], EvaluationConfig(), TrainConfig())


def test_a_name_that_two_configs_have_is_set_in_both_and_may_be_none():
    assignments = ["perplexity=none", "num_draws=2", "episode_shots=1, 5", "mixing_weight=none"]

    evaluation, training = parse_settings(assignments, EvaluationConfig(), TrainConfig())

    assert evaluation == {"perplexity": None, "num_draws": 2, "mixing_weight": None}
    assert training == {"perplexity": None, "episode_shots": (1, 5)}


def test_a_choice_is_a_name_even_if_it_is_called_none_and_the_config_checks_it():
    overrides, unknown = (
        parse_settings([f"normalisation={name}"], TrainConfig())[0] for name in ("none", "other")
    )

    assert overrides == {"normalisation": "none"}
    assert TrainConfig(**overrides).normalisation == "none"
    with pytest.raises(ValueError, match="normalisation must be one of "):
        TrainConfig().with_overrides(unknown)
