from dataclasses import replace

import pytest
import torch
from conftest import shots_of

from cpaan.augmentation import copy, half_mean_shift, mean_shift, synthesise
from cpaan.neighbours import soft_similarity
from cpaan.randomness import new_rng
from cpaan.tasks import LowShotTask, read_phase

SHOTS = (1, 5)


@pytest.fixture
def task(gaussians) -> LowShotTask:
    shot_rows = shots_of(gaussians.table, gaussians.split)
    task, _ = read_phase(
        gaussians.table, gaussians.split, "validation", shot_rows, SHOTS, torch.device("cpu")
    )
    return task


def one_class(task: LowShotTask) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return task.base.by_class()[2], task.base.prototypes[2], task.novel_prototypes[0, 0]


def synthetic(task: LowShotTask, translate, num_synthetic: int = 50) -> torch.Tensor:
    return synthesise(task, translate, num_synthetic=num_synthetic, perplexity=4, rng=new_rng(0))


def test_the_mean_shift_leaves_its_source_covariance_unchanged(task):
    examples, base, novel = one_class(task)

    shifted = mean_shift(examples, base, novel)

    torch.testing.assert_close(torch.cov(shifted.T), torch.cov(examples.T), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shifted.mean(dim=0), novel, atol=1e-5, rtol=1e-5)


def test_the_half_mean_shift_ends_half_way(task):
    examples, base, novel = one_class(task)

    shifted = half_mean_shift(examples, base, novel)

    torch.testing.assert_close(shifted.mean(dim=0), (base + novel) / 2, atol=1e-5, rtol=1e-5)


def test_copies_are_base_examples(task):
    copies = synthetic(task, copy).flatten(0, 2)

    nearest, _ = torch.cdist(copies, task.base.features).min(dim=1)
    assert nearest.max() < 1e-2


def test_source_classes_are_drawn_by_their_similarity(task):
    num_synthetic = 20_000
    scores = soft_similarity(task.novel_prototypes, task.base.prototypes, perplexity=4)
    sources = synthetic(
        task, lambda examples, base, novel: base.expand_as(examples), num_synthetic
    )[0, 0]

    nearest = torch.cdist(sources, task.base.prototypes).argmin(dim=1)
    shares = nearest.bincount(minlength=len(task.base.counts)) / num_synthetic

    # Five standard errors of a share of at most one half.
    assert (shares - scores[0, 0]).abs().max() < 5 * 0.5 / num_synthetic**0.5


def test_examples_of_a_class_are_all_drawn(task):
    classes = torch.zeros(1000, dtype=torch.long)
    uniforms = torch.linspace(0, 1, 1000, dtype=torch.float64)  # the very end included

    picked = task.base.pick(classes, uniforms)

    assert len(picked.unique(dim=0)) == task.base.counts[0]


def test_a_draw_has_the_same_random_numbers_in_any_company(task):
    """Sources depend on the shots as well, so the same problem is looked at in two tasks."""
    together = synthetic(task, copy)
    last = replace(task, problems=task.problems[-1:])

    assert last.problems[0].draw == 1
    assert torch.equal(synthetic(last, copy)[0], together[-1])
    assert not torch.equal(together[0], together[1])


def test_numbers_of_shots_share_the_random_numbers_of_their_draw(task):
    """With prototypes that are all the same, nothing but the random numbers is left."""
    same_shots = task.shots[:1, :, :1].expand_as(task.shots)
    alike = replace(task, shots=same_shots)

    first, other_draw, more_shots, _ = synthetic(alike, copy)

    assert torch.equal(first, more_shots)
    assert not torch.equal(first, other_draw)


def test_equal_generators_give_equal_examples(task):
    assert torch.equal(synthetic(task, mean_shift), synthetic(task, mean_shift))
