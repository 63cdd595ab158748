"""Test the common properties of all methods: their inputs, and the errors for bad ones."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from cpaan.core import devices
from cpaan.core.randomness import new_rng
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import METHODS, ROWS, make_method
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from cpaan.representation.config import EmbeddingConfig
from helpers.runs import QUICK, assert_goes_on, flat, tiny
from helpers.tasks import normals, read_problems

LEARNERS = ["SN", "MAML", "Proto-MAML", "PN", "MN", "PMN", "AWG", "FH", "FI-PN", "FI-PMN", "wDAE"]


def new_method(name: str, **evaluation: object) -> LowShotMethod:
    config = QUICK.with_overrides(evaluation)
    return make_method(name, config, tiny(METHODS[name].config), embedding=tiny(EmbeddingConfig()))


def scores_of(method: LowShotMethod, task: LowShotTask, queries, seed: int = 0) -> dict:
    return dict(method.fit(task, new_rng(seed)).predict(queries.features[:20]))


@pytest.mark.parametrize("name", METHODS)
def test_a_row_scores_queries_with_its_heads_whether_problems_share_them_or_not(name, gaussians):
    task, queries = read_problems(gaussians)
    embedding, config = tiny(EmbeddingConfig()), tiny(METHODS[name].config)
    num_rows = dict(zip(task.base.names, task.base.counts.tolist(), strict=True))
    ROWS[name].check(config, QUICK, num_rows, 8, embedding)
    fitted, blocks = new_method(name).fit(task, new_rng(0)), queries.features[:20].view(4, 5, -1)

    of_each, of_all = fitted.predict(blocks), fitted.predict(blocks.flatten(0, 1))

    assert list(of_all) == ROWS[name].heads_among(QUICK.heads)
    for head, scores in of_all.items():
        assert scores.shape == (4, 20, 24), head
        assert scores.isfinite().all(), head
        assert scores.std() > 0, head
        assert not scores.requires_grad, head
        expected = torch.stack([rows[5 * n : 5 * n + 5] for n, rows in enumerate(scores)])
        torch.testing.assert_close(of_each[head], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*LEARNERS, "DC", "copy", "cCov-GAN", "P-FH"])
def test_the_seed_decides_all_and_no_global_state_is_touched(name, gaussians):
    task, queries = read_problems(gaussians, num_draws=1)
    state = torch.get_rng_state()

    first, again, other = (scores_of(new_method(name), task, queries, seed) for seed in (0, 0, 1))

    assert torch.equal(torch.get_rng_state(), state)
    for head in first:
        assert torch.equal(first[head], again[head]), head
        assert not torch.equal(first[head], other[head]), head


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.published])
def test_the_published_recipe_runs(name, gaussians):
    """Use non-negative features, because some published recipes need them."""
    task, queries = read_problems(gaussians, num_draws=1)
    positive = BaseSet(task.base.features.abs(), task.base.counts, task.base.names)
    task = replace(task, base=positive, shots=task.shots.abs())
    published = tiny(METHODS[name].published)
    if "learning_rate" in published.to_dict():
        published = published.with_overrides({"learning_rate": 1e-3})
    method = make_method(name, QUICK, published, embedding=tiny(EmbeddingConfig()))

    for head, scores in scores_of(method, task, queries).items():
        assert scores.isfinite().all(), head


@pytest.mark.parametrize("name", ["cCov-GAN", "FH", "P-FH", "copy-PN", "DC"])
def test_swept_settings_can_change_after_the_training(name, gaussians, monkeypatch):
    task, queries = read_problems(gaussians, num_draws=1)
    training, swept = tiny(METHODS[name].config), METHODS[name].sweep
    known = {key: key in training.to_dict() for key in swept}
    changed = training.with_overrides({key: swept[key][0] for key in swept if known[key]})
    evaluation = QUICK.with_overrides({key: swept[key][0] for key in swept if not known[key]})

    def variant() -> LowShotMethod:
        return make_method(name, evaluation, changed, embedding=tiny(EmbeddingConfig()))

    trained, other = new_method(name), variant()
    before = scores_of(trained, task, queries)
    expected = scores_of(variant(), task, queries)
    other.take_over(trained)
    monkeypatch.setattr("cpaan.methods.base.train_to_end", None)  # a training would fail
    after = scores_of(other, task, queries)

    for head, values in after.items():
        assert torch.equal(values, expected[head]), head
        assert not torch.equal(values, before[head]), head


@pytest.mark.parametrize("name", LEARNERS)
def test_both_phases_train_the_same_network(name, gaussians):
    tasks = [read_problems(gaussians, phase=phase)[0] for phase in ("validation", "test")]
    runs = [new_method(name).begin(task.base, new_rng(0)) for task in tasks]
    for run in runs:
        run.advance(3)

    assert tasks[0].base.names != tasks[1].base.names
    assert torch.equal(flat(runs[0]), flat(runs[1]))


@pytest.mark.parametrize("name", ["PN", "MN", "PMN", "AWG", "FH", "FI-PN", "FI-PMN", "wDAE"])
def test_the_order_of_base_classes_decides_nothing(name, gaussians):
    task, queries = read_problems(gaussians, shots=(1,))
    order = [*reversed(range(task.num_base)), *range(task.num_base, len(task.base.counts))]
    columns = [*order[: task.num_base], *range(task.num_base, task.num_base + task.num_novel)]

    scores = scores_of(new_method(name, heads=("cosine",)), task, queries)
    other = replace(task, base=task.base.reordered(order))
    others = scores_of(new_method(name, heads=("cosine",)), other, queries)

    for head, values in scores.items():
        torch.testing.assert_close(others[head], values[..., columns], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*LEARNERS, "DC", "copy"])
def test_a_problem_has_the_same_scores_alone(name, gaussians):
    task, queries = read_problems(gaussians, shots=(1, 2, 5))
    mixed = replace(task, problems=tuple(task.problems[number] for number in (5, 0, 3, 1)))
    method = new_method(name, heads=("centroid", "cosine"))
    together = scores_of(method, mixed, queries)

    for place, problem in enumerate(mixed.problems):
        alone = scores_of(method, replace(task, problems=(problem,)), queries)
        for head, values in alone.items():
            torch.testing.assert_close(values[0], together[head][place], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LEARNERS)
def test_going_on_equals_never_having_stopped_to_the_last_bit(name, gaussians):
    base = read_problems(gaussians)[0].base

    assert_goes_on(lambda: new_method(name).begin(base, new_rng(0)))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_fit_in_between_uses_what_is_trained_so_far_and_changes_nothing(name, gaussians):
    """A study evaluates a method several times during its training."""
    task, queries = read_problems(gaussians, shots=(1,), num_draws=1)
    method, straight = new_method(name), new_method(name)
    run, unbroken = (learner.begin(task.base, new_rng(0)) for learner in (method, straight))
    before = scores_of(method, task, queries)
    assert run.episode == 0
    for part in (1, 3):
        run.advance(part)
        method.fit(task, new_rng(0))
    unbroken.advance(1)
    unbroken.advance(3)

    expected = scores_of(straight, task, queries)

    for head, values in scores_of(method, task, queries).items():
        assert torch.equal(values, expected[head]), head
        assert not torch.equal(values, before[head]), head
    assert torch.equal(flat(run), flat(unbroken))


@pytest.mark.parametrize("name", LEARNERS)
def test_features_that_are_not_finite_are_refused(name, gaussians):
    base = read_problems(gaussians)[0].base
    features = base.features.clone()
    features[3, 1] = torch.inf

    with pytest.raises(ValueError, match="not finite"):
        new_method(name).begin(BaseSet(features, base.counts, base.names), new_rng(0))


def noisy_classes(seed: int) -> torch.Tensor:
    """Return classes that differ in 12 dimensions, plus 4 dimensions of noise; (30, 30, 16)."""
    means, rows = 1.5 * normals(30, 1, 16, seed=seed), normals(30, 30, 16, seed=seed + 2)
    means[..., 12:] = 0
    rows[..., 12:] *= 3
    return means + rows


EPISODES = {"num_episodes": 150, "num_ways": 15, "episode_shots": (2,), "num_queries": 5}
PLAIN = {"dropout": 0.0, "weight_decay": 0.0}
CONTEXT = {**EPISODES, **PLAIN, "num_examples": 5, "context_gate": 1.0, "learning_rate": 2e-2}
LINEAR = {**PLAIN, "output": "linear", "hidden_dim": 32}
LEARNING: dict[str, dict[str, Any]] = {
    "SN": {"num_episodes": 150, "num_pairs": 256, "learning_rate": 1e-2, "hidden_dim": 64},
    "MAML": {**EPISODES, **LINEAR, "learning_rate": 1e-2},
    "Proto-MAML": {**EPISODES, **LINEAR, "learning_rate": 1e-2},
    "PN": {**EPISODES, "learning_rate": 1e-2, "hidden_dim": 64},
    "MN": CONTEXT,
    "PMN": CONTEXT,
    "AWG": {**EPISODES, **PLAIN, "learning_rate": 1e-2, "attention_start": 0.0},
    "FH": {"num_episodes": 100, "learning_rate": 1e-2, "residual": False, "num_clusters": 10},
    "FI-PN": {**EPISODES, "learning_rate": 1e-2, "hidden_dim": 64, "num_augmented": 6},
    # Its classifier is fixed, but hallucinated examples reduce the effect of noise on class means.
    "FI-PMN": {**CONTEXT, "context_gate": 0.0, "learns_gate": False, "distance": "euclidean"}
    | {"num_ways": 10, "num_augmented": 6},
    "wDAE": {**EPISODES, "learning_rate": 5e-3, "hidden_dim": 32, "num_neighbours": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_training_lowers_the_loss_and_helps_with_classes_that_it_has_not_met(name):
    """Novel classes have two shots; accuracies are over novel classes, in percent."""
    base, new = noisy_classes(seed=0), noisy_classes(seed=1)
    task = LowShotTask(
        base=BaseSet(base.flatten(0, 1), torch.full((30,), 30)),
        num_base=30,
        shots=new[:, :2].unsqueeze(0),
        problems=(Problem(2, 0),),
    )
    config = METHODS[name].config.with_overrides(LEARNING[name])
    method = make_method(name, EvaluationConfig(heads=("centroid",)), config)
    run = method.begin(task.base, new_rng(0))

    def top1() -> float:
        fitted = method.fit(task, new_rng(0))
        scores = next(iter(fitted.predict(new[:, 2:].flatten(0, 1)).values()))
        answers = scores[0, :, 30:].argmax(dim=-1).view(30, 28)
        return 100 * float((answers == torch.arange(30).unsqueeze(1)).float().mean())

    before = top1()
    first = run.advance(10)
    run.advance(config.num_episodes - 20)
    last = run.advance(10)

    assert last[run.losses[0]] < 0.9 * first[run.losses[0]]
    if name != "FH":  # it changes neither features nor distances
        assert top1() > before + 10


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("name", LEARNERS)
def test_captured_steps_equal_eager_ones(name, monkeypatch):
    base = BaseSet(normals(200, 16).cuda(), torch.full((10,), 20, device="cuda"))
    config = tiny(METHODS[name].config).with_overrides({"num_episodes": 20})

    def train() -> dict[str, float]:
        return make_method(name, QUICK, config).begin(base, new_rng(0)).advance(20)

    captured = train()
    monkeypatch.setattr(devices, "_NUM_EAGER", 100)
    assert captured == pytest.approx(train(), rel=1e-5)
