"""The loop of all meta-learners, on losses that are planes: every step can be done by hand."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from cpaan.core.files import pack_state, unpack_state
from cpaan.protocol.tasks import BaseSet
from cpaan.training.learning import (
    EpisodeRngs,
    LearningRun,
    LearningSettings,
    NothingToLearn,
    TrainingDivergedError,
)
from cpaan.training.workers import Workers
from helpers.learners import BASE, Plane, direction, new_run, weights
from helpers.runs import threads


class Breaking(Plane):
    """Its loss is infinite in one of the episodes."""

    num_calls = 0

    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        loss, drawn = super().episode_terms(rngs)
        self.num_calls += 1
        return [loss * (float("inf") if self.num_calls == 4 else 1.0), drawn]


class Choosy(Plane):
    """Only half of the episodes have anything to say of the vector."""

    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        drawn = torch.randn(2, generator=rngs.cpu)
        loss = drawn[0] * self.matrix.sum()
        return [loss + drawn[1] * self.vector.sum() if drawn[1] > 0 else loss, drawn[0]]


def test_a_cosine_falls_from_the_learning_rate_to_zero():
    config = LearningSettings(num_episodes=4, learning_rate=0.8)

    rates = [config.rate_after(episode) for episode in range(6)]

    # Half of one plus the cosine of 0, 45, 90, 135 and 180 degrees; then it stays.
    root = 0.5**0.5
    expected = [0.8, 0.4 * (1 + root), 0.4, 0.4 * (1 - root), 0, 0]
    assert rates == pytest.approx(expected, abs=1e-15)


def test_after_each_third_a_tenth_is_left():
    config = LearningSettings(num_episodes=6, learning_rate=5.0, schedule="thirds")

    rates = [config.rate_after(episode) for episode in range(8)]

    assert rates == pytest.approx([5, 5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.05])


def test_sgd_moves_along_a_mean_of_gradients_of_which_the_newest_is_a_tenth():
    run = new_run()

    terms = run.advance(3)

    first, second, third = (direction(7, episode) for episode in range(3))
    moved = first  # there is nothing before it
    after = torch.tensor([2.0, 3.0]) - 0.1 * moved
    moved = 0.9 * moved + 0.1 * second
    after -= 0.1 * moved
    moved = 0.9 * moved + 0.1 * third
    after -= 0.1 * moved
    torch.testing.assert_close(weights(run), after)
    assert terms["drawn"] == pytest.approx(float((first + second + third)[0]) / 3, rel=1e-6)
    assert set(terms) == {"slope", "drawn"}


def test_the_first_step_of_adam_is_as_long_as_the_learning_rate():
    run = new_run(optimiser="adam")

    run.advance(1)

    expected = torch.tensor([2.0, 3.0]) - 0.1 * direction(7, 0).sign()
    torch.testing.assert_close(weights(run), expected)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_matrices_decay_and_vectors_do_not(optimiser):
    run = new_run(Plane(scale=0.0), optimiser=optimiser, weight_decay=0.5)

    run.advance(1)

    # With a flat loss, a step takes away the share 0.1 * 0.5.
    torch.testing.assert_close(weights(run), torch.tensor([2 * 0.95, 3.0]))


def test_the_learning_rate_of_a_step_is_that_of_its_episode():
    run = new_run(Plane(scale=0.0), weight_decay=1.0, num_episodes=3, learning_rate=0.5)

    run.advance(2)

    # By SGD the mean of decays: 2, then 0.9 * 2 + 0.1 * (what is left); rates 0.5 and 0.05.
    after_one = 2 - 0.5 * 2
    expected = after_one - 0.05 * (0.9 * 2 + 0.1 * after_one)
    assert float(weights(run)[0]) == pytest.approx(expected)


def test_divergence_is_named_with_its_episode():
    run = new_run(Breaking())
    run.advance(2)

    with pytest.raises(
        TrainingDivergedError, match=r"^plane diverged: at episode 3, slope became -?inf$"
    ):
        run.advance(5)


def test_infinite_weights_are_named_and_not_kept():
    run = new_run(Plane(scale=1e30), learning_rate=1e30)

    with pytest.raises(TrainingDivergedError, match="after episode 0, weights are infinite or NaN"):
        run.advance(1)
    with pytest.raises(TrainingDivergedError, match="weights are infinite or NaN"):
        run.state_dict()


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_resumed_run_equals_one_that_never_stopped(optimiser):
    unbroken, stopped, resumed = (new_run(optimiser=optimiser) for _ in range(3))
    unbroken.advance(9)
    stopped.advance(4)

    resumed.load_state_dict(unpack_state(pack_state(stopped.state_dict())))
    assert resumed.episode == 4
    resumed.advance(5)

    assert torch.equal(weights(resumed), weights(unbroken))
    assert not torch.equal(weights(stopped), weights(unbroken))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"name": "cone"}, "^it has another name: plane and not cone$"),
        (
            {"base": BaseSet(torch.tensor([[0.0], [2.0]]), torch.tensor([1, 1]))},
            f"^it has another data: {BASE.fingerprint} and not ",
        ),
        ({"seed": 8}, "^it has another seed: 7 and not 8$"),
        ({"learning_rate": 0.2}, r"^it was trained with learning_rate = 0\.1 and not 0\.2$"),
        ({"num_episodes": 10}, "^it was trained with num_episodes = 12 and not 10$"),
        ({"workers": Workers(0, 2)}, "^it was trained by 1 workers and can resume only with as"),
    ],
)
def test_the_state_of_another_run_is_refused(other, message):
    run = new_run()
    run.advance(2)

    with pytest.raises(ValueError, match=message):
        new_run(**other).load_state_dict(run.state_dict())


def test_what_is_trained_to_its_end_serves_any_number_of_workers():
    run, other = new_run(), new_run(workers=Workers(1, 2))
    run.advance(12)

    other.load_state_dict(run.state_dict())

    assert other.episode == other.num_episodes == 12
    assert torch.equal(weights(other), weights(run))


def advance_together(runs: list[LearningRun], num_episodes: int) -> list[dict[str, float]]:
    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(lambda run: run.advance(num_episodes), runs))


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
    learners = [Breaking(), Plane()]
    runs = [
        new_run(learner, workers=workers)
        for learner, workers in zip(learners, threads(2), strict=True)
    ]

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run.advance, 10) for run in runs]

    # The fourth step of two workers begins with episode 6.
    for future in futures:
        assert "plane diverged: at episode 6, slope became" in str(future.exception())


def test_workers_must_share_episodes_evenly():
    with pytest.raises(ValueError, match=r"^12 episodes cannot be shared by 5 workers: take a mul"):
        new_run(workers=Workers(0, 5))


def test_a_method_without_training_has_no_episodes_and_knows_its_data():
    run = NothingToLearn("Control", BASE)

    assert (run.episode, run.num_episodes, run.losses) == (0, 0, ())
    with pytest.raises(AssertionError, match="Control has no episodes"):
        run.advance(1)
    run.load_state_dict(unpack_state(pack_state(run.state_dict())))
    with pytest.raises(ValueError, match="another name: Control and not Other"):
        NothingToLearn("Other", BASE).load_state_dict(run.state_dict())
    with pytest.raises(ValueError, match="another data"):
        run.load_state_dict({**run.state_dict(), "data": "0123"})
