"""Matching Networks (MN). Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra (2016), Matching
Networks for One Shot Learning; and Prototype Matching Networks (PMN). Wang, Girshick, Hebert &
Hariharan (2018), Low-Shot Learning from Imaginary Data.

MN encodes supports and queries in the context of all supports. A softmax over similarities to all
supports gives a query's classes. PMN has the same encoders, but compares queries with class means
of encoded supports, as in Prototypical Networks. `PUBLISHED` is the recipe of Hariharan & Girshick
(2017) for MN on this benchmark. That of Wang et al. for PMN is unknown; ours follows it.

Choices where the sources are silent: queries of PMN attend to class means, not to all supports. PMN
compares by cosine times a learnt scale; centroids without context score better that way than by
distance.

Changes from the sources: supports are read in random order. Outside `PUBLISHED`, an episode has
equally many supports of every class, features are centred, and inner products of MN have a learnt
scale. The outputs of the recurrent networks are multiplied by a learnt gate that starts half open.
Inputs have dropout, because few base classes are soon overfitted.

Shapes: D = feature dimension, N = classes, K = supports of a class, Q = queries, P = problems,
B = base classes of the phase.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from cpaan.core.randomness import draw_word, new_rng
from cpaan.methods.base import LowShotLearner
from cpaan.methods.table_row import Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.representation.embedding import prototype_scores
from cpaan.training.few_shot_episodes import FewShotEpisodes, FewShotLearner
from cpaan.training.layers import Normalising, draw_weights, drop, find_log_scale
from cpaan.training.learning import EpisodeSettings, LearningSettings

_LEAST_NORM = 1e-5  # added to a support's norm, as published

PUBLISHED_RECIPE: dict[str, Any] = {
    "num_episodes": 60_000,
    "optimiser": "sgd",
    "learning_rate": 0.1,
    "schedule": "thirds",
    "weight_decay": 1e-3,
    "num_queries": 1,
    "episodes": "uneven",
    "normalisation": "none",
    "context_gate": 1.0,
    "learns_gate": False,
    "attention_scale": 1.0,
    "dropout": 0.0,
}
"""Training of Matching Networks on this benchmark by Hariharan & Girshick (2017)."""

CONTEXT_SPACE: SearchSpace = {
    "learning_rate": Range(3e-5, 3e-3, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
}


@dataclass(frozen=True, kw_only=True)
class ContextSettings(EpisodeSettings, LearningSettings):
    """Settings of the encoders that use context, and of their training."""

    num_episodes: int = 1_000
    episode_shots: tuple[int, ...] = (1, 2, 5)
    learning_rate: float = 1e-3
    weight_decay: float = 5.0
    episodes: Literal["even", "uneven"] = "even"
    """Even: classes of an episode have the same number of supports, and queries are other rows.
    Uneven, as published: classes have different numbers, and queries may be supports."""
    normalisation: Literal["centred", "none"] = "centred"
    """Centred: subtract the mean of the base prototypes, divide by the spread of base classes."""
    context_gate: float = 0.5
    """Initial factor of the output of the recurrent networks, which is added to an example: 0 for
    no context, 1 as published."""
    learns_gate: bool = True
    """Whether the gate is learnt or stays constant."""
    num_read_outs: int = 5
    """Number of times that a query attends to the supports."""
    attention_scale: float = 0.05
    """Factor of inner products in a query's attention. At 1, as published, one support gets all
    attention; about 1 / sqrt(D) spreads it."""
    dropout: float = 0.5
    """Dropout rate of features in training."""
    num_examples: int = 20
    """Supports of each class at test: repeated shots, or as many rows of a base class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_read_outs", "attention_scale", "num_examples")
        self._refuse_negative("context_gate")
        self._refuse_unless_below_one("dropout")


@dataclass(frozen=True, kw_only=True)
class PrototypeMatchingConfig(ContextSettings):
    """Settings of a Prototype Matching Network."""

    distance: Literal["cosine", "euclidean"] = "cosine"
    """Similarity of a query and a class: the cosine, or minus the mean squared difference over
    dimensions. Both are multiplied by a learnt scale."""


@dataclass(frozen=True, kw_only=True)
class MatchingConfig(ContextSettings):
    """Settings of a Matching Network."""

    scale: Literal["learnt", "one"] = "learnt"
    """Factor of inner products of a query and the supports' directions; one as published. Learnt:
    at the start, predictions have half of the possible entropy."""


PUBLISHED = MatchingConfig(
    **PUBLISHED_RECIPE, num_ways=389, episode_shots=(*range(1, 11),), scale="one", num_examples=100
)
PROTOTYPE_RECIPE = PUBLISHED_RECIPE | {"episode_shots": (1, 2, 3, 4, 5), "distance": "euclidean"}
SPACE: SearchSpace = {**CONTEXT_SPACE, "context_gate": Range(0.01, 1.0, log=True)}


class SupportEncoder(nn.Module):
    """A bidirectional LSTM over the sequence of supports: g_i = x_i + →h_i + ←h_i."""

    def __init__(self, num_dims: int, config: ContextSettings, rng: torch.Generator) -> None:
        super().__init__()
        lstm = nn.LSTM(num_dims, num_dims, bidirectional=True, device="meta")  # draws no weights
        self.lstm = lstm.to_empty(device="cpu")
        self.gate = _new_gate(config)
        draw_weights(self.lstm, num_dims, rng)

    def forward(self, supports: Tensor) -> Tensor:
        """Encode sequences of supports, shape (length, sequences, D); their order matters."""
        forwards, backwards = self.lstm(supports)[0].chunk(2, dim=-1)
        return supports + self.gate * (forwards + backwards)


class QueryEncoder(nn.Module):
    """An LSTM whose inputs at each step are the query and a read-out from a memory.

    Before each step the state h attends to the memory, r = softmax(scale · h·Mᵀ) M; then
    (h, c) = LSTM([x; r], (h, c)) and h ← h + x. It starts with h = x and c = 0.
    """

    def __init__(self, num_dims: int, config: ContextSettings, rng: torch.Generator) -> None:
        super().__init__()
        self._config = config
        self.cell = nn.utils.skip_init(nn.LSTMCell, 2 * num_dims, num_dims)
        self.gate = _new_gate(config)
        draw_weights(self.cell, num_dims, rng)

    def forward(self, queries: Tensor, memory: Tensor) -> Tensor:
        """Encode queries, shape (Q, D), by attention to a memory, shape (entries, D)."""
        hidden, cell = queries, torch.zeros_like(queries)
        for _ in range(self._config.num_read_outs):
            attention = (self._config.attention_scale * hidden @ memory.T).softmax(dim=1)
            read_out = attention @ memory
            output, cell = self.cell(torch.cat([queries, read_out], dim=1), (hidden, cell))
            hidden = queries + self.gate * output
        return hidden


class Matcher(Normalising, FewShotLearner, LowShotLearner):
    """Network that matches encoded queries with encoded supports, at a learnt scale.

    It learns all classes of a problem, base and novel, from equally many supports of each.
    """

    def __init__(self, base: BaseSet, config: ContextSettings, rng: torch.Generator) -> None:
        super().__init__()
        self._num_examples, self._dropout = config.num_examples, config.dropout
        self._is_uneven = config.episodes == "uneven"
        self.episodes = FewShotEpisodes(base, config)
        self.set_normalisation(base, config.normalisation)
        num_dims = base.features.shape[1]
        self.of_supports = SupportEncoder(num_dims, config, rng)
        self.of_queries = QueryEncoder(num_dims, config, rng)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def encode(
        self, supports: Tensor, rng: torch.Generator, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Encode the supports (..., N, K, D) of every problem as a sequence in random order.

        ``rng`` decides the order, which all problems share. The result has the order and shape of
        the supports. Subclasses may return any shape (..., N, ?, D) or (..., N, D) that represents
        the classes.
        """
        *_, num_classes, num_shots, num_dims = supports.shape
        prepared = drop(self.normalise(supports), self._dropout, for_dropout)
        sequences = prepared.view(-1, num_classes * num_shots, num_dims)
        keys = torch.rand(sequences.shape[1], generator=rng, device=supports.device)
        order = keys.argsort().expand(sequences.shape[:2])
        shuffled = sequences.gather(1, order.unsqueeze(-1).expand_as(sequences))
        encoded = self.of_supports(shuffled.transpose(0, 1).contiguous()).transpose(0, 1)
        back = order.argsort(dim=1).unsqueeze(-1).expand_as(sequences)
        return encoded.gather(1, back).view(supports.shape)

    def encode_queries(
        self, queries: Tensor, encoded: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Encode queries, shape (Q, D), in the context of the encoded classes of one problem."""
        prepared = drop(self.normalise(queries), self._dropout, for_dropout)
        return self.of_queries(prepared, encoded.flatten(0, -2))

    @abstractmethod
    def logits(self, encoded: Tensor, queries: Tensor, scale: Tensor) -> Tensor:
        """Return logits (Q, N) of encoded queries and classes, in the precision of the scale."""

    def match(
        self, encoded: Tensor, queries: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Return logits of queries, shape (Q, N), for the encoded classes of one problem."""
        in_context = self.encode_queries(queries, encoded, for_dropout)
        return self.logits(encoded, in_context, self.log_scale.exp())

    @abstractmethod
    def match_uneven(
        self, encoded: Tensor, members: Tensor, queries: Tensor, for_dropout: torch.Generator | None
    ) -> Tensor:
        """Return logits (Q, N) for encoded supports (S, D) of an uneven episode."""

    @torch.no_grad()
    def set_scale(self, rng: torch.Generator) -> None:
        """Set the scale, if learnt, so that predictions have half of the possible entropy."""
        if not self.log_scale.requires_grad:
            return
        episode = self.episodes.draw_with_median_shots(rng)
        encoded = self.encode(episode.supports, rng)
        in_context = self.encode_queries(episode.queries, encoded)

        def predict(scale: float) -> Tensor:
            wide = torch.tensor(scale, dtype=torch.float64, device=encoded.device)
            return self.logits(encoded, in_context, wide).log_softmax(dim=1)

        self.log_scale.fill_(find_log_scale(predict))

    def fill(self, supports: Tensor, rng: torch.Generator) -> Tensor:
        """Return the examples from which an episode's classes are learnt, shape (N, ?, D)."""
        return supports

    def draw_logits(self, num_shots: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an episode; match its queries with all examples of its classes."""
        if self._is_uneven:
            episode, members = self.episodes.draw_uneven(num_shots, rng)
            encoded = Matcher.encode(self, episode.supports, rng, rng)
            return self.match_uneven(encoded[0], members, episode.queries, rng), episode.labels
        episode = self.episodes.draw(num_shots, rng)
        encoded = self.encode(self.fill(episode.supports, rng), rng, rng)
        return self.match(encoded, episode.queries, rng), episode.labels

    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Encode the supports of every problem.

        In the benchmark, encoded supports of 25 problems of 507 classes and 512 dimensions need
        0.5 GB with 20 supports per class, and 2.6 GB with 100.
        """
        encoded = self.encode_problems(task, rng)

        def scores(queries: Tensor) -> Tensor:
            pairs = zip(encoded, queries.expand(len(encoded), -1, -1), strict=True)
            return torch.stack([self.match(*pair) for pair in pairs])

        return scores

    def encode_problems(
        self, task: LowShotTask, rng: torch.Generator, max_rows: int = 60_000
    ) -> list[Tensor]:
        """Encode the supports of each problem of a task, equally many of every class.

        Shots are repeated until there are at least ``num_examples``. Base classes have as many
        rows, evenly spaced from a random start, without repetition if there are enough. Problems
        are encoded in blocks of at most ``max_rows`` supports, if one problem has no more; at 512
        dimensions, 60,000 supports take about 1 GB in cuDNN. Base classes are read in name order,
        so that their order in a phase has no effect; results are in the order of the task.
        """
        word = draw_word(rng)
        base_order = [number for number in task.base.order if number < task.num_base]
        columns = task.columns_from(base_order)
        classes = torch.tensor(base_order, device=task.device, dtype=torch.long)
        start = torch.rand((len(classes), 1), generator=rng, dtype=torch.float64).to(task.device)
        encoded: dict[int, Tensor] = {}
        for num_shots in dict.fromkeys(problem.num_shots for problem in task.problems):
            numbers = [n for n, (shots, _) in enumerate(task.problems) if shots == num_shots]
            num_repeats = math.ceil(self._num_examples / num_shots)
            every_place = torch.arange(num_repeats * num_shots, device=task.device)
            places = (start + every_place) / len(every_place)
            base = task.base.pick(classes.unsqueeze(1).expand(places.shape), places)
            per_problem = (task.num_base + task.num_novel) * len(every_place)
            at_once = max(1, max_rows // per_problem)
            for first in range(0, len(numbers), at_once):
                block = numbers[first : first + at_once]
                shots = torch.stack([task.support(task.problems[number]) for number in block])
                novel = shots.repeat(1, 1, num_repeats, 1)
                supports = torch.cat([base.expand(len(block), -1, -1, -1), novel], dim=1)
                # The same order in every block, so that a problem does not depend on the others.
                for_order = new_rng(word, len(every_place), device=task.device)
                encoded |= zip(block, self.encode(supports, for_order)[:, columns], strict=True)
        return [encoded[number] for number in range(len(task.problems))]


class PrototypeMatcher(Matcher):
    """PMN: an encoded query gets the class of the most similar mean of encoded supports.

    ν_k is the mean of class k's encoded supports. Queries attend to these means instead of all
    supports. This is cheap, and every class has the same weight.
    """

    def __init__(
        self, base: BaseSet, config: PrototypeMatchingConfig, rng: torch.Generator
    ) -> None:
        super().__init__(base, config, rng)
        self._distance = config.distance

    def encode(
        self, supports: Tensor, rng: torch.Generator, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Return ν for one problem or several, shape (..., N, D)."""
        return super().encode(supports, rng, for_dropout).mean(dim=-2)

    def match_uneven(
        self, encoded: Tensor, members: Tensor, queries: Tensor, for_dropout: torch.Generator | None
    ) -> Tensor:
        """Match queries with the means of each class's supports."""
        sums = pad(encoded, (0, 0, 0, 1))[members].sum(dim=1)
        counts = (members < len(encoded)).sum(dim=1, keepdim=True)
        return self.match(sums / counts, queries, for_dropout)

    def logits(self, encoded: Tensor, queries: Tensor, scale: Tensor) -> Tensor:
        """Return scaled similarities of queries and class means."""
        if self._distance == "cosine":
            similarities = normalize(queries, dim=1) @ normalize(encoded, dim=1).T
        else:
            similarities = prototype_scores(encoded.unsqueeze(1), queries)
        return scale * similarities.to(scale.dtype)


class SupportMatcher(Matcher):
    """MN: an encoded query gets the classes of the single supports that are similar to it."""

    def __init__(self, base: BaseSet, config: MatchingConfig, rng: torch.Generator) -> None:
        super().__init__(base, config, rng)
        self.log_scale.requires_grad_(config.scale == "learnt")

    def logits(self, encoded: Tensor, queries: Tensor, scale: Tensor) -> Tensor:
        """Return logits of queries, shape (Q, N), for supports, shape (N, K, D).

        Their softmax is that over the query's products with the directions of all supports, summed
        by class. Log-sum-exp keeps the score of a class far from the query finite.
        """
        supports = encoded.to(scale.dtype)
        norms = supports.norm(dim=-1).flatten() + _LEAST_NORM
        products = scale * (queries.to(scale.dtype) @ supports.flatten(0, 1).T) / norms
        return products.unflatten(1, supports.shape[:2]).logsumexp(dim=2)

    def match_uneven(
        self, encoded: Tensor, members: Tensor, queries: Tensor, for_dropout: torch.Generator | None
    ) -> Tensor:
        """Match queries with single supports, and add up the similarities of each class."""
        singly = self.match(encoded.unsqueeze(1), queries, for_dropout)
        return pad(singly, (0, 1), value=-math.inf)[:, members].logsumexp(dim=2)

    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Encode the supports; scores are log-probabilities of classes."""
        logits = super().solve(task, rng)
        return lambda queries: logits(queries).log_softmax(dim=-1)


def _new_gate(config: ContextSettings) -> nn.Parameter:
    return nn.Parameter(torch.tensor(float(config.context_gate)), requires_grad=config.learns_gate)


QUICK: dict[str, Any] = {"num_episodes": 20, "num_ways": 20, "episode_shots": (1, 2)}

ROWS = [
    learned_row(
        "MN",
        "matching network, Vinyals et al. 2016",
        SupportMatcher,
        MatchingConfig(),
        PUBLISHED,
        SPACE,
        QUICK,
    ),
    learned_row(
        "PMN",
        "prototype matching network, Wang et al. 2018",
        PrototypeMatcher,
        PrototypeMatchingConfig(),
        PrototypeMatchingConfig(**PROTOTYPE_RECIPE),
        {**SPACE, "distance": ("cosine", "euclidean")},
        QUICK,
    ),
]
