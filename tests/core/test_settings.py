import pytest

from cpaan.core.settings import parse_settings
from cpaan.gan.config import TrainConfig
from cpaan.protocol.config import EvaluationConfig


def test_settings_take_the_types_of_their_fields_in_all_configs_that_have_them():
    texts = "mixing_weight=1 shots=1,5 linear_decays=false heads=knn novel_bias=0.8 seed=3 "
    texts += "perplexity=none num_draws=2 mixing_shots=none episode_shots=1,5 normalisation=none"

    evaluation, training = parse_settings(texts.split(), EvaluationConfig(), TrainConfig())

    numbers = {"mixing_weight": 1.0, "novel_bias": 0.8, "seed": 3, "num_draws": 2}
    others = {"shots": (1, 5), "linear_decays": False, "heads": ("knn",), "mixing_shots": None}
    assert evaluation == {"perplexity": None, **numbers, **others}
    # A choice that is called none is a name.
    assert training == {"perplexity": None, "episode_shots": (1, 5), "normalisation": "none"}


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


def test_a_config_checks_the_choices():
    (unknown,) = parse_settings(["normalisation=other", "episode_shots=1, 5"], TrainConfig())

    assert unknown == {"normalisation": "other", "episode_shots": (1, 5)}
    with pytest.raises(ValueError, match="normalisation must be one of "):
        TrainConfig().with_overrides(unknown)
