"""Settings of meta-training. Every choice that the paper leaves open is a field."""

from dataclasses import dataclass
from typing import Any, Literal, Self, get_type_hints

from cpaan.protocol.config import NeighbourSettings

_LARGEST_COUNT = 10**9

META_TESTING_AS_PRINTED: dict[str, Any] = {"fill_to_capacity": True, "mixing_shots": None}
"""The paper's use of a trained generator. Fill every novel class to the mean size of a base class,
then train on real and synthetic examples with equal weights."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(NeighbourSettings):
    """Settings that determine meta-training, apart from data, seed and the choice of GAN.

    The defaults are our recommendation (CP-AAN+). `faithful` is the paper's method; `as_printed`
    follows the paper literally. Weights and distances are in units of the normalised features.
    """

    num_episodes: int = 10_000
    """Number of meta-training episodes."""
    num_ways: int = 20
    """Number of meta-novel classes per episode (N_b); all other base classes are meta-base."""
    episode_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Numbers of shots per meta-novel class (K_b); each episode draws one of them."""
    batch_size: int = 1_000
    """Number of examples per episode (B): the largest number of shots for each meta-novel class,
    the rest from meta-base classes."""
    sampling: Literal["shared", "uniform"] = "shared"
    """Distribution of meta-base examples. Shared: by mean similarity to the meta-novel classes;
    uniform: all base classes are equally likely (the paper)."""
    normalised_weights: bool = True
    """Whether the weights of translated examples sum to one, like those of real examples. In the
    paper's formula they sum to the mean similarity, one over the number of base classes."""
    real_examples: Literal["shots", "class"] = "class"
    """Real meta-novel examples for the discriminators. Shots: those that the generator uses; class:
    the largest number of shots, drawn from the whole class."""

    normalisation: Literal["spread", "none"] = "spread"
    """Normalisation of features before training. Spread: divide by one number, so that a base
    example's mean squared distance to its class mean is one."""
    engine: Literal["auto", "reference"] = "auto"
    """Implementation of a training step. Auto: the fast one on a GPU, the reference elsewhere."""
    precision: Literal["mixed", "full"] = "mixed"
    """Precision of the fast engine. Mixed: products of pairs in 16 bits; weights and losses in
    float32. Full: products in float32, too. Both compare covariances with float16 products."""
    hidden_dim: int = 512
    """Width of the hidden layers of all networks."""
    residual: Literal["none", "identity", "mean-shift"] = "identity"
    """Input that is added to a generator's output: none, the example, or the example shifted by the
    difference of the prototypes. The last layer starts at zero, so training starts from it."""
    output: Literal["match", "linear", "relu"] = "match"
    """Output function of generators. Match: ReLU if no feature is negative, otherwise linear."""

    noise: Literal["gaussian", "mixture"] = "gaussian"
    """Noise of G_b in cCov-GAN; cCyc-GAN always uses Gaussian noise, cDeLi-GAN a mixture."""
    noise_dim: int = 100
    """Dimension of a noise vector (Z)."""
    num_components: int = 50
    """Number of components of the mixture (C)."""
    noise_spread: float = 0.2
    """Standard deviation of the distribution of the components' initial standard deviations."""

    adversarial_weight: float = 1.0
    """Weight of the adversarial terms; zero disables the discriminators."""
    generator_loss: Literal["class-directed", "minimax"] = "class-directed"
    """Goal of the generators: to be classified as their class, or only as not fake (the paper)."""
    cycle_weight: float = 5.0
    """Weight of the cycle term (λ_cyc)."""
    covariance_weight: float = 0.5
    """Weight of the covariance term (λ_cov)."""
    ky_fan_order: int = 10
    """Number of singular values of the covariance difference that are penalised (m)."""
    covariance_classes: Literal["nearest", "all"] = "nearest"
    """Base classes to compare a meta-novel class's covariance with: the most similar, or all."""
    num_covariance_classes: int = 32
    """Number of base classes to compare if ``covariance_classes`` is nearest."""
    prototype_weight: float = 10.0
    """Weight of the squared distance from the translated mean to the mean of the whole meta-novel
    class. Only meta-training has this mean; the term is not in the paper."""

    generator_learning_rate: float = 1e-4
    discriminator_learning_rate: float | None = None
    """None: that of the generators, as in the paper."""
    adam_beta1: float = 0.5
    """Decay rate of Adam's mean gradient; the paper does not state it."""
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
        self._refuse_unless_positive(*sorted(numbers - may_be_zero), "discriminator_learning_rate")
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
                "batch_size must be above num_ways times the largest of episode_shots, "
                f"{self.num_ways} x {self.max_shots}, got {self.batch_size}"
            )

    @property
    def max_shots(self) -> int:
        """Largest number of shots of a meta-novel class."""
        return max(self.episode_shots)

    @property
    def num_base_examples(self) -> int:
        """Number of meta-base examples per episode."""
        return self.batch_size - self.num_ways * self.max_shots

    @property
    def learning_rates(self) -> tuple[float, float]:
        """Learning rates of generators and of discriminators, before any decay."""
        rate = self.generator_learning_rate
        return rate, self.discriminator_learning_rate or rate

    @classmethod
    def faithful(cls) -> Self:
        """Return the paper's method with its open points resolved, without additions.

        The defaults add discriminators trained on the whole meta-novel class, and a generator that
        starts as the identity. They also add the term with ``prototype_weight``, and episodes with
        as few shots as the test.
        """
        return cls(
            episode_shots=(10,), real_examples="shots", residual="none", prototype_weight=0.0
        )

    @classmethod
    def as_printed(cls) -> Self:
        """Return the literal settings of the paper.

        All other numbers that the paper states are the defaults: sizes, weights and learning rates.
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
