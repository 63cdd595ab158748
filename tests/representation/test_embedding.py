"""Test prototypical embeddings: episodes, distances, and the data that training uses."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.protocol.tasks import read_base
from cpaan.representation import embedding
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, embed_table, prototype_scores
from cpaan.training.few_shot_episodes import FewShotEpisodes
from helpers.gaussians import GaussianClasses
from helpers.runs import flat
from helpers.tables import assert_same_table, poisoned
from helpers.tasks import numbered_rows

CPU = torch.device("cpu")
SMALL = EmbeddingConfig(num_episodes=20, episode_shots=(1, 2, 5), num_queries=3, hidden_dim=16)
LINEAR = {"output": "linear", "dropout": 0.0, "weight_decay": 0.0}
NUMBERED = numbered_rows(6, 9, 7, 30)


def new_run(data: GaussianClasses, seed: int = 0, **settings: object) -> EmbeddingRun:
    base = read_base(data.table, sorted(data.split.base_classes("validation")), CPU)
    return EmbeddingRun(base, SMALL.with_overrides(settings), seed)


@pytest.mark.parametrize("num_shots", [1, 4])
def test_supports_and_queries_share_no_row_and_are_of_their_classes(num_shots):
    sizes = {"episode_shots": (1, 4), "num_queries": 2, "num_ways": 3}
    episodes = FewShotEpisodes(NUMBERED, SMALL.with_overrides(sizes))
    met = set()
    for seed in range(50):
        episode = episodes.draw(num_shots, new_rng(seed))

        queries = episode.queries.unflatten(0, (3, 2))
        rows = torch.cat([episode.supports, queries], dim=1)
        assert rows.shape == (3, num_shots + 2, 2)
        assert len(set(episode.classes.tolist())) == 3
        assert (rows[..., 0] == episode.classes.unsqueeze(1)).all()
        assert episode.labels.tolist() == [0, 0, 1, 1, 2, 2]
        for numbers in rows[..., 1].tolist():
            assert len(set(numbers)) == num_shots + 2
        met |= {tuple(row) for row in rows.flatten(0, 1).tolist()}
    assert len(met) == 6 + 9 + 7 + 30  # all rows are drawn
    all_ways = SMALL.with_overrides({"episode_shots": (1,)})  # more ways than classes
    everything = FewShotEpisodes(NUMBERED, all_ways).draw(1, new_rng(0))
    assert sorted(everything.classes.tolist()) == [0, 1, 2, 3]


def test_episodes_differ_and_each_number_of_shots_has_its_turn(gaussians):
    run = new_run(gaussians)
    drawn, draw = [], run.network.episodes.draw
    run.network.episodes.draw = lambda *shape: drawn.append(draw(*shape)) or drawn[-1]
    run.advance(60)

    shots = Counter(episode.supports.shape[1] for episode in drawn)
    assert set(shots) == {1, 2, 5}
    assert min(shots.values()) >= 10
    assert len({tuple(episode.queries.flatten().tolist()) for episode in drawn}) == 60


@pytest.mark.parametrize("normalisation", ["centred", "none"])
def test_before_training_a_residual_network_ranks_by_the_nearest_centroid(gaussians, normalisation):
    run = new_run(gaussians, normalisation=normalisation, **LINEAR)
    episode = run.network.episodes.draw(5, new_rng(1))

    scores = run.network.scores(episode).detach()

    centroids = episode.supports.mean(dim=1)
    squared = (episode.queries.unsqueeze(1) - centroids).square().sum(dim=-1)
    assert torch.equal(scores.argsort(dim=1), (-squared).argsort(dim=1))
    unit = run.base.variance if normalisation == "centred" else run.base.features.shape[1]
    expected = -run.network.log_scale.detach().exp() * squared / unit
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def test_distances_far_from_zero_keep_their_digits_and_gradients():
    """In float32, ‖q‖² + ‖c‖² - 2qc of points 4,096 away from zero has errors of one or more."""
    supports = torch.randint(-3, 4, (4, 2, 8), generator=new_rng(0)).float()
    near = torch.randint(-3, 4, (5, 8), generator=new_rng(1)).float().requires_grad_()
    far = (near.detach() + 4096).requires_grad_()

    scores_near, scores_far = (
        prototype_scores(*rows) for rows in ((supports, near), (supports + 4096, far))
    )

    torch.testing.assert_close(scores_far, scores_near, rtol=1e-5, atol=1e-5)
    for scores in (scores_near, scores_far):
        scores.log_softmax(dim=1)[:, 0].sum().backward()
    torch.testing.assert_close(far.grad, near.grad, rtol=1e-4, atol=1e-5)


PLAIN = {**EmbeddingConfig.plain().to_dict(), "episode_shots": (1, 2, 5), "num_queries": 3}


@pytest.mark.parametrize("settings", [{}, LINEAR, PLAIN])
def test_at_the_start_predictions_have_half_of_the_entropy_they_could_have(gaussians, settings):
    run = new_run(gaussians, **settings)
    entropies = []
    for seed in range(10):
        scores = run.network.scores(run.network.episodes.draw(2, new_rng(seed)))
        entropies.append(torch.special.entr(scores.detach().softmax(dim=1)).sum(dim=1).mean())

    assert float(torch.stack(entropies).mean()) == pytest.approx(math.log(24) / 2, rel=0.1)


def test_base_train_rows_and_the_seed_decide_everything(gaussians):
    base, state = gaussians.split.base_classes("test"), torch.get_rng_state()
    others = poisoned(gaussians, lambda name, is_train: is_train and name in base)
    one_class = poisoned(gaussians, lambda name, is_train: name != base[0])
    hidden, changed = (dataclasses.replace(gaussians, table=x) for x in (others, one_class))

    runs = [new_run(data) for data in (gaussians, hidden, changed)] + [new_run(gaussians, seed=1)]
    for run in runs:
        run.advance(5)

    assert torch.equal(torch.get_rng_state(), state)
    assert [torch.equal(flat(runs[0]), flat(run)) for run in runs] == [True, True, False, False]


def test_a_row_at_the_centre_has_a_finite_gradient_on_the_sphere(gaussians):
    """The identity maps it to zero, which has no direction."""
    run = new_run(gaussians)
    row = run.network.centre.clone().requires_grad_()

    embedded = run.network(row)
    embedded.sum().backward()

    assert torch.equal(embedded, torch.zeros_like(embedded))
    assert row.grad is not None
    assert row.grad.isfinite().all()
    assert row.grad.abs().max() < 1e4


def test_too_few_rows_or_classes_are_refused():
    with pytest.raises(ValueError, match=r"class 000000000, .* of 4, has 6 train rows, .* 8 rows"):
        FewShotEpisodes(NUMBERED, SMALL)
    with pytest.raises(ValueError, match="the smallest of 1, has 20 train rows, but at least 2 cl"):
        FewShotEpisodes(numbered_rows(20), SMALL)


def test_an_embedded_table_has_the_same_rows_and_says_what_made_it(gaussians, monkeypatch):
    table = dataclasses.replace(gaussians.table, backbone_classes=frozenset({"one"}))
    run = new_run(gaussians)
    run.advance(4)
    monkeypatch.setattr(embedding, "_ROWS_PER_BLOCK", 7)

    embedded = embed_table(run, table)

    assert {"gaussian classes", "4 episodes", "seed 0"} <= {*embedded.backbone.split(", ")}
    assert embedded.backbone_classes == {"one", *run.base.names}
    expected = run.network.embed(torch.from_numpy(table.features.copy())).numpy()
    np.testing.assert_allclose(embedded.features, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.square(embedded.features).mean(axis=1), 1, rtol=1e-3)
    assert_same_table(embedded, table.with_changes(features=embedded.features))


@pytest.mark.parametrize(("factor", "dtype"), [(1.0, np.float16), (1e5, np.float32)])
def test_embedded_features_keep_the_precision_of_the_table_where_they_fit(gaussians, factor, dtype):
    half = gaussians.table.with_changes(features=gaussians.table.features.astype("f2"))
    run = new_run(dataclasses.replace(gaussians, table=half), **LINEAR)
    run.network.unit /= factor

    embedded = embed_table(run, half)

    assert embedded.features.dtype == dtype
    expected = factor * embed_table(new_run(gaussians, **LINEAR), gaussians.table).features
    np.testing.assert_allclose(embedded.features, expected, rtol=0.01, atol=0.02 * factor)
