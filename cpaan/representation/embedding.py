"""A prototypical network on cached features: an embedding in which class means classify well.

Snell, Swersky & Zemel (2017), Prototypical Networks for Few-shot Learning: a small network is
trained by episodes, in each of which queries must be nearer to the mean of their own class's few
supports than to those of other classes. Train rows of base classes are all that it ever sees. What
comes out is a feature table like the one that went in.

Shapes: D = feature dimension, N = ways, K = shots, Q = queries of a class.
"""

import dataclasses
import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from cpaan.features import FeatureTable, as_feature_block, finish_fingerprint
from cpaan.randomness import new_rng
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.few_shot_episodes import FewShotEpisode, FewShotEpisodes
from cpaan.tasks import BaseSet

_LEAST_MEAN_SQUARE = 1e-6  # of a row that is put on the sphere: the gradient at zero stays finite
_LARGEST_LOG_SCALE, _NUM_HALVINGS = 20.0, 40
_ROWS_PER_BLOCK = 8192


def prototype_scores(supports: Tensor, queries: Tensor) -> Tensor:
    """Return minus the mean squared difference of queries and class means, shape (queries, N).

    Args:
        supports: Shape (N, K, D).
        queries: Shape (queries, D).
    """
    prototypes = supports.mean(dim=1)
    # From their middle, distances of points that are far from zero keep their digits.
    middle = prototypes.detach().mean(dim=0)
    prototypes, queries = prototypes - middle, queries - middle
    squared = queries.square().sum(dim=1, keepdim=True) + prototypes.square().sum(dim=1)
    return (2 * queries @ prototypes.T - squared) / queries.shape[1]


class PrototypicalNetwork(nn.Module):
    """The embedding, and what distances in it are multiplied by.

    Training asks for `scores` of an episode alone; how supports and queries become scores is the
    network's own affair.
    """

    centre: Tensor
    unit: Tensor

    def __init__(self, base: BaseSet, config: EmbeddingConfig, rng: torch.Generator) -> None:
        """Draw the weights, as PyTorch's own linear layers do; ``rng`` is on the CPU.

        Raises:
            ValueError: If the features are not finite, or their squares are not.
        """
        super().__init__()
        self._config = config
        num_dims = base.features.shape[1]
        if not math.isfinite(base.variance):
            raise ValueError("the features are not finite, or too large: their squares are not")
        is_centred = config.normalisation == "centred"
        centre = base.prototypes.mean(dim=0).cpu() if is_centred else torch.zeros(num_dims)
        unit = math.sqrt(base.variance / num_dims) if is_centred else 1.0
        self.register_buffer("centre", centre.float())
        self.register_buffer("unit", torch.tensor(unit))
        self.hidden = nn.utils.skip_init(nn.Linear, num_dims, config.hidden_dim)
        self.last = nn.utils.skip_init(nn.Linear, config.hidden_dim, num_dims)
        self.log_scale = nn.Parameter(torch.zeros(()))
        for layer in (self.hidden, self.last):
            bound = 1 / math.sqrt(layer.in_features)
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=rng)
        if config.residual:
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)

    def forward(self, features: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Embed rows of any shape (..., D); with an ``rng``, as in training: with dropout."""
        inputs = self._drop((features.float() - self.centre) / self.unit, rng)
        embedded = self.last(self._drop(relu(self.hidden(inputs)), rng))
        if self._config.residual:
            embedded = embedded + inputs
        if self._config.output == "relu":
            return relu(embedded)
        if self._config.output == "sphere":
            mean_square = embedded.square().mean(dim=-1, keepdim=True)
            return embedded * (mean_square + _LEAST_MEAN_SQUARE).rsqrt()
        return embedded

    def _drop(self, values: Tensor, rng: torch.Generator | None) -> Tensor:
        share = self._config.dropout
        if rng is None or not share:
            return values
        is_kept = torch.rand(values.shape, generator=rng, device=values.device) >= share
        return values * is_kept / (1 - share)

    def scores(self, episode: FewShotEpisode, rng: torch.Generator | None = None) -> Tensor:
        """Return scores of an episode's queries, shape (N * Q, N): logarithms of odds."""
        scores = prototype_scores(self(episode.supports, rng), self(episode.queries, rng))
        return self.log_scale.exp() * scores

    @torch.no_grad()
    def set_scale(self, episode: FewShotEpisode) -> None:
        """Choose the scale at which the mean entropy of an episode's predictions is half of log N.

        Entropy falls as the scale grows, so that its logarithm is found by halving an interval.
        """
        scores = prototype_scores(self(episode.supports), self(episode.queries)).double()
        unit = scores.abs().mean().clamp(min=torch.finfo(torch.float32).tiny)
        low, high = -_LARGEST_LOG_SCALE, _LARGEST_LOG_SCALE
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            logs = (math.exp(middle) / unit * scores).log_softmax(dim=1)
            is_sharper = -(logs.exp() * logs).sum(dim=1).mean() < math.log(logs.shape[1]) / 2
            low, high = (low, middle) if is_sharper else (middle, high)
        self.log_scale.fill_(middle - unit.log())


class EmbeddingRun:
    """Training of one embedding, from its first episode on or from where it was left.

    All that is random about an episode is decided by the seed and the episode's number.
    """

    def __init__(self, base: BaseSet, config: EmbeddingConfig, seed: int) -> None:
        """Draw the weights; ``base``, from `read_base`, says on which device to train.

        Raises:
            ValueError: If there are too few examples, or they are not finite.
        """
        self.config = config
        self.seed = seed
        self.episode = 0
        self.device = base.features.device
        self.base = base
        self._episodes = FewShotEpisodes(base, config)
        self.network = PrototypicalNetwork(base, config, new_rng(seed, 0)).to(self.device)
        # The scale depends on the number of shots, but should not depend on luck.
        middle_shots = sorted(config.shots)[len(config.shots) // 2]
        first = self._episodes.draw(middle_shots, new_rng(seed, 1, device=self.device))
        self.network.set_scale(first)
        groups: list[dict[str, Any]] = [
            {"params": [self.network.hidden.weight, self.network.last.weight]},
            {
                "params": [each for each in self.network.parameters() if each.ndim < 2],
                "weight_decay": 0.0,
            },
        ]
        # The learning rate is set before every step.
        self._optimiser = torch.optim.AdamW(groups, weight_decay=config.weight_decay)

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for some more episodes.

        Returns:
            Means over these episodes: query_loss, and query_top1 in percent.

        Raises:
            ValueError: If a loss or, at the end, a weight is not finite. They are looked at once,
                not in every episode, so that a GPU never waits for it.
        """
        terms = []
        for _ in range(num_episodes):
            terms.append(self._train_one_episode())
            self.episode += 1
        chunk = torch.stack(terms).cpu()
        is_finite = chunk.isfinite().all(dim=1)
        if not is_finite.all():
            first = int((~is_finite).nonzero()[0])
            raise ValueError(
                f"the embedding diverged: at episode {self.episode - num_episodes + first}, "
                f"query_loss became {float(chunk[first, 0])}"
            )
        self._refuse_weights_unless_finite()
        return dict(zip(("query_loss", "query_top1"), chunk.mean(dim=0).tolist(), strict=True))

    def _train_one_episode(self) -> Tensor:
        """Return the episode's loss and accuracy, shape (2,)."""
        config = self.config
        # Drawn on the CPU: as a shape, this number must be known here.
        choice = torch.randint(len(config.shots), (), generator=new_rng(self.seed, 2, self.episode))
        rng = new_rng(self.seed, 3, self.episode, device=self.device)
        episode = self._episodes.draw(config.shots[int(choice)], rng)
        scores = self.network.scores(episode, rng)
        loss = cross_entropy(scores, episode.labels)
        self._optimiser.zero_grad()
        loss.backward()
        done = min(1.0, self.episode / config.num_episodes)
        for group in self._optimiser.param_groups:
            group["lr"] = config.learning_rate * (1 + math.cos(math.pi * done)) / 2
        self._optimiser.step()
        is_right = scores.detach().argmax(dim=1) == episode.labels
        return torch.stack([loss.detach(), 100 * is_right.float().mean()])

    def _refuse_weights_unless_finite(self) -> None:
        if not torch.stack([each.isfinite().all() for each in self.network.parameters()]).all():
            raise ValueError(
                f"the embedding diverged: after episode {self.episode - 1}, weights are infinite "
                "or NaN"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how the run goes on.

        Raises:
            ValueError: If it has diverged.
        """
        self._refuse_weights_unless_finite()
        return {
            "data": self.base.fingerprint,
            "seed": self.seed,
            "config": self.config.to_dict(),
            "episode": self.episode,
            "device": self.device.type,
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another run of the same kind was.

        Raises:
            ValueError: If that run had other data, another seed or other settings; or if it must
                go on, but on another kind of device, which has other random numbers.
        """
        for name, value in (("data", self.base.fingerprint), ("seed", self.seed)):
            if state[name] != value:
                raise ValueError(f"it has another {name}: {state[name]} and not {value}")
        before = self.config.with_overrides(state["config"]).to_dict()
        for name, value in self.config.to_dict().items():
            if before[name] != value:
                raise ValueError(f"it was trained with {name} = {before[name]} and not {value}")
        is_done = state["episode"] >= self.config.num_episodes
        if state["device"] != self.device.type and not is_done:
            raise ValueError(
                f"it was trained on {state['device']} and can go on only there, not on "
                f"{self.device.type}"
            )
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.episode = state["episode"]


@torch.no_grad()
def embed_table(run: EmbeddingRun, table: FeatureTable) -> FeatureTable:
    """Return a table of the same rows, embedded.

    Features have the precision of the table, or float32 where float16 cannot hold a value. Where
    the backbone's classes are known, the base classes that the embedding knows are among them.

    Raises:
        ValueError: If the features have another dimension than those that the run was trained
            on, or an embedded one is not finite.
    """
    num_dims = run.base.features.shape[1]
    if table.num_dims != num_dims:
        raise ValueError(
            f"the features have {table.num_dims} dimensions, but the embedding was trained on "
            f"{num_dims}"
        )
    features = np.empty(table.features.shape, dtype=table.features.dtype)
    largest = np.finfo(features.dtype).max
    for start in range(0, len(features), _ROWS_PER_BLOCK):
        rows = np.arange(start, min(start + _ROWS_PER_BLOCK, len(features)))
        embedded = run.network(table.gather(rows).to(run.device)).cpu().numpy()
        block = as_feature_block(embedded, first_row=start)
        if np.abs(block).max() > largest:
            features, largest = features.astype(np.float32), np.finfo(np.float32).max
        features[rows] = block
    known = table.backbone_classes
    return dataclasses.replace(
        table,
        features=features,
        backbone=f"{table.backbone or 'unknown backbone'}, embedded by a prototypical network, "
        f"{run.episode} episodes, seed {run.seed}",
        backbone_classes=None if known is None else known | set(run.base.names),
        fingerprint=finish_fingerprint(
            hashlib.blake2b(features.data, digest_size=16),
            table.labels,
            table.is_train,
            table.class_names,
        ),
    )
