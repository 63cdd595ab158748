"""The settings of meta-training. Every open point of the paper is a named field here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_type_hints

from cpaan.protocol.config import NeighbourSettings

_LARGEST_COUNT = 10**9
_REMOVED = {
    "discriminator": "projection",
    "noise_penalty": 0.0,
    "cycle_noise": "both",
    "relative_covariance": False,
}
"""Settings that older results name, with the only value that training still has."""

META_TESTING_AS_PRINTED: dict[str, Any] = {"fill_to_capacity": True, "mixing_shots": None}
"""How the paper uses a trained generator: fill every novel class up to the average capacity of
the base classes, then train on real and synthetic examples as if all were real."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(NeighbourSettings):
    """Everything that decides meta-training, apart from data, seed and which of the four GANs.

    The defaults are what we recommend (CP-AAN+); `faithful` is the paper's method, and
    `as_printed` the paper to the letter. Weights and distances are in units of the normalised
    features.
    """

    num_episodes: int = 10_000
    """Episodes of meta-training."""
    num_ways: int = 20
    """Meta-novel classes of an episode (N_b); all other base classes are meta-base."""
    episode_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Shots of a meta-novel class (K_b); an episode draws one of these numbers."""
    batch_size: int = 1_000
    """Examples of an episode (B): the most shots of all ways, the rest from meta-base classes."""
    sampling: Literal["shared", "uniform"] = "shared"
    """How the batch of meta-base examples is drawn. Shared: by the mean similarity of the
    meta-novel classes; uniform: all base classes alike (the paper)."""
    normalised_weights: bool = True
    """Whether the weights of translated examples sum to one, as those of the real ones do. In
    the paper's formula they sum to the mean similarity, one over the number of base classes."""
    real_examples: Literal["shots", "class"] = "class"
    """Real meta-novel examples for the discriminators: the shots that the generator was shown,
    or as many examples of the whole class."""

    normalisation: Literal["spread", "none"] = "spread"
    """Of features before training. Spread: divide by one number, so that a base example's mean
    squared distance to its class mean is one."""
    precision: Literal["mixed", "full"] = "mixed"
    """On a GPU. Mixed: pairs of examples and classes in bfloat16, weights, losses and covariances
    in float32; full: pairs in float32, too. Either way float32 is multiplied as TF32, and
    covariances are compared by products of float16."""
    hidden_dim: int = 512
    """Width of the hidden layers of all networks."""
    residual: Literal["none", "identity", "mean-shift"] = "identity"
    """What a generator's output is added to: nothing, the example, or the example moved by the
    difference of the prototypes. The last layer starts with zeros, so training starts there."""
    output: Literal["match", "linear", "relu"] = "match"
    """Of generators; match: ReLU where no feature is negative, otherwise linear."""

    noise: Literal["gaussian", "mixture"] = "gaussian"
    """Noise of G_b in cCov-GAN; cCyc-GAN has Gaussian noise and cDeLi-GAN a mixture."""
    noise_dim: int = 100
    """Dimension of a noise vector (Z)."""
    num_components: int = 50
    """Components of the mixture (C)."""
    noise_spread: float = 0.2
    """Standard deviation with which the components' own standard deviations are drawn."""

    adversarial_weight: float = 1.0
    """Zero leaves the discriminators out."""
    generator_loss: Literal["class-directed", "minimax"] = "class-directed"
    """Train generators to be classified as their class, or only as not fake (the paper)."""
    cycle_weight: float = 5.0
    """Weight of the cycle term (λ_cyc)."""
    covariance_weight: float = 0.5
    """Weight of the covariance term (λ_cov)."""
    ky_fan_order: int = 10
    """Number of singular values of the covariance gap that are penalised (m)."""
    covariance_classes: Literal["nearest", "all"] = "nearest"
    """Base classes whose covariance a meta-novel class is compared with: the most similar ones,
    or all."""
    num_covariance_classes: int = 32
    """Number of the nearest ones."""
    prototype_weight: float = 10.0
    """Weight of the squared distance from the translated mean to the mean of the whole
    meta-novel class, which only meta-training knows; not in the paper."""

    generator_learning_rate: float = 1e-4
    discriminator_learning_rate: float = 1e-4
    adam_beta1: float = 0.5
    """Adam's decay rate of the mean gradient; the paper says only Adam."""
    anneal_factor: float = 0.5
    """Decay factor of both learning rates."""
    anneal_every_episodes: int = 20_000
    """Episodes between two decays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = get_type_hints(type(self))
        numbers = {name for name, kind in kinds.items() if kind in (int, float)}
        may_be_zero = {name for name in numbers if name.endswith("_weight")}
        may_be_zero |= {"noise_spread", "adam_beta1"}
        self._refuse_unless_positive(*sorted(numbers - may_be_zero))
        self._refuse_negative(*sorted(may_be_zero))
        counts = [name for name in sorted(numbers) if kinds[name] is int]
        self._refuse(counts, lambda count: count <= _LARGEST_COUNT, f"at most {_LARGEST_COUNT}")
        are_positive = "positive whole numbers"
        self._refuse(["episode_shots"], lambda shots: min(shots, default=0) > 0, are_positive)
        self._refuse_unless_below_one("adam_beta1")
        self._refuse(["anneal_factor"], lambda factor: factor <= 1, "at most 1")
        if not self.normalised_weights and self.sampling != "uniform":
            raise ValueError(
                "normalised_weights=false needs sampling=uniform: otherwise similarity would count "
                f"twice, in the draw and in the weight; got sampling={self.sampling}"
            )
        if self.num_base_examples < 1:
            raise ValueError(
                f"batch_size must be above num_ways times the most episode_shots, "
                f"{self.num_ways} x {self.max_shots}, got {self.batch_size}"
            )

    @property
    def max_shots(self) -> int:
        """Largest number of shots of a meta-novel class."""
        return max(self.episode_shots)

    @property
    def num_base_examples(self) -> int:
        """Meta-base examples of an episode."""
        return self.batch_size - self.num_ways * self.max_shots

    @classmethod
    def faithful(cls) -> Self:
        """Return the paper's method with its open points resolved, and no additions.

        The defaults add: discriminators that see the whole meta-novel class, a generator that
        starts as the identity, the term that draws the translated mean towards the mean of the
        whole class, and episodes with as few shots as the test.
        """
        return cls(
            episode_shots=(10,), real_examples="shots", residual="none", prototype_weight=0.0
        )

    @classmethod
    def as_printed(cls) -> Self:
        """Return the paper's settings to the letter.

        Every number that the paper states and that is not here is the default: sizes, weights
        and learning rates (see the test).
        """
        return cls(
            num_episodes=100_000,
            perplexity=None,
            episode_shots=(10,),
            sampling="uniform",
            normalised_weights=False,
            real_examples="shots",
            normalisation="none",
            residual="none",
            generator_loss="minimax",
            covariance_classes="all",
            prototype_weight=0.0,
            adam_beta1=0.9,
        )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a saved config, also one that names settings from before they were removed.

        Raises:
            TypeError: If a removed setting has another value than the one that is left.
        """
        known = {name: value for name, value in content.items() if value != _REMOVED.get(name, ...)}
        return cls(**known)
