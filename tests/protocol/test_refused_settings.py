"""Test that every class of settings refuses invalid values, and says what is wrong."""

import math
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from cpaan.core.settings import Settings
from cpaan.evaluation.few_shot import FewShotConfig
from cpaan.gan.config import TrainConfig
from cpaan.methods.hallucination import HallucinationConfig
from cpaan.methods.maml import MAMLConfig
from cpaan.methods.registry import METHODS
from cpaan.methods.siamese import SiameseConfig
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import BackboneConfig, EmbeddingConfig
from cpaan.study.config import StudyConfig

OTHERS = [EvaluationConfig, BackboneConfig, FewShotConfig, StudyConfig]
KINDS = list(dict.fromkeys([*(type(method.config) for method in METHODS.values()), *OTHERS]))
MAY_BE_ZERO = (
    "adam_beta1 adversarial_weight all_weight attention_start colour_jitter context_gate "
    "covariance_weight cut_and_paste cycle_weight draw_seed dropout first_view gpus_per_worker "
    "label_smoothing least_cosine linear_weight_decay message_dropout mixing_weight near_share "
    "noise noise_spread novel_bias novel_weight num_rungs num_test_steps "
    "prototype_weight reconstruction_weight seed spread squared_error_weight warmup weight_decay"
)
AT_MOST_ONE = (
    "adam_beta1 anneal_factor colour_jitter cut_and_paste dropout first_view gpus_per_worker "
    "grown_after label_smoothing least_cosine message_dropout mixing_weight near_share novel_share "
    "smallest_crop warmup"
)


def bad_values(name: str, annotation: Any) -> list[object]:
    """Return values that a setting of this name and type must refuse."""
    kind = annotation
    if get_origin(annotation) is UnionType:
        (kind,) = set(get_args(annotation)) - {NoneType}
    if kind in (int, float):
        values = [math.nan, math.inf, True, "3", *([2.5] if kind is int else [])]
        values += [-1] * (name != "novel_bias")
        values += [0] * (name not in MAY_BE_ZERO.split())
        return values + [1.5] * (name in AT_MOST_ONE.split())
    if get_origin(kind) is tuple:
        return [(), 5, (1, 0), (1.5, 2), ("other",)]
    return ["other", 1]  # a choice, a name, or true and false


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_refuses_values_of_another_type_or_range(kind):
    for name, annotation in get_type_hints(kind).items():
        for value in bad_values(name, annotation):
            with pytest.raises(ValueError, match=f"^{name} must be ") as refused:
                kind(**{name: value})
            shown = (f"got {value!r}", f"got {value}")
            assert str(refused.value).endswith(shown) or name == "heads"


REFUSED: dict[type[Settings], list[tuple[dict[str, object], str]]] = {
    TrainConfig: [
        ({"normalised_weights": False}, "needs sampling=uniform.*got sampling=shared"),
        ({"adam_beta1": 1.0}, "adam_beta1 must be at least 0 and below 1, got 1.0"),
        (
            {"num_ways": 4, "episode_shots": (1, 5), "batch_size": 20},
            "batch_size must be above num_ways times the largest of episode_shots, 4 x 5, got 20",
        ),
    ],
    EvaluationConfig: [
        ({"shots": (1, 1)}, "shots must be distinct positive whole numbers, got"),
        ({"heads": ("knn", "knn")}, "heads must be distinct .*, got 'knn, knn'"),
    ],
    StudyConfig: [
        ({"novel_weight": 0, "all_weight": 0.0}, "novel_weight and all_weight are both zero"),
        ({"reduction_factor": 1}, "reduction_factor must be 2 or more, got 1"),
        ({"workers_per_trial": 2, "ray_train": False}, "workers_per_trial=2 needs ray_train=true"),
    ],
    EmbeddingConfig: [({"output": "sigmoid"}, "output must be one of sphere, linear")],
    HallucinationConfig: [({"num_clusters": 1}, "num_clusters must be 2 or more, got 1")],
    MAMLConfig: [({"num_inner_steps": 0}, "must be positive with head=shared, got 0")],
    SiameseConfig: [({"num_pairs": 7}, "num_pairs must be positive and even, got 7")],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_the_message_says_what_is_wrong(kind):
    for settings, message in REFUSED[kind]:
        with pytest.raises(ValueError, match=message):
            kind(**settings)
