"""Encoders in context, by hand and against easyfsl; what stays true whatever was learnt."""

import math

import pytest
import torch
from torch import Tensor, nn

from cpaan.core.randomness import new_rng
from cpaan.methods.parts.contextual import (
    ContextEncoders,
    ContextSettings,
    MatcherSettings,
    PrototypeMatcher,
    QueryEncoder,
    SupportEncoder,
)
from cpaan.protocol.tasks import BaseSet

PUBLISHED = ContextSettings(
    normalisation="none", context_gate=1.0, learns_gate=False, attention_scale=1.0, dropout=0.0
)
NO_CONTEXT = MatcherSettings(normalisation="none", context_gate=0.0, dropout=0.0)
CONTEXT = MatcherSettings(context_gate=1.0, dropout=0.0)


def random_rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=new_rng(seed))


def some_base(num_dims: int = 6) -> BaseSet:
    return BaseSet(3 + 2 * random_rows(40, num_dims), torch.tensor([10, 20, 10]))


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


def test_attention_is_over_the_memory_as_it_is_and_not_over_directions():
    encoder = QueryEncoder(2, PUBLISHED, new_rng(0))
    memory = torch.tensor([[1.0, 0.0], [2.0, 0.0]])

    read_out = encoder.read_out(torch.tensor([[1.0, 0.0]]), memory)

    share = math.e / (1 + math.e)
    torch.testing.assert_close(read_out, torch.tensor([[1 + share, 0.0]]))


def test_queries_are_encoded_as_by_easyfsl(easyfsl):
    """It takes as many steps as there are supports."""
    encoder = QueryEncoder(6, PUBLISHED.with_overrides({"num_read_outs": 4}), new_rng(0))
    theirs = easyfsl.MatchingNetworks(feature_dimension=6, query_encoder=encoder.cell)
    supports, queries = random_rows(4, 6, seed=1), random_rows(5, 6, seed=2)
    theirs.contextualized_support_features = supports

    torch.testing.assert_close(encoder(queries, supports), theirs.encode_query_features(queries))


def test_supports_are_encoded_as_by_easyfsl(easyfsl):
    encoder = SupportEncoder(6, PUBLISHED, new_rng(0))
    their_lstm = nn.LSTM(6, 6, bidirectional=True, batch_first=True)
    their_lstm.load_state_dict(encoder.lstm.state_dict())
    theirs = easyfsl.MatchingNetworks(feature_dimension=6, support_encoder=their_lstm)
    supports = random_rows(7, 6, seed=1)

    encoded = encoder(supports.unsqueeze(1)).squeeze(1)

    torch.testing.assert_close(encoded, theirs.encode_support_features(supports))
    assert not torch.allclose(encoded, supports, atol=0.01)


def test_every_problem_has_a_sequence_of_its_own():
    """Supports of one problem have no influence on another's, and all on each other."""
    encoders = ContextEncoders(some_base(), CONTEXT, new_rng(0))
    supports = random_rows(2, 3, 4, 6)
    other = supports.clone()
    other[0, 0, 0] += 1

    before = encoders.encode_supports(supports, new_rng(1))
    after = encoders.encode_supports(other, new_rng(1))

    assert before.shape == supports.shape
    torch.testing.assert_close(before[1], after[1])
    assert ((before[0] - after[0]).abs().amax(dim=-1) > 0).all()


def test_the_order_of_supports_matters_in_context_and_not_without():
    supports = random_rows(3, 4, 6)
    for settings, is_same in ((CONTEXT, False), (NO_CONTEXT, True)):
        encoders = ContextEncoders(some_base(), settings, new_rng(0))
        first, second = (encoders.encode_supports(supports, new_rng(seed)) for seed in (1, 2))
        assert torch.allclose(first, second, atol=1e-6) == is_same


def test_shuffled_supports_come_back_to_their_places():
    encoders = ContextEncoders(some_base(), NO_CONTEXT, new_rng(0))
    supports = random_rows(2, 3, 4, 6)

    assert torch.equal(encoders.encode_supports(supports, new_rng(1)), supports)


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


def test_dropout_leaves_the_mean_and_is_of_training_alone():
    settings = NO_CONTEXT.with_overrides({"dropout": 0.75})
    encoders = ContextEncoders(some_base(), settings, new_rng(0))
    ones = torch.ones(10, 100, 6)

    dropped = encoders.encode_supports(ones, new_rng(1), new_rng(2)).detach()

    assert set(dropped.unique().tolist()) == {0.0, 4.0}
    assert float(dropped.mean()) == pytest.approx(1.0, rel=0.05)
    assert torch.equal(encoders.encode_supports(ones, new_rng(1)), ones)


@pytest.mark.parametrize("learns_gate", [True, False])
def test_a_closed_gate_can_open_where_it_is_learnt(learns_gate):
    settings = NO_CONTEXT.with_overrides({"learns_gate": learns_gate})
    matcher = PrototypeMatcher(some_base(), settings, new_rng(0))

    scores = matcher.scores(random_rows(3, 2, 6), random_rows(4, 6, seed=1), new_rng(0))
    scores.log_softmax(dim=1)[:, 0].sum().backward()

    for gate in (matcher.context.of_supports.gate, matcher.context.of_queries.gate):
        if learns_gate:
            assert gate.grad is not None
            assert gate.grad.abs() > 0
        else:
            assert gate.grad is None


def test_without_context_prototypes_score_as_those_of_easyfsl(easyfsl):
    """Its scores are minus distances; ours are minus their squares, a mean over dimensions."""
    matcher = PrototypeMatcher(
        some_base(), NO_CONTEXT.with_overrides({"distance": "euclidean"}), new_rng(0)
    )
    supports, queries = random_rows(3, 4, 6), random_rows(5, 6, seed=1)
    theirs = easyfsl.PrototypicalNetworks()
    theirs.process_support_set(supports.flatten(0, 1), torch.arange(3).repeat_interleave(4))

    scores = matcher.scores(supports, queries, new_rng(0)).detach()

    torch.testing.assert_close(scores, -theirs(queries).square() / 6)


def test_without_context_cosines_are_those_of_easyfsl(easyfsl):
    matcher = PrototypeMatcher(some_base(), NO_CONTEXT, new_rng(0))
    supports, queries = random_rows(3, 4, 6), random_rows(5, 6, seed=1)
    theirs = easyfsl.SimpleShot()
    theirs.process_support_set(supports.flatten(0, 1), torch.arange(3).repeat_interleave(4))

    scores = matcher.scores(supports, queries, new_rng(0)).detach()

    torch.testing.assert_close(scores, theirs(queries))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_at_the_start_a_matcher_has_half_of_the_entropy_it_could_have(distance):
    matcher = PrototypeMatcher(
        some_base(), CONTEXT.with_overrides({"distance": distance}), new_rng(0)
    )
    supports, queries = random_rows(9, 4, 6), random_rows(50, 6, seed=1)

    matcher.set_scale(supports, queries, new_rng(3))

    logs = matcher.scores(supports, queries, new_rng(3)).detach().log_softmax(dim=1)
    entropy = -(logs.exp() * logs).sum(dim=1).mean()
    assert float(entropy) == pytest.approx(math.log(9) / 2, rel=1e-3)


def test_a_class_of_zeros_and_a_query_at_the_centre_have_finite_gradients():
    matcher = PrototypeMatcher(some_base(), NO_CONTEXT, new_rng(0))
    supports = torch.zeros(2, 1, 6, requires_grad=True)
    queries = torch.zeros(1, 6, requires_grad=True)

    matcher.scores(supports, queries, new_rng(0)).log_softmax(dim=1)[0, 0].backward()

    for each in (supports.grad, queries.grad):
        assert each is not None
        assert each.isfinite().all()


def test_features_that_are_not_finite_are_refused():
    base = some_base()
    base.features[3, 1] = math.inf

    with pytest.raises(ValueError, match="features are not finite"):
        PrototypeMatcher(BaseSet(base.features, base.counts), CONTEXT, new_rng(0))


def test_weights_are_drawn_by_the_given_stream_alone():
    state = torch.get_rng_state()

    first, second, other = (
        PrototypeMatcher(some_base(), CONTEXT, new_rng(seed)).state_dict() for seed in (0, 0, 1)
    )

    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(
        first["context.of_queries.cell.weight_ih"], other["context.of_queries.cell.weight_ih"]
    )
