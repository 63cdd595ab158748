"""Test feature hallucination: the examples for each shot, their number, and the training data."""

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.methods import hallucination
from cpaan.methods.controls import Control
from cpaan.methods.hallucination import AnalogyNetwork, Hallucination, HallucinationConfig
from cpaan.protocol.augmentation import diversity_of
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask
from cpaan.training.layers import draw_linear
from cpaan.training.workers import ALONE
from helpers.tasks import read_problems, small_task

SMALL = HallucinationConfig(
    num_episodes=60, batch_size=64, hidden_dim=32, num_clusters=5, num_classifier_steps=50
)

# With Adam, a gradient that is zero up to rounding would cause a full step.
EVALUATION = EvaluationConfig(linear_num_steps=20, linear_optimiser="sgd")


def method_of(**settings: object) -> Hallucination:
    return Hallucination(SMALL.with_overrides(settings), EVALUATION)


def untrained(task: LowShotTask, **settings: object) -> AnalogyNetwork:
    run = method_of(**settings).new_run(task.base, new_rng(0), ALONE)
    assert isinstance(run.learner, AnalogyNetwork)
    return run.learner


def lines() -> LowShotTask:
    """Return two base classes with rows on a line, and a novel class far from both."""
    steps = [0.0, 1.0, 3.0, 7.0]  # all differences are distinct
    base = [[[step, 0.0, 5.0] for step in steps], [[9.0 + step, -step, 0.0] for step in steps]]
    return small_task(base, [[[-50.0, 20.0, 3.0], [-60.0, 30.0, 8.0]]])


def test_before_training_a_shot_moves_as_a_base_class_goes_from_cluster_to_cluster():
    task = lines()
    learner = untrained(task)
    supports = task.support(task.problems[0])

    made = learner.hallucinate(supports, 100, new_rng(0))

    steps = torch.tensor([0.0, 1.0, 3.0, 7.0])
    steps = (steps - steps.unsqueeze(1))[~torch.eye(4, dtype=torch.bool)]
    lines_of = torch.tensor([[1.0, 0.0, 0.0], [1.0, -1.0, 0.0]])
    moves = (steps.view(-1, 1, 1) * lines_of).flatten(0, 1)
    expected = (supports[0].unsqueeze(1) + moves).flatten(0, 1)
    distances, nearest = (made[0].unsqueeze(1) - expected).norm(dim=2).min(dim=1)
    assert distances.max() < 1e-4
    assert len(nearest.unique()) > 40  # of 48: two shots, two classes, twelve moves each


@pytest.mark.parametrize(("seeds", "share"), [("in-turn", 0.0), ("random", 0.25)])
def test_shots_take_turns_between_two_clusters_or_all_are_random(seeds, share):
    """Before training, a shot stays where it is if c equals d, one of four clusters."""
    supports = torch.arange(3.0).view(3, 1).expand(3, 3) * 1e4 * torch.ones(200, 1, 1)

    made = untrained(lines(), seeds=seeds).hallucinate(supports, 9, new_rng(0))

    of_seed = (made[..., 2] / 1e4).round().long()
    counts = torch.stack([(of_seed == number).sum(dim=1) for number in range(3)])
    assert (counts.sum(dim=0) == 9).all()
    assert (counts.amax() == 3) == (seeds == "in-turn")
    distances = (made - 1e4 * of_seed.unsqueeze(-1)).norm(dim=2)
    assert float((distances < 0.5).float().mean()) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize(
    ("output", "is_positive", "is_rectified"),
    [
        ("match", True, True),
        ("match", False, False),
        ("relu", False, True),
        ("linear", True, False),
    ],
)
def test_the_last_relu_is_there_where_features_have_one(output, is_positive, is_rectified):
    base = torch.randn(2, 6, 3, generator=new_rng(0))
    base = base.abs() if is_positive else base
    task = small_task(base.tolist(), [[[0.0, 0.0, 0.0]]])

    made = untrained(task, output=output).hallucinate(task.shots[0], 50, new_rng(0))

    assert (made >= 0).all() == is_rectified


def test_with_shots_enough_nothing_is_made_and_scores_are_those_of_no_augmentation(gaussians):
    task, queries = read_problems(gaussians, (1, 3, 5))
    method, without = method_of(max_per_class=5), Control(None, EVALUATION)
    fitted = method.fit(task, new_rng(0), keep=0)
    expected = without.fit(task, new_rng(0)).predict(queries.features)

    is_full = torch.tensor([problem.num_shots == 5 for problem in task.problems])
    assert [examples.shape[1] for examples in fitted.synthetic] == [4, 4, 2, 2, 0, 0]
    for head, scores in fitted.predict(queries.features).items():
        torch.testing.assert_close(scores[is_full], expected[head][is_full], rtol=1e-4, atol=1e-4)
        assert not torch.allclose(scores[~is_full], expected[head][~is_full], atol=1e-2)
    diversity = diversity_of(fitted.synthetic)
    assert torch.equal(diversity.isnan().all(dim=1), is_full)
    assert (diversity[~is_full] > 0).all()


def test_the_frozen_classifier_knows_base_rows_and_is_not_trained_on(gaussians):
    task, _ = read_problems(gaussians)
    run = method_of(num_classifier_steps=200).begin(task.base, new_rng(0))
    run.advance(1)
    base, weight = run.base, run.learner.class_weight.clone()
    logits = base.features / run.learner.unit @ weight.T + run.learner.class_bias
    run.advance(10)

    labels = torch.arange(len(base.counts)).repeat_interleave(base.counts)
    nearest = torch.cdist(base.features, base.prototypes).argmin(dim=1)
    accuracy, of_nearest = ((best == labels).float().mean() for best in (logits.argmax(1), nearest))
    assert accuracy >= of_nearest - 0.02
    assert torch.equal(weight, run.learner.class_weight)


def test_the_classifier_of_the_source_takes_rows_by_class_size_and_decays_biases():
    """One batch has all of these few rows, so its first step is full gradient descent."""
    task = small_task([[[0.0, 4.0]], [[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]], [[[0.0, 0.0]]])
    config = SMALL.with_overrides({"optimiser": "sgd", "num_classifier_steps": 1})
    start = draw_linear(2, 2, new_rng(5))

    weight, bias = hallucination._train_classifier(task.base, config, new_rng(5))

    labels = torch.tensor([0, 1, 1, 1])
    errors = start(task.base.features).softmax(dim=1) - torch.eye(2)[labels]
    rate, decay = 0.1, 1e-4
    slope = errors.T @ task.base.features / 4 + decay * start.weight
    torch.testing.assert_close(weight, start.weight - rate * slope)
    slope = errors.mean(dim=0) + decay * start.bias
    torch.testing.assert_close(bias, start.bias - rate * slope)


@pytest.mark.parametrize("least_cosine", [0.0, 0.7])
def test_batches_hold_every_analogy_both_ways_round_and_no_other(least_cosine):
    base = torch.randn(3, 4, 6, generator=new_rng(0))
    task = small_task(base.tolist(), [[[0.0] * 6]])
    learner = untrained(task, batch_size=36, least_cosine=least_cosine)
    seen: list[Tensor] = []

    def note(*inputs: Tensor) -> Tensor:
        seen.append(torch.cat(inputs, dim=1))
        return inputs[0]

    learner.forward = note
    _, _, error = learner.episode_terms(0, new_rng(1))

    expected, squares = set(), []
    for label, number in (learner.cosines > least_cosine).nonzero().tolist():
        of_class = learner.centroids[label]
        of_other = learner.centroids[learner.classes[label, number].item()]
        a, b = of_class[learner.pairs[:, number]]
        c = of_other[learner.third[label, number].item()]
        d = of_other[learner.fourth[label, number].item()]
        expected |= {tuple(torch.cat(inputs).tolist()) for inputs in ((a, c, d), (b, d, c))}
        squares.append((b - a).square().mean())
    assert len(squares) == 3 * 6 if least_cosine == 0 else 0 < len(squares) < 3 * 6
    assert {tuple(row) for row in seen[0].tolist()} == expected
    if least_cosine == 0:  # both directions of 18 analogies, each of them once
        # The target for a and (c, d) is b. If the network returns a, the error is their distance.
        assert float(error) == pytest.approx(float(torch.stack(squares).mean()), rel=1e-5)


def test_a_run_resumes_with_the_analogies_that_it_had(gaussians):
    task, _ = read_problems(gaussians)
    started, resumed = (method_of().begin(task.base, new_rng(0)) for _ in range(2))
    started.advance(1)
    started.learner.cosines *= 0.5  # mining them again would undo this

    resumed.load_state_dict(started.state_dict())
    resumed.advance(1)

    for name in ("classes", "third", "fourth", "cosines"):
        assert torch.equal(getattr(resumed.learner, name), getattr(started.learner, name)), name


def test_no_analogies_are_an_error_that_says_so():
    task = small_task([[[0.0, 0.0], [1.0, 0.0]], [[5.0, 5.0], [5.0, 6.0]]], [[[1.0, 1.0]]])

    with pytest.raises(ValueError, match="no analogy has a cosine above 0"):
        untrained(task).prepare()
    task = small_task([[[0.0, 0.0], [1.0, 0.0]], [[5.0, 5.0]]], [[[1.0, 1.0]]])
    with pytest.raises(ValueError, match="at least 2 rows, got 1 of 2"):
        untrained(task)
