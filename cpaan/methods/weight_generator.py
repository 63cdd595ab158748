"""Attentive Weight Generator (AWG). Gidaris & Komodakis (2018), Dynamic Few-Shot Visual Learning
without Forgetting.

A cosine classifier generates the weight of a novel class from the mean of its shots and the
base-class weights to which the shots attend. The attention and the weights of both parts are learnt
on episodes that treat base classes as novel. The base weights are trained as well.

Choices where the source does not fit cached features:
* The source's backbone was trained with the cosine classifier and has no last ReLU. We centre the
  features, and start base weights at class mean directions instead of a first training stage.
* For few classes, keys start at these directions as well, and attention starts with little weight.
* One model serves all numbers of shots. The source has one for each (set ``episode_shots`` to it).
* The source's bias of all cosines has no effect, so we omit it. Scales are learnt as logarithms.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cpaan.methods.fake_novel import FakeNovelSettings, WeightLearner
from cpaan.methods.table_row import COSINE_FEATURES, Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet

_QUERY_NOISE = 1e-3  # as in the source, added to the identity at which the query layer starts


@dataclass(frozen=True, kw_only=True)
class WeightGeneratorConfig(FakeNovelSettings):
    """Settings of the weight generator."""

    num_episodes: int = 1_000
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    dropout: float = 0.7
    keys: Literal["weights", "random"] = "weights"
    """Start of the base classes' keys: at their weights, or random (the source)."""
    attention_scale: float = 20.0
    """Factor of the cosines of queries and keys at the start; it is learnt."""
    attention_start: float = 0.2
    """Weight of the attended part at the start, in every dimension; 1 in the source."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("attention_scale")
        self._refuse_negative("attention_start")


PUBLISHED = WeightGeneratorConfig(
    num_episodes=24_000,
    optimiser="nesterov",
    learning_rate=0.01,
    schedule="last-third",
    weight_decay=5e-4,
    dropout=0.0,
    centred=False,
    keys="random",
    attention_scale=30.0,
    attention_start=1.0,
)
SPACE: SearchSpace = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "dropout": Range(0.0, 0.8),
    "novel_share": Range(0.2, 0.8),
    "attention_scale": Range(5.0, 50.0, log=True),
    "centred": (True, False),
}


class AttentiveWeights(WeightLearner):
    """Base weights, and the generator of novel weights."""

    def __init__(self, base: BaseSet, config: WeightGeneratorConfig, rng: torch.Generator) -> None:
        super().__init__(base, config)
        directions = self.class_directions(base)
        num_dims = directions.shape[1]
        self.base_weights = nn.Parameter(directions)
        keys = directions.clone()
        if config.keys == "random":
            keys.normal_(0, math.sqrt(2 / num_dims), generator=rng)
        self.keys = nn.Parameter(keys)
        self.query = nn.utils.skip_init(nn.Linear, num_dims, num_dims)
        nn.init.normal_(self.query.weight, 0, _QUERY_NOISE, generator=rng)
        nn.init.zeros_(self.query.bias)
        with torch.no_grad():
            self.query.weight += torch.eye(num_dims)
        self.log_attention_scale = nn.Parameter(torch.tensor(math.log(config.attention_scale)))
        self.of_average = nn.Parameter(torch.ones(num_dims))
        self.of_attention = nn.Parameter(torch.full((num_dims,), config.attention_start))

    def attention(self, base: Tensor, supports: Tensor) -> Tensor:
        """Return the attention of each shot to base classes, shape (N, K, B), summing to one."""
        queries, keys = normalize(self.query(supports), dim=-1), normalize(self.keys[base], dim=-1)
        return (self.log_attention_scale.exp() * queries @ keys.T).softmax(dim=-1)

    def weights(self, base: Tensor, supports: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return stored base weights, then generated weights, shape (B + N, D)."""
        known = normalize(self.base_weights[base], dim=-1)
        attended = self.attention(base, supports).mean(dim=1) @ known
        novel = self.of_average * supports.mean(dim=1) + self.of_attention * attended
        return torch.cat([known, novel])


_RECIPES = (WeightGeneratorConfig(), PUBLISHED, SPACE, {"num_episodes": 100})
_SUMMARY = "attentive weight generator, Gidaris et al. 2018"
ROWS = [
    learned_row("AWG", _SUMMARY, AttentiveWeights, *_RECIPES),
    learned_row(
        "AWG-cosine",
        "AWG on features of a cosine backbone",
        AttentiveWeights,
        *_RECIPES,
        representation="AWG, cosine",
        is_printed=False,
        features=COSINE_FEATURES,
    ),
]
