from dataclasses import replace
from functools import partial

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.evaluation.scoring import run_method
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import TrainingData
from cpaan.methods.controls import Control
from cpaan.methods.prototypical import Embedded
from cpaan.protocol.augmentation import (
    copy,
    diversity_of,
    half_mean_shift,
    mean_pairwise_distance,
    mean_shift,
    num_synthetic_of,
    synthesise,
)
from cpaan.protocol.config import EvaluationConfig, NeighbourSettings
from cpaan.protocol.neighbours import similarity
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.representation.config import EmbeddingConfig
from helpers.tasks import read_problems

NEIGHBOURS = NeighbourSettings(perplexity=4)


@pytest.fixture
def task(gaussians) -> LowShotTask:
    return read_problems(gaussians)[0]


def synthetic(task: LowShotTask, translate, num_synthetic: int = 50) -> torch.Tensor:
    return synthesise(
        task, translate, neighbours=NEIGHBOURS, num_synthetic=num_synthetic, rng=new_rng(0)
    )


def test_source_classes_are_drawn_by_their_similarity(task):
    num_synthetic = 20_000
    scores = similarity(task.novel_prototypes, task.base.prototypes, NEIGHBOURS)
    sources = synthetic(
        task, lambda examples, base, novel: base.expand_as(examples), num_synthetic
    )[0, 0]

    nearest = torch.cdist(sources, task.base.prototypes).argmin(dim=1)
    shares = nearest.bincount(minlength=len(task.base.counts)) / num_synthetic

    # Five standard errors of a share, whose deviation is at most 0.5.
    assert (shares - scores[0, 0]).abs().max() < 5 * 0.5 / num_synthetic**0.5


def test_a_draw_has_the_same_random_numbers_in_any_company(task):
    """Sources also depend on the shots, so the test compares one problem in two tasks."""
    together = synthetic(task, copy)
    last = replace(task, problems=task.problems[-1:])

    assert last.problems[0].draw == 1
    assert torch.equal(synthetic(last, copy)[0], together[-1])
    assert not torch.equal(together[0], together[1])
    # With equal prototypes, the results differ only by their random numbers.
    alike = replace(task, shots=task.shots[:1, :, :1].expand_as(task.shots))
    first, other_draw, more_shots, _ = synthetic(alike, copy)
    assert torch.equal(first, more_shots)
    assert not torch.equal(first, other_draw)


@pytest.mark.parametrize("normalisation", ["spread", "none"])
def test_a_translation_sees_normalised_features_and_its_result_is_on_the_scale_of_the_task(
    task, normalisation
):
    task = replace(task, base=BaseSet(task.base.features, task.base.counts))  # sorted by name
    seen = []

    def shift(examples: torch.Tensor, base: torch.Tensor, novel: torch.Tensor) -> torch.Tensor:
        seen.append((examples, novel))
        return mean_shift(examples, base, novel)

    data = TrainingData.prepare(
        task.base, TrainConfig(normalisation=normalisation), with_covariances=False
    )
    made = data.synthesise(task, shift, neighbours=NEIGHBOURS, num_synthetic=50, rng=new_rng(0))

    torch.testing.assert_close(made, synthetic(task, mean_shift), rtol=1e-4, atol=1e-4)
    scale = task.base.variance**0.5 if normalisation == "spread" else 1.0
    examples, novel = seen[0]
    torch.testing.assert_close(novel[:, 0] * scale, task.novel_prototypes[0])
    nearest, _ = torch.cdist(examples.flatten(0, 1) * scale, task.base.features).min(dim=1)
    assert nearest.max() < 1e-2


def test_diversity_is_the_mean_distance_of_two_different_examples():
    on_a_line = torch.tensor([[0.0], [3.0], [4.0]])
    collapsed = torch.full((3, 1), 5.0)

    distances = mean_pairwise_distance(torch.stack([on_a_line, collapsed]).unsqueeze(0))

    assert distances.shape == (1, 2)
    assert distances.flatten().tolist() == pytest.approx([(3 + 4 + 1) / 3, 0])
    assert mean_pairwise_distance(torch.zeros(2, 1, 3)).isnan().all()
    narrow = torch.randn(40, 512, generator=new_rng(0)) * 0.01 + 30  # far from zero
    expected = torch.nn.functional.pdist(narrow.double()).mean()
    assert mean_pairwise_distance(narrow).item() == pytest.approx(expected.item(), rel=1e-3)


def test_diversity_is_compared_with_that_of_real_examples_in_the_embedding(gaussians):
    task, queries = read_problems(gaussians)
    config = EvaluationConfig(num_draws=2, perplexity=4.0, heads=("centroid",))
    settings = EmbeddingConfig(num_episodes=5, episode_shots=(1,), num_queries=1)
    method = Embedded(Control(copy, config), settings)

    part = partial(run_method, "copy-PN", method, 0, task, queries, config)
    _, of_one = part(diversity_draws=range(1, 2))
    _, of_none = part(diversity_draws=range(0))
    _, of_both = part()

    assert of_one.equals(of_both[of_both["draw"] == 1].reset_index(drop=True))
    assert len(of_none) == 0 < len(of_one) < len(of_both)
    fitted = method.fit(task, new_rng(0), keep=0)
    real = [
        torch.pdist(fitted.represent(queries.features[queries.labels == task.num_base + number]))
        for number in range(task.num_novel)
    ]
    diversity = diversity_of(fitted.synthetic)
    ratios = diversity / torch.stack([distances.mean() for distances in real])
    assert fitted.represent(queries.features).square().mean() == pytest.approx(1, rel=1e-3)
    assert of_both["distance"].tolist() == pytest.approx(diversity.mean(dim=1).tolist())
    assert of_both["ratio"].tolist() == pytest.approx(ratios.mean(dim=1).tolist(), rel=1e-4)


def test_translations_move_the_mean_all_of_the_way_half_of_it_or_not_at_all(task):
    examples, base = task.base.by_class()[2], task.base.prototypes[2]
    novel = task.novel_prototypes[0, 0]
    means = {mean_shift: novel, half_mean_shift: (base + novel) / 2, copy: base}
    for translation, mean in means.items():
        moved = translation(examples, base, novel)
        torch.testing.assert_close(moved.mean(dim=0), mean, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.cov(moved.T), torch.cov(examples.T), atol=1e-5, rtol=1e-5)


def test_the_number_of_synthetic_examples_is_given_or_fills_classes_to_the_average():
    filling = EvaluationConfig(fill_to_capacity=True)

    assert num_synthetic_of(torch.tensor([3, 6]), 1, EvaluationConfig(num_synthetic=7)) == 7
    assert num_synthetic_of(torch.tensor([3, 7]), 2, filling) == 5 - 2
    with pytest.raises(ValueError, match=r"base classes have 3 examples .* with 3 shots"):
        num_synthetic_of(torch.tensor([2, 4]), 3, filling)
