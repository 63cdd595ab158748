"""Test the loop of all meta-learners with linear losses, whose steps can be computed by hand."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from cpaan.protocol.tasks import BaseSet
from cpaan.training.drive import drive
from cpaan.training.learning import LearningSettings, Run, TrainingDivergedError
from cpaan.training.workers import Workers
from helpers.learners import BASE, Plane, direction, new_run, weights
from helpers.runs import advance_together, assert_goes_on, threads


class Breaking(Plane):
    """A learner whose loss is infinite in one episode."""

    num_calls = 0

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        loss, drawn = super().episode_terms(shape, rng)
        self.num_calls += 1
        return [loss * (float("inf") if self.num_calls == 4 else 1.0), drawn]


class Choosy(Plane):
    """A learner whose vector has a gradient in only half of the episodes."""

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        drawn = torch.randn(2, generator=rng)
        loss = drawn[0] * self.matrix.sum()
        return [loss + drawn[1] * self.vector.sum() if drawn[1] > 0 else loss, drawn[0]]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # (1 + cos x) / 2 for x = 0, 30, ... 180 degrees, and then constant.
        ("cosine", [0.5 + math.cos(math.pi * min(1, episode / 6)) / 2 for episode in range(8)]),
        ("thirds", [1, 1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01]),
        ("last-third", [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1]),
    ],
)
def test_the_learning_rate_falls_by_its_schedule(schedule, rates):
    config = LearningSettings(num_episodes=6, learning_rate=5.0, schedule=schedule)

    assert [config.rate_after(episode) / 5 for episode in range(8)] == pytest.approx(
        rates, abs=1e-15
    )


@pytest.mark.parametrize(("optimiser", "share"), [("sgd", 0.1), ("nesterov", 1.0)])
def test_sgd_moves_along_a_mean_of_gradients_and_nesterov_ahead_of_their_sum(optimiser, share):
    run = new_run(num_episodes=6, optimiser=optimiser, weight_decay=0.5)

    terms = run.advance(3)

    after, momentum = torch.tensor([2.0, 3.0]), None
    for episode, rate in enumerate([0.1, 0.1, 0.01]):  # falls after a third of the episodes
        gradient = direction(7, episode) + 0.5 * after  # the matrix and the vector decay
        momentum = gradient if momentum is None else 0.9 * momentum + share * gradient
        after = after - rate * (momentum if optimiser == "sgd" else gradient + 0.9 * momentum)
    torch.testing.assert_close(weights(run), after)
    drawn = [float(direction(7, episode)[0]) for episode in range(3)]
    assert terms["drawn"] == pytest.approx(sum(drawn) / 3, rel=1e-6)
    assert set(terms) == {"slope", "drawn"}


def test_the_first_step_of_adam_is_as_long_as_the_learning_rate():
    run = new_run(optimiser="adam", weight_decay=0.5)

    run.advance(1)

    # Unlike with SGD, only the matrix decays.
    expected = torch.tensor([2.0 * 0.95, 3.0]) - 0.1 * direction(7, 0).sign()
    torch.testing.assert_close(weights(run), expected)


@pytest.mark.parametrize(
    ("run", "num_before", "message"),
    [
        (new_run(Breaking()), 2, "at episode 3: slope became -?inf"),
        # No loss has been computed yet with the weights after the update.
        (new_run(Plane(1e30), learning_rate=1e30), 0, "at episode 0: the update made weights inf"),
    ],
)
def test_divergence_is_named_with_its_episode_and_not_kept(run, num_before, message):
    if num_before:
        run.advance(num_before)

    with pytest.raises(TrainingDivergedError, match=f"^plane diverged {message}"):
        run.advance(5 if num_before else 1)
    with pytest.raises(TrainingDivergedError, match="plane has diverged; its state cannot"):
        run.state_dict()


@pytest.mark.parametrize("optimiser", ["adam", "sgd", "nesterov"])
def test_a_resumed_run_equals_one_that_never_stopped(optimiser):
    assert_goes_on(lambda: new_run(optimiser=optimiser))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"name": "cone"}, "^its name is plane, not cone$"),
        (
            {"base": BaseSet(torch.tensor([[0.0], [2.0]]), torch.tensor([1, 1]))},
            f"^its data is {BASE.fingerprint}, not ",
        ),
        ({"seed": 8}, "^its seed is 7, not 8$"),
        ({"learning_rate": 0.2}, r"^it was trained with learning_rate = 0\.1, not 0\.2$"),
        ({"num_episodes": 10}, "^it was trained with num_episodes = 12, not 10$"),
        ({"workers": Workers(0, 2)}, "with workers = 1 and cannot resume with 2$"),
        ({"device": "cuda"}, "with device = cuda and cannot resume with cpu$"),
    ],
)
def test_the_state_of_another_run_is_refused(other, message):
    run = new_run()
    run.advance(2)
    others = dict(other)
    state = {**run.state_dict(), "device": others.pop("device", "cpu")}

    with pytest.raises(ValueError, match=message):
        new_run(**others).load_state_dict(state)


def test_what_is_trained_to_its_end_serves_any_number_of_workers_and_device():
    run, other = new_run(), new_run(workers=Workers(1, 2))
    run.advance(12)

    other.load_state_dict({**run.state_dict(), "device": "cuda"})

    assert other.episode == other.num_episodes == 12
    assert torch.equal(weights(other), weights(run))


def test_two_workers_step_along_the_mean_gradient_of_their_episodes():
    runs = [new_run(workers=workers) for workers in threads(2)]

    told = advance_together(runs, 4)

    first = (direction(7, 0) + direction(7, 1)) / 2
    second = (direction(7, 2) + direction(7, 3)) / 2
    after = torch.tensor([2.0, 3.0]) - 0.1 * first - 0.1 * (0.9 * first + 0.1 * second)
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    torch.testing.assert_close(weights(runs[0]), after)
    assert told[0] == told[1]
    assert told[0]["drawn"] == pytest.approx(float(first[0] + second[0]) / 2, rel=1e-5)
    assert [run.episode for run in runs] == [4, 4]


def test_a_worker_whose_episode_says_nothing_of_a_parameter_counts_as_zero():
    seed = next(
        seed for seed in range(100) if direction(seed, 0)[1] > 0 and direction(seed, 1)[1] < 0
    )
    runs = [new_run(Choosy(), seed=seed, workers=workers) for workers in threads(2)]

    advance_together(runs, 2)

    drawn = direction(seed, 0)
    expected = torch.tensor([2.0, 3.0]) - 0.1 * torch.stack(
        [(drawn[0] + direction(seed, 1)[0]) / 2, drawn[1] / 2]
    )
    for run in runs:
        torch.testing.assert_close(weights(run), expected)


def test_all_workers_learn_that_one_of_them_has_diverged():
    pairs = zip([Breaking(), Plane()], threads(2), strict=True)
    runs = [new_run(learner, workers=workers) for learner, workers in pairs]

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run.advance, 10) for run in runs]

    # The fourth step of two workers starts with episode 6.
    for future in futures:
        assert "plane diverged at episode 6: slope became" in str(future.exception())


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("what", ["weight", "episode"])
def test_workers_that_differ_in_one_weight_or_episode_all_refuse_to_train(num_workers, what):
    """With three, the middle one has the mean of all numbers."""
    runs = [new_run(workers=workers) for workers in threads(num_workers)]

    def check() -> list[str]:
        with ThreadPoolExecutor(num_workers) as pool:
            futures = [pool.submit(run.check_equal_weights) for run in runs]
        return [str(future.exception()) for future in futures]

    assert check() == ["None"] * num_workers
    for rank, run in enumerate(runs):
        if what == "episode":
            run.episode = rank
        else:
            run.learner.vector.data[0] += 1e-6 * rank
    message = "workers of plane start with different weights; they may have read different"
    assert check() == [f"{message} checkpoints"] * num_workers


def test_workers_must_share_episodes_evenly():
    with pytest.raises(ValueError, match=r"^12 episodes cannot be divided among 5 workers; use"):
        new_run(workers=Workers(0, 5))


def test_a_method_without_training_has_no_episodes_and_knows_its_data():
    run = Run("Control", BASE.fingerprint)

    assert list(drive(run)) == []
    run.load_state_dict(run.state_dict())
    for other in ({"name": "Other"}, {"data": "0123"}):
        with pytest.raises(ValueError, match=f"its {next(iter(other))} is"):
            run.load_state_dict({**run.state_dict(), **other})
