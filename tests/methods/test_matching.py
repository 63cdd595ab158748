"""Test Matching and Prototype Matching Networks against easyfsl, and the supports of a task."""

import math

import pytest
import torch
from torch import Tensor, nn

from cpaan.core.randomness import new_rng
from cpaan.methods.matching import (
    ContextSettings,
    Matcher,
    MatchingConfig,
    PrototypeMatcher,
    PrototypeMatchingConfig,
    QueryEncoder,
    SupportEncoder,
    SupportMatcher,
)
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from cpaan.training.few_shot_episodes import FewShotEpisodes
from helpers.tasks import normals, numbered_rows, small_task

PUBLISHED = ContextSettings(
    normalisation="none", context_gate=1.0, learns_gate=False, attention_scale=1.0, dropout=0.0
)
EPISODES = {"num_episodes": 4, "episode_shots": (1, 2), "num_queries": 2, "dropout": 0.0}
CLOSED = {**EPISODES, "normalisation": "none", "context_gate": 0.0}


BASE = BaseSet(3 + 2 * normals(40, 6), torch.tensor([10, 20, 10]))


def matcher_of(kind: type[Matcher], base: BaseSet = BASE, **settings: object) -> Matcher:
    config = MatchingConfig if kind is SupportMatcher else PrototypeMatchingConfig
    return kind(base, config(**{**EPISODES, **settings}), new_rng(0))


def test_examples_are_encoded_as_by_easyfsl(easyfsl):
    """In easyfsl, a query takes as many steps as there are supports."""
    of_queries = QueryEncoder(6, PUBLISHED.with_overrides({"num_read_outs": 7}), new_rng(0))
    of_supports = SupportEncoder(6, PUBLISHED, new_rng(0))
    lstm = nn.LSTM(6, 6, bidirectional=True, batch_first=True)
    lstm.load_state_dict(of_supports.lstm.state_dict())
    theirs = easyfsl.MatchingNetworks(
        feature_dimension=6, support_encoder=lstm, query_encoder=of_queries.cell
    )
    supports, queries = normals(7, 6, seed=1), normals(5, 6, seed=2)

    encoded = of_supports(supports.unsqueeze(1)).squeeze(1)

    theirs.contextualized_support_features = theirs.encode_support_features(supports)
    torch.testing.assert_close(encoded, theirs.contextualized_support_features)
    torch.testing.assert_close(of_queries(queries, encoded), theirs.encode_query_features(queries))
    assert not torch.allclose(encoded, supports, atol=0.01)


def test_a_closed_gate_leaves_examples_as_they_are_and_in_their_order():
    closed, half = (
        matcher_of(SupportMatcher, **{**CLOSED, "context_gate": gate}) for gate in (0.0, 0.5)
    )
    supports, queries = normals(3, 4, 6), normals(5, 6, seed=1)

    assert torch.equal(closed.encode(supports, new_rng(0)), supports)
    assert torch.equal(closed.encode_queries(queries, supports), queries)
    in_random_order = [half.encode(supports, new_rng(seed)) for seed in (0, 1)]
    assert not torch.allclose(*in_random_order, atol=1e-3)


def test_centred_features_have_the_base_classes_in_the_middle_and_their_variance_as_unit():
    classes = [matcher_of(SupportMatcher).normalise(rows) for rows in BASE.by_class()]

    means = torch.stack([rows.mean(dim=0) for rows in classes])
    torch.testing.assert_close(means.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
    spread = torch.cat([rows - rows.mean(dim=0) for rows in classes]).square().mean()
    assert float(spread) == pytest.approx(1.0, rel=1e-4)


EUCLIDEAN = {"distance": "euclidean"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(SupportMatcher, {}), (PrototypeMatcher, {}), (PrototypeMatcher, EUCLIDEAN)],
)
def test_at_the_start_predictions_have_half_of_the_entropy_they_could_have(kind, settings):
    matcher = matcher_of(kind, BaseSet(normals(90, 6), torch.full((9,), 10)), **settings)

    matcher.set_scale(new_rng(1))

    rng = new_rng(1)
    episode = matcher.episodes.draw_with_median_shots(rng)
    logits = matcher.match(matcher.encode(episode.supports, rng), episode.queries)
    logs = logits.detach().log_softmax(dim=1)
    entropy = -(logs.exp() * logs).sum(dim=1).mean()
    assert float(entropy) == pytest.approx(math.log(9) / 2, rel=1e-3)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_without_context_prototypes_score_as_those_of_easyfsl(easyfsl, distance):
    """Scores of easyfsl are -distance; ours are -distance², as a mean over dimensions."""
    matcher = matcher_of(PrototypeMatcher, **CLOSED, distance=distance)
    supports, queries = normals(3, 4, 6), normals(5, 6, seed=1)
    is_cosine = distance == "cosine"
    theirs = easyfsl.SimpleShot() if is_cosine else easyfsl.PrototypicalNetworks()
    theirs.process_support_set(supports.flatten(0, 1), torch.arange(3).repeat_interleave(4))

    scores = matcher.match(matcher.encode(supports, new_rng(0)), queries).detach()

    expected = theirs(queries)
    torch.testing.assert_close(scores, expected if is_cosine else -expected.square() / 6)


def test_without_context_supports_score_as_those_of_easyfsl(easyfsl):
    """The difference is the 1e-6 that easyfsl adds to every probability."""
    rows, queries = normals(5, 3, 6), normals(7, 6, seed=1)
    task = small_task(base=rows[:3].tolist(), shots=rows[3:].tolist())
    theirs = easyfsl.MatchingNetworks(feature_dimension=6)
    theirs.encode_query_features = lambda features: features
    theirs.contextualized_support_features = rows.flatten(0, 1)
    theirs.one_hot_support_labels = torch.eye(5).repeat_interleave(3, dim=0)
    settings = {**CLOSED, "episode_shots": (1,), "num_queries": 1, "num_examples": 3}
    matcher = matcher_of(SupportMatcher, task.base, **settings, scale="one")

    (scores,) = matcher.solve(task, new_rng(0))(queries).detach()

    torch.testing.assert_close(scores, theirs(queries), atol=1e-3, rtol=1e-4)


def test_an_uneven_episode_has_all_numbers_of_supports_and_queries_among_them():
    """Every row has its class and its number; classes of an episode are in random order."""
    settings = MatchingConfig(**{**EPISODES, "episode_shots": (1, 2, 4), "num_queries": 1})
    episodes = FewShotEpisodes(numbered_rows(*[5] * 6), settings)
    counts_of_first, overlaps = set(), 0

    for seed in range(40):
        episode, members = episodes.draw_uneven(2, new_rng(seed))

        (supports,) = episode.supports
        assert members.tolist() == [
            *([0, 1, 14, 14], [2, 3, 4, 5], [6, 14, 14, 14]),
            *([7, 8, 14, 14], [9, 10, 11, 12], [13, 14, 14, 14]),
        ]
        assert sorted(episode.classes.tolist()) == list(range(6))
        for label, query, places in zip(episode.classes, episode.queries, members, strict=True):
            of_class = supports[places[places < 14]]
            assert (of_class[:, 0] == label).all()
            assert query[0] == label
            assert len(of_class[:, 1].unique()) == len(of_class), "a row is drawn once"
            overlaps += bool((of_class[:, 1] == query[1]).any())
            if label == 0:
                counts_of_first.add(len(of_class))
    assert counts_of_first == {1, 2, 4}, "numbers are of the class, not of the episode"
    # A query is one of 1, 2 or 4 supports among 5 rows: 7/15 of 240 are expected.
    assert 80 < overlaps < 144


@pytest.mark.parametrize("kind", [SupportMatcher, PrototypeMatcher])
def test_an_uneven_episode_with_equal_numbers_is_an_even_one(kind):
    network = matcher_of(kind)
    supports, queries = normals(3, 2, 6), normals(5, 6, seed=1)
    encoded = Matcher.encode(network, supports, new_rng(0))
    members = torch.arange(6).view(3, 2)

    uneven = network.match_uneven(encoded.flatten(0, 1), members, queries, None)

    expected = network.match(network.encode(supports, new_rng(0)), queries)
    torch.testing.assert_close(uneven, expected)
    absent = torch.tensor([[0, 6], [2, 3], [4, 5]])  # the first class has one support of two
    alone = network.match_uneven(encoded.flatten(0, 1), absent, queries, None)
    assert alone.isfinite().all()
    assert not torch.allclose(alone[:, 0], expected[:, 0])


def test_far_classes_have_finite_scores_and_gradients():
    """Their probabilities would be zero, with infinite logarithms."""
    supports = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    query = torch.tensor([[500.0, 0.0]], requires_grad=True)

    logits = matcher_of(SupportMatcher).logits(supports, query, torch.tensor(1.0))
    logs = logits.log_softmax(dim=1)
    gradients = torch.autograd.grad(logs[0, 1], [supports, query])

    torch.testing.assert_close(logs[0], torch.tensor([0.0, -1000.0, -500.0]), atol=0.1, rtol=0)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_supports_of_a_task_are_balanced_and_encoded_in_blocks():
    """Every row has its class and its number; base classes have 4, 9 and 2 rows."""
    shots = [[[10.0 + label, float(row)] for row in range(3)] for label in range(2)]
    base = numbered_rows(4, 9, 2, names=["b", "c", "a"])
    problems = (Problem(1, 0), Problem(3, 0), Problem(1, 0), Problem(1, 0))
    task = LowShotTask(base, 2, torch.tensor([shots]), problems)
    matcher, lengths = matcher_of(PrototypeMatcher, num_examples=4), []

    def encode(supports: Tensor, rng: torch.Generator) -> Tensor:
        lengths.append(len(supports))
        return supports

    matcher.encode = encode
    one, three, *_ = matcher.encode_problems(task, new_rng(0), max_rows=40)  # 16 or 24 a problem

    assert lengths == [2, 1, 1]
    assert (one.shape, three.shape) == ((4, 4, 2), (4, 6, 2))  # each of three shots twice
    for supports in (one, three):
        assert supports[:, :, 0].unique(dim=1).flatten().tolist() == [0, 1, 10, 11]
    assert sorted(one[0, :, 1].tolist()) == [0, 1, 2, 3]  # each of four rows once
    assert len(set(one[1, :, 1].tolist())) == 4
    assert one[2:, :, 1].unique().tolist() == [0]
    assert three[2, :, 1].tolist() == [0, 1, 2, 0, 1, 2]
