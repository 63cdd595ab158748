"""Encoders in context, by hand and against easyfsl; the supports of a task."""

import math

import pytest
import torch
from torch import Tensor, nn

from cpaan.core.randomness import new_rng
from cpaan.methods.context import (
    ContextEncoders,
    ContextSettings,
    MatcherSettings,
    PrototypeMatcher,
    QueryEncoder,
    SupportEncoder,
    encode_problems,
)
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from helpers.tasks import normals, small_task

PUBLISHED = ContextSettings(
    normalisation="none", context_gate=1.0, learns_gate=False, attention_scale=1.0, dropout=0.0
)
NO_CONTEXT = MatcherSettings(normalisation="none", context_gate=0.0, dropout=0.0)
CONTEXT = MatcherSettings(context_gate=1.0, dropout=0.0)


def some_base(num_dims: int = 6) -> BaseSet:
    return BaseSet(3 + 2 * normals(40, num_dims), torch.tensor([10, 20, 10]))


def logits_of(
    matcher: PrototypeMatcher, supports: Tensor, queries: Tensor, seed: int = 0
) -> Tensor:
    return matcher.match(matcher.encode(supports, new_rng(seed)), queries)


def set_to_zero(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()


def test_a_step_of_a_query_by_hand():
    """Of a cell of which only the candidate hears something: the first dimension's read-out."""
    encoder = QueryEncoder(2, PUBLISHED.with_overrides({"num_read_outs": 1}), new_rng(0))
    set_to_zero(encoder.cell)
    with torch.no_grad():
        encoder.cell.weight_ih[4, 2] = 1.0  # rows: input, forget, candidate, output, two each
    query = torch.tensor([[math.log(3.0), 0.0]])
    memory = torch.tensor([[1.0, 0.0], [0.0, 5.0]])

    encoded = encoder(query, memory)

    # Attention is softmax(log 3, 0) = (3/4, 1/4), the read-out (3/4, 5/4); gates are at 1/2.
    torch.testing.assert_close(encoder.read_out(query, memory), torch.tensor([[0.75, 1.25]]))
    output = 0.5 * math.tanh(0.5 * math.tanh(0.75))
    torch.testing.assert_close(encoded, torch.tensor([[math.log(3.0) + output, 0.0]]))


def test_queries_are_encoded_as_by_easyfsl(easyfsl):
    """It takes as many steps as there are supports."""
    encoder = QueryEncoder(6, PUBLISHED.with_overrides({"num_read_outs": 4}), new_rng(0))
    theirs = easyfsl.MatchingNetworks(feature_dimension=6, query_encoder=encoder.cell)
    supports, queries = normals(4, 6, seed=1), normals(5, 6, seed=2)
    theirs.contextualized_support_features = supports

    torch.testing.assert_close(encoder(queries, supports), theirs.encode_query_features(queries))


def test_supports_are_encoded_as_by_easyfsl(easyfsl):
    encoder = SupportEncoder(6, PUBLISHED, new_rng(0))
    their_lstm = nn.LSTM(6, 6, bidirectional=True, batch_first=True)
    their_lstm.load_state_dict(encoder.lstm.state_dict())
    theirs = easyfsl.MatchingNetworks(feature_dimension=6, support_encoder=their_lstm)
    supports = normals(7, 6, seed=1)

    encoded = encoder(supports.unsqueeze(1)).squeeze(1)

    torch.testing.assert_close(encoded, theirs.encode_support_features(supports))
    assert not torch.allclose(encoded, supports, atol=0.01)


def test_every_problem_has_a_sequence_of_its_own():
    """Supports of one problem have no influence on another's, and all on each other."""
    encoders = ContextEncoders(some_base(), CONTEXT, new_rng(0))
    supports = normals(2, 3, 4, 6)
    other = supports.clone()
    other[0, 0, 0] += 1

    before = encoders.encode_supports(supports, new_rng(1))
    after = encoders.encode_supports(other, new_rng(1))

    assert before.shape == supports.shape
    torch.testing.assert_close(before[1], after[1])
    assert ((before[0] - after[0]).abs().amax(dim=-1) > 0).all()


def test_the_order_of_supports_matters_in_context_and_not_without():
    supports = normals(3, 4, 6)
    for settings, is_same in ((CONTEXT, False), (NO_CONTEXT, True)):
        encoders = ContextEncoders(some_base(), settings, new_rng(0))
        first, second = (encoders.encode_supports(supports, new_rng(seed)) for seed in (1, 2))
        assert torch.allclose(first, second, atol=1e-6) == is_same


def test_centred_features_have_the_base_classes_in_the_middle_and_their_variance_as_unit():
    base = some_base()
    settings = NO_CONTEXT.with_overrides({"normalisation": "centred"})
    encoders = ContextEncoders(base, settings, new_rng(0))

    classes = [
        encoders.encode_supports(rows.unsqueeze(0), new_rng(0))[0].detach()
        for rows in base.by_class()
    ]

    means = torch.stack([rows.mean(dim=0) for rows in classes])
    torch.testing.assert_close(means.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
    spread = torch.cat([rows - rows.mean(dim=0) for rows in classes]).square().mean()
    assert float(spread) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_at_the_start_a_matcher_has_half_of_the_entropy_it_could_have(distance):
    matcher = PrototypeMatcher(
        some_base(), CONTEXT.with_overrides({"distance": distance}), new_rng(0)
    )
    supports, queries = normals(9, 4, 6), normals(50, 6, seed=1)

    matcher.set_scale(supports, queries, new_rng(3))

    logs = logits_of(matcher, supports, queries, seed=3).detach().log_softmax(dim=1)
    entropy = -(logs.exp() * logs).sum(dim=1).mean()
    assert float(entropy) == pytest.approx(math.log(9) / 2, rel=1e-3)


def numbered_task() -> LowShotTask:
    """Every row says its class and its own number; base classes have 4, 9 and 2 rows."""
    counts = (4, 9, 2)
    rows = [[float(label), float(row)] for label, n in enumerate(counts) for row in range(n)]
    shots = [[[10.0 + label, float(row)] for row in range(3)] for label in range(2)]
    task = small_task([[[0.0, 0.0]]], shots)
    return LowShotTask(
        base=BaseSet(torch.tensor(rows), torch.tensor(counts), ["b", "c", "a"]),
        num_base=2,
        shots=task.shots,
        problems=(Problem(1, 0), Problem(3, 0)),
    )


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_without_context_prototypes_score_as_those_of_easyfsl(easyfsl, distance):
    """Its scores are minus distances; ours are minus their squares, a mean over dimensions."""
    settings = NO_CONTEXT.with_overrides({"distance": distance})
    matcher = PrototypeMatcher(some_base(), settings, new_rng(0))
    supports, queries = normals(3, 4, 6), normals(5, 6, seed=1)
    is_cosine = distance == "cosine"
    theirs = easyfsl.SimpleShot() if is_cosine else easyfsl.PrototypicalNetworks()
    theirs.process_support_set(supports.flatten(0, 1), torch.arange(3).repeat_interleave(4))

    scores = logits_of(matcher, supports, queries).detach()

    expected = theirs(queries)
    torch.testing.assert_close(scores, expected if is_cosine else -expected.square() / 6)


def test_supports_of_a_task_are_balanced_and_encoded_in_blocks(monkeypatch):
    task, sizes = numbered_task(), []
    monkeypatch.setattr("cpaan.methods.context._ROWS_PER_BLOCK", 40)  # a problem has 16 rows or 24

    def encode(supports: Tensor, rng: torch.Generator) -> Tensor:
        sizes.append(len(supports))
        return supports

    one, three, *_ = encode_problems(
        LowShotTask(task.base, 2, task.shots, task.problems + (Problem(1, 0),) * 2),
        *(4, new_rng(0), encode),
    )

    assert sizes == [2, 1, 1]
    assert (one.shape, three.shape) == ((4, 4, 2), (4, 6, 2))  # three shots, twice
    for supports in (one, three):
        assert supports[:, :, 0].unique(dim=1).flatten().tolist() == [0, 1, 10, 11]
    assert sorted(one[0, :, 1].tolist()) == [0, 1, 2, 3]  # all four rows, once each
    assert len(set(one[1, :, 1].tolist())) == 4
    assert one[2:, :, 1].unique().tolist() == [0]
    assert three[2, :, 1].tolist() == [0, 1, 2, 0, 1, 2]


def test_supports_are_read_by_names_and_returned_in_the_order_of_the_task():
    """Of three base classes whose names are in no order, and with one that is no answer."""
    base = BaseSet(torch.arange(4.0).view(4, 1), torch.ones(4).long(), ["d", "a", "c", "b"])
    task = LowShotTask(base, 3, torch.tensor([[[[9.0]]]]), (Problem(1, 0),))
    read = []

    def encode(supports: Tensor, rng: torch.Generator) -> Tensor:
        read.extend(supports.flatten().tolist())
        return supports

    (encoded,) = encode_problems(task, 1, new_rng(0), encode)

    assert read == [1, 2, 0, 9]
    assert encoded.flatten().tolist() == [0, 1, 2, 9]
    assert task.columns_from(base.order).tolist() == [3, 0, 2, 4]  # of all four, and the novel one
