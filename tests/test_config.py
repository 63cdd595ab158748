import pytest

from cpaan.config import EvaluationConfig, parse_settings


def test_a_misspelt_setting_is_refused():
    with pytest.raises(ValueError, match="unknown settings: mixing_wieght"):
        EvaluationConfig().with_overrides({"mixing_wieght": 0.5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shots": (1, 0)}, r"shots must be positive whole numbers, got \[1, 0\]"),
        ({"shots": ()}, "shots must be positive"),
        ({"shots": (1, 1)}, "each number of shots is wanted once"),
        ({"num_draws": 0}, "num_draws must be positive and finite, got 0"),
        ({"perplexity": float("nan")}, "perplexity must be positive and finite, got nan"),
        ({"heads": ("centroid", "svm")}, "heads are centroid, cosine, knn, linear, each once"),
        ({"heads": ("knn", "knn")}, "each once at most, got 'knn, knn'"),
        ({"knn_temperature": float("inf")}, "knn_temperature must be positive and finite"),
        ({"mixing_weight": 1.1}, "mixing_weight must be from 0 to 1, got 1.1"),
        ({"prior": 1.0}, "prior must be above 0 and below 1"),
        ({"seed": -1}, "seeds must not be negative"),
        ({"linear_optimiser": "lbfgs"}, "linear_optimiser is adam or sgd"),
        ({"linear_weight_decay": -1.0}, "linear_weight_decay is negative"),
    ],
)
def test_values_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EvaluationConfig(**settings)


def test_settings_take_the_type_of_their_field():
    overrides = parse_settings(
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
        ("perplexty=3", "unknown setting 'perplexty': the names are shots"),
        ("seed=1.5", "setting seed needs a value of type int: '1.5'"),
        ("linear_decays=maybe", "needs a value of type bool"),
        ("prior=high", "setting prior needs a value of type number"),
    ],
)
def test_what_is_no_setting_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        parse_settings([assignment], EvaluationConfig())
