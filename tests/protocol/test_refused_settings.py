"""Test that every class of settings refuses invalid values."""

import math
import re

import pytest

from cpaan.core.settings import Settings
from cpaan.gan.config import TrainConfig
from cpaan.methods.denoising_weights import DenoisingWeightsConfig
from cpaan.methods.distribution_calibration import DistributionCalibrationConfig
from cpaan.methods.fake_novel import FakeNovelSettings
from cpaan.methods.hallucination import HallucinationConfig
from cpaan.methods.imagination import ImaginationConfig, MatchingImaginationConfig
from cpaan.methods.maml import MAMLConfig
from cpaan.methods.matching import PrototypeMatchingConfig
from cpaan.methods.siamese import SiameseConfig
from cpaan.methods.weight_generator import WeightGeneratorConfig
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import BackboneConfig, EmbeddingConfig
from cpaan.study.config import StudyConfig

Case = tuple[dict[str, object], str]
"""Settings, and a part of the error message."""


def each(names: str, values: list[object], message: str) -> list[Case]:
    """Return a case for each name and value; the message starts with the name."""
    return [({name: value}, f"{name} {message}") for name in names.split() for value in values]


def by_name(*settings: dict[str, object]) -> list[Case]:
    """Return cases whose message has the name of the first setting."""
    return [(setting, next(iter(setting))) for setting in settings]


COUNTS = (
    "num_neighbours num_episodes num_ways batch_size hidden_dim noise_dim num_components "
    "ky_fan_order num_covariance_classes anneal_every_episodes"
)
POSITIVE = "perplexity generator_learning_rate discriminator_learning_rate anneal_factor"
NOT_NEGATIVE = (
    "noise_spread adversarial_weight cycle_weight covariance_weight prototype_weight adam_beta1"
)
CHOICES = (
    "neighbours sampling real_examples normalisation precision residual output noise "
    "generator_loss covariance_classes"
)
HALLUCINATORS = by_name({"num_augmented": 0}, {"noise": -1.0}, {"hallucinator": "gan"}) + by_name(
    {"seeds": "all"}
)
REFUSED: dict[type[Settings], list[Case]] = {
    TrainConfig: [
        *each(COUNTS, [0, -1], "must be positive and finite"),
        *each(COUNTS, [2.5, math.nan, math.inf, True, "3"], "must be a whole number"),
        *each(POSITIVE, [0, -1, math.nan, math.inf], "must be positive and finite"),
        *each(NOT_NEGATIVE, [-0.1, math.nan, math.inf], "must be finite and not negative"),
        *each("cycle_weight perplexity", ["5", True], "must be a number"),
        *each(CHOICES, ["other", 1], "must be one of"),
        *each("episode_shots", [(), (1, 0)], "must be positive whole numbers"),
        *each("episode_shots", [5, (1.5, 2)], "must be a whole number, or several"),
        ({"normalised_weights": "false"}, "normalised_weights must be true or false"),
        ({"normalised_weights": False}, "needs sampling=uniform.*got sampling=shared"),
        ({"adam_beta1": 1.0}, "adam_beta1 must be at least 0 and below 1, got 1.0"),
        ({"anneal_factor": 1.5}, "anneal_factor must be at most 1, got 1.5"),
        (
            {"num_ways": 4, "episode_shots": (1, 5), "batch_size": 20},
            "batch_size must be above num_ways times the largest of episode_shots, 4 x 5, got 20",
        ),
    ],
    EvaluationConfig: [
        *each("shots", [(1, 0), (), (1, 1)], "must be distinct positive whole numbers, got"),
        *each("num_draws num_neighbours", [0], "must be positive and finite, got 0"),
        *each("perplexity knn_temperature", [math.nan, math.inf], "must be positive and finite"),
        ({"heads": ("centroid", "svm")}, "heads must be distinct and among centroid, cosine, knn"),
        ({"heads": ("knn", "knn")}, "heads must be distinct .*, got 'knn, knn'"),
        ({"mixing_weight": 1.1}, "mixing_weight must be from 0 to 1, got 1.1"),
        ({"prior": 1.0}, "prior must be above 0 and below 1"),
        ({"seed": -1}, "seed must be finite and not negative, got -1"),
        ({"neighbours": "some"}, "neighbours must be one of soft, hard, none, got 'some'"),
        ({"linear_optimiser": "lbfgs"}, "linear_optimiser must be one of adam, sgd, got 'lbfgs'"),
        ({"linear_weight_decay": -1.0}, "linear_weight_decay must be finite and not negative"),
    ],
    StudyConfig: [
        ({"method": "copies"}, "method must be one of none, .*cCov-GAN, .*, got copies"),
        ({"head": "svm"}, "head must be one of centroid, cosine, knn, linear, got svm"),
        ({"novel_weight": 0, "all_weight": 0.0}, "novel_weight and all_weight are both zero"),
        *each("novel_weight all_weight", [-1.0, math.inf], "must be finite and not negative"),
        *each("gpus_per_worker num_rungs seed", [-1], "must be finite and not negative, got -1"),
        ({"reduction_factor": 1}, "reduction_factor must be 2 or more, got 1"),
        ({"gpus_per_worker": 1.5}, "gpus_per_worker must be a whole number or .*, got 1.5"),
        *each("num_trials workers_per_trial num_finalists", [0], "must be positive and finite"),
        *each("num_final_draws num_final_seeds", [0], "must be positive and finite, got 0"),
        ({"num_trials": 2.5}, "num_trials must be a whole number, got 2.5"),
        ({"workers_per_trial": 2, "ray_train": False}, "workers_per_trial=2 needs ray_train=true"),
        ({"ray_train": "yes"}, "ray_train must be true or false or none, got 'yes'"),
    ],
    BackboneConfig: [
        ({"loss": "mse"}, "loss must be one of ce, sgm, l2, cosine"),
        ({"num_epochs": 0}, "num_epochs must be positive"),
        ({"smallest_crop": 1.5}, "smallest_crop must be from 0 to 1, got 1.5"),
    ],
    # Many methods inherit these settings of episodes, perceptrons and optimisers.
    EmbeddingConfig: [
        *each("num_episodes num_ways num_queries hidden_dim learning_rate", [0], "must be"),
        *each("episode_shots", [(), (0, 5)], "must be"),
        *each("dropout", [1.0, -0.1, math.nan], "must be"),
        *each("learning_rate", [math.nan], "must be"),
        *by_name({"weight_decay": -1.0}, {"residual": 1}, {"output": "sigmoid"}),
        *by_name({"normalisation": "unit-norm"}),
    ],
    PrototypeMatchingConfig: [
        *each("num_read_outs attention_scale", [0], "must be"),
        *each("context_gate dropout", [-1.0], "must be"),
        *each("distance normalisation", ["other"], "must be"),
    ],
    FakeNovelSettings: [
        *each("novel_share", [0.0, 1.0], "must be"),
        *by_name({"dropout": 1.0}, {"cosine_scale": 0.0}),
    ],
    DenoisingWeightsConfig: [
        *each("num_layers hidden_dim num_neighbours temperature", [0], "must be"),
        *by_name({"noise": -0.1}, {"message_dropout": 1.0}, {"reconstruction_weight": -1.0}),
    ],
    DistributionCalibrationConfig: by_name(
        {"tukey_power": 0.0}, {"num_nearest": 0}, {"num_samples": 0}, {"spread": -0.1}
    ),
    HallucinationConfig: [
        ({"num_clusters": 1}, "num_clusters must be 2 or more, got 1"),
        *each("least_cosine", [-0.1, 1.0], "must be at least 0 and below 1"),
        *each("squared_error_weight", [-0.1], "must be finite and not negative"),
        *each("max_per_class mixing_shots batch_size", [0], "must be positive"),
        ({"cluster_start": "zero"}, "cluster_start must be one of rows, sphere"),
    ],
    ImaginationConfig: HALLUCINATORS,
    MatchingImaginationConfig: [*HALLUCINATORS, *by_name({"num_examples": 0})],
    MAMLConfig: [
        *each("num_tasks num_inner_steps num_base_shots clip prototype_scale", [0], ".*"),
        *each("inner_learning_rate", [0.0, math.nan], ".*"),
        *by_name({"head": "linear"}, {"num_inner_steps": -1}, {"num_test_steps": -1}),
        *by_name({"output": "relu"}),
    ],
    SiameseConfig: [
        *each("num_pairs num_near num_exemplars", [0], ".*"),
        *each("near_share", [-0.1, 1.1], ".*"),
        *by_name({"num_pairs": 7}, {"output": "relu"}, {"comparison": "median"}),
    ],
    WeightGeneratorConfig: [
        *by_name({"attention_scale": 0.0}, {"attention_start": -0.1}, {"keys": "none"}),
        *by_name({"novel_share": 1.5}, {"dropout": -0.1}),
    ],
}


def refusal(config: type[Settings], settings: dict[str, object]) -> str:
    try:
        config(**settings)
    except ValueError as error:
        return str(error)
    return f"{settings} was accepted"


@pytest.mark.parametrize("config", REFUSED)
def test_values_that_make_no_sense_are_refused(config):
    for settings, message in REFUSED[config]:
        assert re.search(f"^.*{message}", refusal(config, settings))
