"""The settings there are: every open point of a run is a named field here."""

from dataclasses import dataclass
from typing import Any, Literal, Self, get_type_hints

from cpaan.settings import Settings

HEADS = ("centroid", "cosine", "knn", "linear")
OWN = "own"
"""Stands in the place of a head for the classifier of a method that has one of its own."""

_LARGEST_COUNT = 10**9

LINEAR_AS_IN_BENCHMARK: dict[str, Any] = {
    "linear_optimiser": "sgd",
    "linear_num_steps": 10_000,
    "linear_batch_size": 1_000,
    "linear_learning_rate": 0.1,
    "linear_decays": False,
    "linear_weight_decay": 0.01,
    "linear_unit_norm": False,
}
"""The linear classifier as Hariharan & Girshick's benchmark trains it, without generation. Its
batches hold all classes equally often in expectation, ours in each step.

Its loss is strictly convex, so where training ends depends on the loss and not on the way. On
ResNet-10 features, and with the same weight decay, the default's 200 steps scored within 0.7
points of these 10,000 in every column without a prior, top-1 and top-5.
"""


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings(Settings):
    """Which base classes are related to a novel class; shared by training and evaluation."""

    neighbours: Literal["soft", "hard", "none"] = "soft"
    """NBS-S: by similarity; NBS-H: the nearest few, all alike; none: all base classes alike."""
    perplexity: float | None = 10.0
    """NBS-S: how many base classes a novel class draws from, on average. None: the paper's
    softmax without a temperature, which depends on the scale of the features."""
    num_neighbours: int = 10
    """NBS-H: how many of the nearest base classes (the paper's k)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_neighbours")
        if self.perplexity is not None:
            self._refuse_unless_positive("perplexity")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(NeighbourSettings):
    """Everything that decides the numbers of an evaluation, apart from data and methods.

    The settings of neighbours are those of the controls; a trained generator keeps its own.

    Raises:
        ValueError: If a value makes no sense.
    """

    shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Examples of each novel class; a problem for each of them and each draw."""
    num_draws: int = 5
    """How often the shots are drawn."""
    draw_seed: int = 0
    """Decides the draws, apart from ``seed``: other networks should meet the same shots."""
    num_seeds: int = 1
    """How often a method is trained."""
    seed: int = 0
    """The first training seed; the others follow it."""
    heads: tuple[str, ...] = HEADS
    """Classifiers that are fitted to the same examples; methods that have none but their own are
    asked for that."""

    num_synthetic: int = 100
    """Synthetic examples of each novel class."""
    fill_to_capacity: bool = False
    """Whether novel classes get, instead, as many synthetic examples as they lack at the most
    shots to the average number of a base class."""
    mixing_weight: float | None = None
    """Weight of a novel class's real examples beside its synthetic ones, in every head, whatever
    their number; None: as ``mixing_shots`` has it."""
    mixing_shots: float | None = 2.0
    """All synthetic examples of a class weigh as much as so many shots: less, the more shots there
    are. None: every single example weighs the same, real or synthetic."""

    prior: float | None = None
    """Share of novel queries in the column all_prior; None: the best one on the validation
    phase, for each method, head, number of shots and for top-1 and top-5."""

    cosine_scale: float = 10.0
    """What cosines are multiplied by; it matters to the column all_prior alone."""
    knn_temperature: float = 0.3
    """In units of the mean squared distance of a base example to its class's centroid."""

    linear_optimiser: Literal["adam", "sgd"] = "adam"
    linear_num_steps: int = 200
    linear_batch_size: int = 500
    linear_learning_rate: float = 0.05
    linear_decays: bool = True
    """Whether the learning rate falls linearly to zero."""
    linear_weight_decay: float = 1e-4
    linear_unit_norm: bool = True
    """Whether features are scaled so that base examples have norm one on average; the weight
    decay then means the same for every representation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive(
            "num_draws",
            "num_seeds",
            "num_synthetic",
            "cosine_scale",
            "knn_temperature",
            "linear_num_steps",
            "linear_batch_size",
            "linear_learning_rate",
        )
        self._refuse_negative("linear_weight_decay")
        if self.draw_seed < 0 or self.seed < 0:
            raise ValueError(f"seeds must not be negative, got {self.draw_seed} and {self.seed}")
        if not self.shots or min(self.shots) < 1:
            raise ValueError(f"shots must be positive whole numbers, got {list(self.shots)}")
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"each number of shots is wanted once, got {list(self.shots)}")
        unknown = [head for head in self.heads if head not in (*HEADS, OWN)]
        if unknown or not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(
                f"heads are {', '.join(HEADS)}, each once at most, got {', '.join(self.heads)!r}"
            )
        if self.mixing_shots is not None:
            self._refuse_unless_positive("mixing_shots")
        if self.mixing_weight is not None and not 0 <= self.mixing_weight <= 1:
            raise ValueError(f"mixing_weight must be from 0 to 1, got {self.mixing_weight}")
        if self.prior is not None and not 0 < self.prior < 1:
            raise ValueError(f"prior must be above 0 and below 1, got {self.prior}")


META_TESTING_AS_PRINTED: dict[str, Any] = {"fill_to_capacity": True, "mixing_shots": None}
"""How the paper uses a trained generator: fill every novel class up to the average capacity of
the base classes, then train on real and synthetic examples as if all were real."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(NeighbourSettings):
    """Everything that decides meta-training, apart from data, seed and which of the four GANs.

    The defaults are what we recommend (CP-AAN+); `faithful` is the paper's method, and
    `as_printed` the paper to the letter. Weights and distances are in units of the normalised
    features.

    Raises:
        ValueError: If a value makes no sense.
    """

    num_episodes: int = 10_000
    """Episodes of meta-training."""
    num_ways: int = 20
    """Meta-novel classes of an episode (N_b); all other base classes are meta-base."""
    episode_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Shots of a meta-novel class (K_b); an episode draws one of these numbers."""
    batch_size: int = 1_000
    """Examples of an episode (B): the most shots of all ways, the rest from meta-base classes."""
    sampling: Literal["shared", "per-class", "uniform"] = "shared"
    """How meta-base examples are drawn. Shared: one batch for all meta-novel classes, by their
    mean similarity; per-class: a batch for each, by its own; uniform: one batch, all base
    classes alike (the paper)."""
    normalised_weights: bool = True
    """Whether the weights of translated examples sum to one, as those of the real ones do. In
    the paper's formula they sum to the mean similarity, one over the number of base classes."""
    real_examples: Literal["shots", "class"] = "class"
    """What discriminators take for real meta-novel examples: the shots that the generator was
    shown, or as many examples of the whole class."""

    normalisation: Literal["spread", "unit-norm", "none"] = "spread"
    """Of features before training. Spread: by one number, so that a base example's mean squared
    distance to its class mean is one; unit-norm: every example to length one."""
    precision: Literal["mixed", "full"] = "mixed"
    """On a GPU. Mixed: pairs of examples and classes in bfloat16, weights, losses and covariances
    in float32; full: pairs in float32, too. Either way float32 is multiplied as TF32, and
    covariances are compared by products of float16."""
    hidden_dim: int = 512
    """Width of the hidden layers of all networks."""
    residual: Literal["none", "identity", "mean-shift"] = "identity"
    """What a generator's output is added to: nothing, the example, or the example moved by the
    difference of the prototypes. The sum starts there: the last layer begins with zeros."""
    output: Literal["match", "linear", "relu"] = "match"
    """Of generators; match: ReLU where no feature is negative, otherwise linear."""
    discriminator: Literal["projection", "fixed"] = "projection"
    """Projection: a class's logit is a product with its prototype; fixed: one output for every
    base class, of which an episode uses its own."""

    noise: Literal["gaussian", "mixture"] = "gaussian"
    """Noise of G_b in cCov-GAN; cCyc-GAN has Gaussian noise and cDeLi-GAN a mixture."""
    noise_dim: int = 100
    """Numbers of a noise vector (Z)."""
    num_components: int = 50
    """Components of the mixture (C)."""
    noise_spread: float = 0.2
    """Standard deviation with which the components' own standard deviations are drawn."""
    noise_penalty: float = 0.0
    """Weight of the mean of (1 - standard deviation)² over the mixture, as in DeLiGAN."""
    cycle_noise: Literal["both", "forward"] = "both"
    """Which of the cycles G_b has noise in; the backward one can only suffer from it."""

    adversarial_weight: float = 1.0
    """Zero leaves the discriminators out."""
    generator_loss: Literal["class-directed", "minimax"] = "class-directed"
    """What a generator wants: to be taken for its class, or merely not for fake (the paper)."""
    cycle_weight: float = 5.0
    """Weight of the cycle term (λ_cyc)."""
    covariance_weight: float = 0.5
    """Weight of the covariance term (λ_cov)."""
    ky_fan_order: int = 10
    """How many singular values of the covariance gap are penalised (m)."""
    covariance_classes: Literal["nearest", "all", "sampled", "mixture"] = "nearest"
    """Base classes whose covariance a meta-novel class is compared with: the most similar ones,
    all, some drawn by similarity, or the similarity-weighted mean of all (another, smaller
    loss)."""
    num_covariance_classes: int = 32
    """How many of them, where they are the nearest or sampled."""
    relative_covariance: bool = False
    """Whether a gap is divided by the base covariance's own norm."""
    prototype_weight: float = 10.0
    """Weight of the squared distance from the translated mean to the mean of the whole
    meta-novel class, which only meta-training knows; not in the paper."""

    generator_learning_rate: float = 1e-4
    discriminator_learning_rate: float = 1e-4
    adam_beta1: float = 0.5
    """How much of its last step Adam keeps; the paper says no more than Adam."""
    anneal_factor: float = 0.5
    """What both learning rates are multiplied by now and then."""
    anneal_every_episodes: int = 20_000
    """How often that is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive(
            "num_episodes",
            "num_ways",
            "batch_size",
            "hidden_dim",
            "noise_dim",
            "num_components",
            "ky_fan_order",
            "num_covariance_classes",
            "generator_learning_rate",
            "discriminator_learning_rate",
            "anneal_factor",
            "anneal_every_episodes",
        )
        self._refuse_negative(
            "noise_spread",
            "noise_penalty",
            "adversarial_weight",
            "cycle_weight",
            "covariance_weight",
            "prototype_weight",
            "adam_beta1",
        )
        if not self.episode_shots or min(self.episode_shots) < 1:
            raise ValueError(
                f"episode_shots must be positive whole numbers, got {list(self.episode_shots)}"
            )
        if not self.normalised_weights and self.sampling != "uniform":
            raise ValueError(
                "normalised_weights=false needs sampling=uniform: otherwise similarity would count "
                f"twice, in the draw and in the weight; got sampling={self.sampling}"
            )
        if self.adam_beta1 >= 1 or self.anneal_factor > 1:
            raise ValueError(
                "adam_beta1 must be below 1 and anneal_factor not above it, "
                f"got {self.adam_beta1} and {self.anneal_factor}"
            )
        for name, annotation in get_type_hints(type(self)).items():
            if annotation is int and getattr(self, name) > _LARGEST_COUNT:
                raise ValueError(f"{name} is too large: {getattr(self, name)}")
        if self.num_base_examples < 1:
            raise ValueError(
                f"batch_size must be above num_ways times the most episode_shots, "
                f"{self.num_ways} x {self.max_shots}, got {self.batch_size}"
            )

    @property
    def max_shots(self) -> int:
        """The most shots that a meta-novel class may have."""
        return max(self.episode_shots)

    @property
    def num_base_examples(self) -> int:
        """Meta-base examples of an episode."""
        return self.batch_size - self.num_ways * self.max_shots

    @classmethod
    def faithful(cls) -> Self:
        """Return the paper's method: open points settled, and nothing that goes past it.

        What the defaults have beyond it: discriminators that see the whole meta-novel class, a
        generator that begins as the identity, the term that draws the translated mean towards the
        mean of the whole class, and episodes with as few shots as the test.
        """
        return cls(
            episode_shots=(10,), real_examples="shots", residual="none", prototype_weight=0.0
        )

    @classmethod
    def as_printed(cls) -> Self:
        """Return the paper's settings to the letter; what it leaves unsaid stays as it is here."""
        return cls(
            num_episodes=100_000,
            perplexity=None,
            num_ways=20,
            episode_shots=(10,),
            batch_size=1_000,
            sampling="uniform",
            normalised_weights=False,
            real_examples="shots",
            normalisation="none",
            hidden_dim=512,
            residual="none",
            noise_dim=100,
            num_components=50,
            noise_spread=0.2,
            generator_loss="minimax",
            cycle_weight=5.0,
            covariance_weight=0.5,
            ky_fan_order=10,
            covariance_classes="all",
            prototype_weight=0.0,
            generator_learning_rate=1e-4,
            discriminator_learning_rate=1e-4,
            adam_beta1=0.9,
            anneal_factor=0.5,
            anneal_every_episodes=20_000,
        )
