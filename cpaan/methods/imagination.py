"""Feature Imagination (FI) on PN and on PMN. Wang, Girshick, Hebert & Hariharan (2018), Low-Shot
Learning from Imaginary Data.

A hallucinator makes further examples of a class from real ones and noise, up to a given number. It
is meta-learned together with the classifier that uses them: the loss of an episode's queries trains
both. Examples need not look real, only help to classify. FI-PN has a prototypical network. FI-PMN
has a Prototype Matching Network, which reads hallucinated and real examples in one sequence and
averages all of a class.

Choices where the source is silent:
* The hallucinator works on features before any embedding, in units of a base class's spread, which
  sets the scale of the noise. Base classes are learnt only from real train rows.
* The published network has a ReLU after every layer and starts as the identity, so features must
  not be negative. Ours predicts a change, zero at the start, and suits all features. Weight decay
  pulls either towards the identity.
* Real examples take turns as seeds. Random seeds give them unequal weights: top-5 at five shots was
  two points lower.
* All examples have the same weight in the heads of FI-PN, as in training. FI-PMN repeats the
  examples of a novel class until it has as many as a base class.

Shapes: P = problems, N = classes, K = shots, S = hallucinated examples of a class, Q = queries,
D = feature dimension.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from cpaan.core.randomness import draw_word, new_rng
from cpaan.core.settings import Settings
from cpaan.methods.base import Fitted, MetaLearned
from cpaan.methods.matching import (
    CONTEXT_SPACE,
    PROTOTYPE_RECIPE,
    QUICK,
    PrototypeMatcher,
    PrototypeMatchingConfig,
)
from cpaan.methods.table_row import PN, EpisodicMethod, Range, SearchSpace, TableRow
from cpaan.protocol.config import HEADS, OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES, GroupedHeads
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import PrototypicalNetwork, prototype_scores
from cpaan.training.few_shot_episodes import FewShotEpisode
from cpaan.training.layers import draw_linear, set_to_zero
from cpaan.training.learning import Learner


@dataclass(frozen=True, kw_only=True)
class HallucinatorSettings(Settings):
    """Settings of the hallucinator."""

    num_augmented: int = 10
    """Number of examples of a class after augmentation, real ones included."""
    hallucinator: Literal["residual", "relu"] = "residual"
    """Residual: the output is added to the example. Relu: a ReLU follows every layer, as published;
    features must not be negative."""
    seeds: Literal["in-turn", "random"] = "in-turn"
    """Real examples that are hallucinated from: in turn, each equally often, or drawn at random."""
    noise: float = 1.0
    """Standard deviation of the noise, relative to that of a base class in one dimension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_augmented")
        self._refuse_negative("noise")

    def num_hallucinated(self, num_shots: int) -> int:
        """Return S, the number of examples that a class with this many shots lacks."""
        return max(0, self.num_augmented - num_shots)


@dataclass(frozen=True, kw_only=True)
class ImaginationConfig(HallucinatorSettings, EmbeddingConfig):
    """Settings of FI-PN."""

    num_augmented: int = 40


@dataclass(frozen=True, kw_only=True)
class MatchingImaginationConfig(HallucinatorSettings, PrototypeMatchingConfig):
    """Settings of FI-PMN."""

    num_episodes: int = 600
    num_ways: int = 50
    """Classes of an episode; all base classes if there are fewer. Together with ``num_augmented``,
    it sets the length of a sequence, and so the time."""
    context_gate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse(["episodes"], lambda kind: kind == "even", "even for FI-PMN")


_PUBLISHED: dict[str, Any] = {"num_augmented": 20, "hallucinator": "relu", "seeds": "random"}
PUBLISHED = replace(ImaginationConfig.plain(), **_PUBLISHED)
"""The source does not state its numbers of episodes and examples or its learning rate. The rest is
the common recipe of a prototypical network or, for PMN's encoders, that of Matching Networks."""
MATCHING_PUBLISHED = MatchingImaginationConfig(
    **{**PROTOTYPE_RECIPE, **_PUBLISHED, "episodes": "even"}
)
HALLUCINATOR_SPACE: SearchSpace = {
    "num_augmented": (6, 10, 20, 40),
    "noise": Range(0.1, 3.0, log=True),
}
SPACE: SearchSpace = {
    "learning_rate": Range(3e-4, 1e-2, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    **HALLUCINATOR_SPACE,
}


class Hallucinator(nn.Module):
    """Three layers, as wide as the features, that make an example from an example and noise."""

    centre: Tensor
    unit: Tensor

    def __init__(self, base: BaseSet, settings: HallucinatorSettings, rng: torch.Generator) -> None:
        """Start at the identity, for any noise."""
        super().__init__()
        self._settings = settings
        self._is_residual = settings.hallucinator == "residual"
        num_dims = base.features.shape[1]
        if not self._is_residual and (smallest := float(base.features.min())) < 0:
            raise ValueError(
                f"hallucinator=relu needs features that are not negative, but one is {smallest}; "
                "use --set hallucinator=residual"
            )
        centre = base.prototypes.mean(dim=0).cpu() if self._is_residual else torch.zeros(num_dims)
        # A power of two, so that dividing and multiplying by it is exact.
        unit = 2.0 ** round(math.log2(math.sqrt(base.variance / num_dims)))
        self.register_buffer("centre", centre.float())
        self.register_buffer("unit", torch.tensor(unit))
        self.first = draw_linear(2 * num_dims, num_dims, rng)
        self.second = draw_linear(num_dims, num_dims, rng)
        self.last = draw_linear(num_dims, num_dims, rng)
        # In a residual network, zeros in other layers than the last would stop learning.
        set_to_zero(self.last if self._is_residual else self)

    def forward(self, examples: Tensor, noise: Tensor) -> Tensor:
        """Hallucinate examples from seeds and standard normal noise, all of shape (..., D)."""
        inputs = (examples - self.centre) / self.unit
        hidden = torch.cat([inputs, self._settings.noise * noise], dim=-1)
        if self._is_residual:
            change = self.last(relu(self.second(relu(self.first(hidden)))))
            return examples + self.unit * change
        # Weights are differences from the rectangular identity, so that they decay towards it.
        for layer in (self.first, self.second, self.last):
            hidden = relu(hidden[..., : examples.shape[-1]] + layer(hidden))
        return self.unit * hidden

    def hallucinate(self, supports: Tensor, uniforms: Tensor, noise: Tensor) -> Tensor:
        """Hallucinate examples (N, S, D) from real ones (N, K, D) and noise (N, S, D).

        Uniform numbers (N, S) choose the seeds; seeds in turn use only their shape.
        """
        num_classes, num_shots, _ = supports.shape
        rows = (uniforms * num_shots).long().clamp(max=num_shots - 1)
        if self._settings.seeds == "in-turn":
            rows = torch.arange(rows.shape[1], device=rows.device).expand_as(rows) % num_shots
        classes = torch.arange(num_classes, device=supports.device).unsqueeze(1)
        hallucinated: Tensor = self(supports[classes, rows], noise)
        return hallucinated

    def fill(self, supports: Tensor, rng: torch.Generator) -> Tensor:
        """Return real examples, followed by hallucinated ones, shape (N, K + S, D)."""
        num_classes, num_shots, num_dims = supports.shape
        num_hallucinated = self._settings.num_hallucinated(num_shots)
        if not num_hallucinated:
            return supports
        shape, device = (num_classes, num_hallucinated), supports.device
        uniforms = torch.rand(shape, generator=rng, device=device)
        noise = torch.randn((*shape, num_dims), generator=rng, device=device)
        return torch.cat([supports, self.hallucinate(supports, uniforms, noise)], dim=1)

    @torch.no_grad()
    def imagine(self, task: LowShotTask, rng: torch.Generator, num_synthetic: int) -> list[Tensor]:
        """Return hallucinated examples of each problem, shape (N, S, D); S may be zero.

        Problems of one draw share random numbers for any number of shots; others have no effect.
        """
        word, hallucinated = draw_word(rng), []
        shape = (task.num_novel, num_synthetic or self._settings.num_augmented)
        for problem in task.problems:
            of_draw = new_rng(word, problem.draw)
            uniforms = torch.rand(shape, generator=of_draw)
            noise = torch.randn((*shape, task.shots.shape[-1]), generator=of_draw)
            count = num_synthetic or self._settings.num_hallucinated(problem.num_shots)
            uniforms, noise = (numbers[:, :count].to(task.device) for numbers in (uniforms, noise))
            hallucinated.append(self.hallucinate(task.support(problem), uniforms, noise))
        return hallucinated


class ImaginingNetwork(PrototypicalNetwork):
    """A hallucinator and a prototypical network, trained together."""

    def __init__(self, base: BaseSet, config: ImaginationConfig, rng: torch.Generator) -> None:
        super().__init__(base, config, rng)
        self.hallucinator = Hallucinator(base, config, rng)

    def scores(self, episode: FewShotEpisode, rng: torch.Generator | None = None) -> Tensor:
        """Return logits of an episode's queries, given real and hallucinated supports."""
        assert rng is not None, "hallucination needs random numbers"
        filled = self.hallucinator.fill(episode.supports, rng)
        return super().scores(episode._replace(supports=filled), rng)


class Imagination(MetaLearned):
    """FI on PN: prototypes and heads in the embedding, from real and hallucinated examples."""

    def __init__(self, config: ImaginationConfig, evaluation: EvaluationConfig) -> None:
        super().__init__("FI-PN", ImaginingNetwork, config)
        self._evaluation = evaluation.with_overrides({"mixing_shots": None, "mixing_weight": None})

    def adapt(
        self, learner: Learner, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0
    ) -> Fitted:
        """Hallucinate examples of the novel classes, embed all, and fit the heads to them."""
        assert isinstance(learner, ImaginingNetwork)
        network, heads = learner, GroupedHeads(self._evaluation)
        hallucinated = network.hallucinator.imagine(task, rng, num_synthetic)
        embedded = replace(
            task, base=network.embed_base(task.base), shots=network.embed(task.shots)
        )
        synthetic = [network.embed(examples) for examples in hallucinated]
        novel = [
            torch.cat([embedded.support(problem), examples], dim=1).mean(dim=1)
            for problem, examples in zip(task.problems, synthetic, strict=True)
        ]
        base = embedded.base.prototypes[: task.num_base]

        def logits(queries: Tensor, novel: Sequence[Tensor]) -> Tensor:
            """Return scores of problems that share their queries, by distances to prototypes."""
            # Base classes once, then the novel classes of every problem.
            prototypes = torch.cat([base, *novel]).unsqueeze(1)
            scores = network.log_scale.exp() * prototype_scores(prototypes, queries)
            of_base, *of_novel = scores.split([len(base), *map(len, novel)], dim=1)
            return torch.stack([torch.cat([of_base, of_one], dim=1) for of_one in of_novel])

        @torch.no_grad()
        def predict(queries: Tensor) -> Mapping[str, Tensor]:
            if queries.ndim == 2:
                scores = logits(queries, novel)
            else:
                pairs = zip(queries, novel, strict=True)
                scores = torch.cat([logits(rows, [of_one]) for rows, of_one in pairs])
            return {OWN: scores, **heads.scores(queries)}

        word, places = draw_word(rng), list(HEAD_CLASSES)
        heads.fit(embedded, synthetic, lambda name, count: new_rng(word, places.index(name), count))
        return Fitted(predict, synthetic=synthetic).after(network.embed)


class ImaginingMatcher(PrototypeMatcher):
    """A hallucinator and a Prototype Matching Network, trained together."""

    def __init__(
        self, base: BaseSet, config: MatchingImaginationConfig, rng: torch.Generator
    ) -> None:
        super().__init__(base, config, rng)
        self.hallucinator = Hallucinator(base, config, rng)

    def fill(self, supports: Tensor, rng: torch.Generator) -> Tensor:
        """Return real and hallucinated examples."""
        return self.hallucinator.fill(supports, rng)


class MatchingImagination(MetaLearned):
    """FI on PMN: class means in a context that includes hallucinated examples."""

    def adapt(
        self, learner: Learner, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0
    ) -> Fitted:
        """Hallucinate examples of the novel classes, and compute class means of all in context."""
        assert isinstance(learner, ImaginingMatcher)
        hallucinated = learner.hallucinator.imagine(task, rng, num_synthetic)
        examples = [
            torch.cat([task.support(problem), made], dim=1)
            for problem, made in zip(task.problems, hallucinated, strict=True)
        ]
        counts = [rows.shape[1] for rows in examples]
        most = max(counts)
        shots = torch.stack([pad(rows, (0, 0, 0, most - rows.shape[1])) for rows in examples])
        problems = tuple(Problem(count, number) for number, count in enumerate(counts))
        matched = super().adapt(learner, replace(task, shots=shots, problems=problems), rng)
        return replace(matched, synthetic=hallucinated)


_QUICK = {"num_episodes": 40, "num_ways": 30, "episode_shots": (1, 2, 5), "hidden_dim": 128}
_LABELS: dict[str, Any] = {"group": "FI", "generation": "meta-learned LR", "is_printed": True}

ROWS = [
    TableRow(
        name="FI-PN",
        summary="feature imagination with PN, Wang et al. 2018",
        representation=PN,
        heads=(OWN, *HEADS),
        method=EpisodicMethod(
            make=Imagination,
            config=ImaginationConfig(),
            published=PUBLISHED,
            space=SPACE,
            quick=_QUICK,
        ),
        **_LABELS,
    ),
    TableRow(
        name="FI-PMN",
        summary="feature imagination with PMN, Wang et al. 2018",
        representation="PMN",
        method=EpisodicMethod(
            make=lambda config, _: MatchingImagination("FI-PMN", ImaginingMatcher, config),
            config=MatchingImaginationConfig(),
            published=MATCHING_PUBLISHED,
            space={**CONTEXT_SPACE, **HALLUCINATOR_SPACE},
            quick=QUICK,
        ),
        **_LABELS,
    ),
]
