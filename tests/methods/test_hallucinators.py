"""Hallucinators: what is made of what, and what both rows of Feature Imagination have in common."""

import dataclasses

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods import imagination, matching_imagination
from cpaan.methods.base import MetaLearned
from cpaan.methods.imagination import Imagination, ImaginationConfig
from cpaan.methods.matching_imagination import MatchingImagination, MatchingImaginationConfig
from cpaan.methods.parts.hallucinators import Hallucinator, HallucinatorSettings, Imagining
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem, read_phase
from cpaan.training.few_shot_episodes import read_base
from cpaan.training.learning import EpisodeRngs, LearningRun
from cpaan.training.workers import ALONE
from helpers.runs import assert_goes_on, flat
from helpers.tasks import reordered, shots_of, small_task

CPU = torch.device("cpu")
EPISODES = {"num_episodes": 20, "episode_shots": (1, 2, 5), "num_queries": 3}
SMALL = ImaginationConfig(**EPISODES, hidden_dim=16, num_augmented=10)
MATCHING = MatchingImaginationConfig(**EPISODES, num_augmented=10)
HEADS = EvaluationConfig(heads=("centroid", "cosine", "linear"), linear_num_steps=20)
KINDS = ["pn", "pmn"]


def method(kind: str = "pn", **settings: object) -> MetaLearned:
    if kind == "pn":
        return Imagination(SMALL.with_overrides(settings), HEADS)
    return MatchingImagination(MATCHING.with_overrides(settings))


def new_run(data, kind: str = "pn", seed: int = 0, **settings: object) -> LearningRun:
    base = read_base(data.table, data.split, CPU)
    return method(kind, **settings).new_run(base, new_rng(seed), ALONE)


def phase(data, shots=(1, 5), name: str = "validation"):
    rows = shots_of(data.table, data.split)
    return read_phase(data.table, data.split, name, rows, shots=shots, device=CPU)


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=new_rng(seed))


def hallucinator(rows: torch.Tensor, **settings: object) -> Hallucinator:
    """Of two classes with the same rows."""
    base = BaseSet(torch.cat([rows, rows]), torch.tensor([len(rows), len(rows)]))
    return Hallucinator(base, HallucinatorSettings(**settings), new_rng(0))


@pytest.mark.parametrize("factor", [1.0, 0.3, 700.0])
@pytest.mark.parametrize("kind", ["residual", "relu"])
def test_at_the_start_a_hallucinated_example_is_its_seed_to_the_last_bit(kind, factor):
    rows = factor * normals(9, 5)
    rows = rows.abs() if kind == "relu" else rows

    made = hallucinator(rows, hallucinator=kind)(rows, normals(9, 5, seed=1))

    assert torch.equal(made, rows)


def test_a_hallucinator_that_ends_in_a_relu_refuses_negative_features():
    with pytest.raises(ValueError, match=r"not negative, but one is -2.0 .*residual is for all"):
        hallucinator(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), hallucinator="relu")


@pytest.mark.parametrize("kind", ["residual", "relu"])
def test_noise_makes_examples_of_one_seed_differ_once_weights_have_moved(kind):
    network = hallucinator(normals(9, 5).abs(), hallucinator=kind, num_augmented=20)
    for parameter in network.parameters():
        parameter.data += 0.1 * normals(*parameter.shape)
    supports = normals(1, 1, 5).abs()

    filled = network.fill(supports, new_rng(0)).detach()

    assert filled.shape == (1, 20, 5)
    assert torch.equal(filled[:, :1], supports)
    assert len(filled[0].unique(dim=0)) == 20
    silent = hallucinator(normals(9, 5).abs(), hallucinator=kind, noise=0.0, num_augmented=20)
    silent.load_state_dict(network.state_dict())
    assert len(silent.fill(supports, new_rng(0)).detach()[0].unique(dim=0)) == 2


def seed_counts(seeds: str) -> torch.Tensor:
    """How often each of 3 supports stands in 4 filled classes of 9, shape (4, 3)."""
    supports = torch.arange(12.0).view(4, 3, 1)
    network = hallucinator(torch.rand(5, 1, generator=new_rng(0)), seeds=seeds, num_augmented=9)
    filled = network.fill(supports, new_rng(0)).detach()
    assert torch.equal(filled[:, :3], supports)
    return (filled.view(4, 9, 1) == supports.view(4, 1, 3)).sum(dim=1)


def test_even_seeds_leave_every_real_example_the_same_weight():
    assert torch.equal(seed_counts("in-turn"), torch.full((4, 3), 3))


def test_random_seeds_are_of_their_class_and_drawn_with_replacement():
    counts = seed_counts("random")

    assert (counts.sum(dim=1) == 9).all()
    assert (counts >= 1).all()  # the real ones
    assert not torch.equal(counts, torch.full((4, 3), 3))
    assert len(counts.unique(dim=0)) > 1  # every class draws for itself


@pytest.mark.parametrize("num_shots", [3, 4])
def test_nothing_is_hallucinated_where_there_are_examples_enough(num_shots):
    supports = normals(2, num_shots, 5)
    network = hallucinator(normals(9, 5), num_augmented=3)
    for parameter in network.parameters():
        parameter.data += 1.0

    assert torch.equal(network.fill(supports, new_rng(0)), supports)


def test_problems_of_a_draw_share_their_noise_whatever_others_there_are():
    network = hallucinator(normals(9, 5), num_augmented=4)
    for parameter in network.parameters():
        parameter.data += 0.1 * normals(*parameter.shape)
    task = dataclasses.replace(
        small_task([[[0.0] * 5]], normals(3, 2, 5).tolist()),
        shots=normals(2, 3, 2, 5),
        problems=(Problem(1, 0), Problem(2, 0), Problem(1, 1)),
    )

    one, two, other = network.imagine(task, new_rng(0))
    (alone,) = network.imagine(dataclasses.replace(task, problems=(Problem(1, 1),)), new_rng(0))

    assert (len(one[0]), len(two[0]), len(other[0])) == (3, 2, 3)
    assert torch.equal(two[:, 0], one[:, 0])  # from the same seed, the first shot
    assert torch.equal(alone, other)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_an_episode_reaches_hallucinator_and_classifier(gaussians, kind):
    learner = new_run(gaussians, kind, episode_shots=(1,)).learner
    assert isinstance(learner, Imagining)
    learner.hallucinator.last.weight.data += 0.1  # at zero, it lets nothing through to the others

    loss, _ = learner.episode_terms(EpisodeRngs(new_rng(0), new_rng(1)))
    loss.backward()

    without = [name for name, each in learner.named_parameters() if each.grad is None]
    zero = [name for name, each in learner.named_parameters() if not each.grad.any()]
    assert not without
    assert set(zero) <= {"network.hidden.weight", "network.hidden.bias"}  # behind zeros, too
    assert learner.hallucinator.first.weight.grad[:, 8:].any()  # of the noise


@pytest.mark.parametrize("kind", KINDS)
def test_with_examples_enough_the_hallucinator_learns_nothing(gaussians, kind):
    run = new_run(gaussians, kind, num_augmented=2, episode_shots=(2, 5), weight_decay=0.0)
    before = [each.clone() for each in run.learner.hallucinator.parameters()]

    run.advance(2)

    after = list(run.learner.hallucinator.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_all_problems_and_classes_are_finite(gaussians, kind):
    task, queries = phase(gaussians, shots=(1, 2, 5))
    fitted = method(kind, num_augmented=5)

    fitted.fit(task, new_rng(0))
    scores = fitted.predict(queries.features)

    assert set(scores) == ({OWN, *HEADS.heads} if kind == "pn" else {OWN})
    for each in scores.values():
        assert each.shape == (6, len(queries.features), task.num_base + task.num_novel)
        assert each.isfinite().all()
    assert fitted.diversity.shape == (6, task.num_novel)
    assert (fitted.diversity[:4] > 0).all()
    assert fitted.diversity[4:].isnan().all()  # five shots lack nothing


@pytest.mark.parametrize(
    ("make", "published"),
    [
        (lambda config: Imagination(config, HEADS), imagination.PUBLISHED),
        (MatchingImagination, matching_imagination.PUBLISHED),
    ],
    ids=KINDS,
)
def test_the_published_recipe_learns_from_features_that_are_not_negative(
    gaussians, make, published
):
    task, queries = phase(gaussians)
    positive = BaseSet(task.base.features.abs(), task.base.counts, task.base.names)
    task = dataclasses.replace(task, base=positive, shots=task.shots.abs())
    made = make(published.with_overrides({"episode_shots": (1, 2), "num_augmented": 4}))
    run = made.begin(task.base, new_rng(0))

    run.advance(3)
    made.fit(task, new_rng(0))

    assert all(each.any() for each in run.learner.hallucinator.parameters())  # all were zero
    assert made.predict(queries.features.abs())[OWN].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_has_its_problems_in_their_order(gaussians, kind):
    """Also where other problems, with more hallucinated examples, are learnt beside them."""
    task, queries = phase(gaussians, shots=(1, 5))
    mixed = dataclasses.replace(
        task, problems=(Problem(5, 1), Problem(1, 0), Problem(5, 0), Problem(1, 1))
    )
    fitted = method(kind)
    fitted.fit(mixed, new_rng(0))
    together = fitted.predict(queries.features)
    for number, problem in enumerate(mixed.problems):
        fitted.fit(dataclasses.replace(task, problems=(problem,)), new_rng(0))
        for name, alone in fitted.predict(queries.features).items():
            if kind == "pn" and name != "linear":
                torch.testing.assert_close(alone[0], together[name][number], rtol=1e-4, atol=1e-4)
            # Others are trained, or read sequences, in another order when alone.
            is_same = alone[0].argmax(dim=1) == together[name][number].argmax(dim=1)
            assert is_same.float().mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_scores_and_touch_no_global_state(gaussians, kind):
    task, queries = phase(gaussians)
    state = torch.get_rng_state()
    scores = []
    for seed in (0, 0, 1):
        fitted = method(kind, num_episodes=4)
        fitted.fit(task, new_rng(seed))
        scores.append(fitted.predict(queries.features)[OWN])

    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@pytest.mark.parametrize("kind", KINDS)
def test_training_does_not_depend_on_the_order_of_classes(gaussians, kind):
    weights = []
    for name in ("validation", "test"):
        rows = shots_of(gaussians.table, gaussians.split)
        task, _ = read_phase(gaussians.table, gaussians.split, name, rows, shots=(1,), device=CPU)
        run = method(kind).new_run(task.base, new_rng(0), ALONE)
        run.advance(3)
        weights.append(flat(run))

    assert torch.equal(*weights)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_the_order_of_classes(gaussians, kind):
    task, queries = phase(gaussians, shots=(1,))
    order = [2, 0, 1, *range(3, len(task.base.counts))]
    moved = reordered(task.base, order)
    fitted = method(kind, num_episodes=3)
    fitted.fit(task, new_rng(0))
    expected = fitted.predict(queries.features)[OWN]

    fitted.fit(dataclasses.replace(task, base=moved), new_rng(0))
    scores = fitted.predict(queries.features)[OWN]

    columns = [*order[: task.num_base], *range(task.num_base, expected.shape[2])]
    torch.testing.assert_close(scores, expected[:, :, columns], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_equals_never_having_stopped_to_the_last_bit(gaussians, kind):
    assert_goes_on(lambda: new_run(gaussians, kind))


def noisy_classes(seed: int) -> torch.Tensor:
    """Classes that differ in twelve dimensions, beside four of nothing but noise; (30, 30, 16)."""
    means = 1.5 * normals(30, 1, 16, seed=seed)
    rows = normals(30, 30, 16, seed=seed + 2)
    means[..., 12:] = 0
    rows[..., 12:] *= 3
    return means + rows


def new_class_top1(fitted: MetaLearned, num_episodes: int) -> list[float]:
    """Of noisy classes by two shots, before and after training, in percent."""
    base, new = noisy_classes(seed=0), noisy_classes(seed=1)
    task = LowShotTask(
        base=BaseSet(base.flatten(0, 1), torch.full((30,), 30)),
        num_base=30,
        shots=new[:, :2].unsqueeze(0),
        problems=(Problem(2, 0),),
    )
    run = fitted.begin(task.base, new_rng(0))
    top1 = []
    for is_trained in (False, True):
        if is_trained:
            run.advance(num_episodes)
        fitted.fit(task, new_rng(0))
        novel = fitted.predict(new[:, 2:].flatten(0, 1))[OWN][0, :, 30:].unflatten(0, (30, 28))
        is_right = novel.argmax(dim=-1) == torch.arange(30).unsqueeze(1)
        top1.append(100 * float(is_right.float().mean()))
    return top1


def test_training_helps_on_new_classes():
    settings = {"num_episodes": 150, "num_ways": 15, "episode_shots": (2,), "learning_rate": 1e-2}

    before, after = new_class_top1(method(**settings, hidden_dim=64, num_augmented=6), 150)

    assert after > before + 20


@pytest.mark.parametrize(
    ("num_augmented", "num_episodes", "least", "most"), [(6, 120, 15.0, 40.0), (2, 10, 0.0, 0.0)]
)
def test_a_hallucinator_alone_learns_what_a_classifier_lacks(
    num_augmented, num_episodes, least, most
):
    """Nearest centroids do not learn; but made-up examples take away what noise moved them by."""
    fixed = {"context_gate": 0.0, "learns_gate": False, "distance": "euclidean", "dropout": 0.0}
    fixed["weight_decay"] = 1.0
    settings = {"num_episodes": 120, "num_ways": 10, "episode_shots": (2,), "learning_rate": 2e-2}
    made = method("pmn", **fixed, **settings, num_augmented=num_augmented)

    before, after = new_class_top1(made, num_episodes)

    assert least <= after - before <= most
