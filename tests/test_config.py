import json

import pytest

from cpaan.config import META_TESTING_AS_PRINTED, EvaluationConfig, TrainConfig


def test_a_misspelt_setting_is_refused():
    with pytest.raises(ValueError, match="unknown settings: mixing_wieght"):
        EvaluationConfig().with_overrides({"mixing_wieght": 0.5})


def test_overrides_replace_what_they_name_and_nothing_else():
    config = TrainConfig().with_overrides({"cycle_weight": 2.0})

    assert config.to_dict() == {**TrainConfig().to_dict(), "cycle_weight": 2.0}


def test_overrides_are_checked_as_well():
    with pytest.raises(ValueError, match="cycle_weight must be finite and not negative, got -2"):
        TrainConfig().with_overrides({"cycle_weight": -2.0})


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
        ({"num_neighbours": 0}, "num_neighbours must be positive and finite, got 0"),
        ({"neighbours": "some"}, "neighbours must be one of soft, hard, none, got 'some'"),
        ({"linear_optimiser": "lbfgs"}, "linear_optimiser must be one of adam, sgd, got 'lbfgs'"),
        ({"linear_weight_decay": -1.0}, "linear_weight_decay must be finite and not negative"),
    ],
)
def test_values_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EvaluationConfig(**settings)


COUNTS = (
    "num_neighbours",
    "num_episodes",
    "num_ways",
    "batch_size",
    "hidden_dim",
    "noise_dim",
    "num_components",
    "ky_fan_order",
    "num_covariance_classes",
    "anneal_every_episodes",
)
POSITIVE = (
    "perplexity",
    "generator_learning_rate",
    "discriminator_learning_rate",
    "anneal_factor",
)
NOT_NEGATIVE = (
    "noise_spread",
    "noise_penalty",
    "adversarial_weight",
    "cycle_weight",
    "covariance_weight",
    "prototype_weight",
    "adam_beta1",
)
CHOICES = (
    "neighbours",
    "sampling",
    "real_examples",
    "normalisation",
    "precision",
    "residual",
    "output",
    "discriminator",
    "noise",
    "cycle_noise",
    "generator_loss",
    "covariance_classes",
)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [*COUNTS, *POSITIVE])
def test_training_refuses_what_is_not_positive(name, value):
    complaint = "(positive and finite|a whole number)"
    with pytest.raises(ValueError, match=f"{name} must be {complaint}, got {value}"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, got 2.5"):
        TrainConfig(**{name: 2.5})


def test_a_config_survives_json():
    config = TrainConfig(episode_shots=(1, 5))

    assert TrainConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_weights_that_are_not_normalised_need_uniform_sampling():
    with pytest.raises(ValueError, match=r"needs sampling=uniform.*got sampling=shared"):
        TrainConfig(normalised_weights=False)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", NOT_NEGATIVE)
def test_training_refuses_what_is_negative(name, value):
    with pytest.raises(ValueError, match=f"{name} must be finite and not negative, got {value}"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize("name", NOT_NEGATIVE)
def test_a_term_may_have_no_weight(name):
    assert getattr(TrainConfig(**{name: 0.0}), name) == 0


@pytest.mark.parametrize("name", CHOICES)
def test_training_refuses_unknown_choices(name):
    with pytest.raises(ValueError, match=f"{name} must be one of .*, got 'other'"):
        TrainConfig(**{name: "other"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episode_shots": ()}, "episode_shots must be positive whole numbers"),
        ({"episode_shots": (1, 0)}, r"episode_shots must be positive .* got \[1, 0\]"),
        ({"adam_beta1": 1.0}, "adam_beta1 must be below 1 and anneal_factor not above it, got 1.0"),
        (
            {"num_ways": 4, "episode_shots": (1, 5), "batch_size": 20},
            "batch_size must be above num_ways times the most episode_shots, 4 x 5, got 20",
        ),
    ],
)
def test_training_refuses_values_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**settings)


def test_a_batch_is_filled_up_with_meta_base_examples():
    config = TrainConfig(num_ways=4, episode_shots=(1, 5), batch_size=21)

    assert config.max_shots == 5
    assert config.num_base_examples == 1


def test_training_as_printed_has_the_numbers_of_the_paper():
    config = TrainConfig.as_printed()

    printed = {
        "num_episodes": 100_000,
        "generator_learning_rate": 1e-4,
        "discriminator_learning_rate": 1e-4,
        "anneal_factor": 0.5,
        "anneal_every_episodes": 20_000,
        "ky_fan_order": 10,
        "cycle_weight": 5.0,
        "covariance_weight": 0.5,
        "noise_dim": 100,
        "num_components": 50,
        "noise_spread": 0.2,
        "batch_size": 1_000,
        "num_ways": 20,
        "episode_shots": (10,),
        "hidden_dim": 512,
        "neighbours": "soft",
        "perplexity": None,
        "generator_loss": "minimax",
        "sampling": "uniform",
        "normalised_weights": False,
        "normalisation": "none",
        "residual": "none",
        "covariance_classes": "all",
        "prototype_weight": 0.0,
    }
    assert {name: getattr(config, name) for name in printed} == printed
    assert config.num_base_examples == 1_000 - 20 * 10


def test_meta_testing_as_printed_fills_classes_up_and_takes_all_examples_for_real():
    config = EvaluationConfig().with_overrides(META_TESTING_AS_PRINTED)

    assert config.fill_to_capacity
    assert config.mixing_shots is None  # unlike the default: every example weighs the same
