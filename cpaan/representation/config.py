"""Settings of the backbone and of the embedding."""

from dataclasses import dataclass
from typing import Literal, Self

from cpaan.core.settings import Settings
from cpaan.training.layers import PerceptronSettings
from cpaan.training.learning import EpisodeSettings, LearningSettings


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Settings):
    """Settings of backbone training.

    The defaults were chosen on held-out train images of Tiny-ImageNet's base classes.
    """

    loss: Literal["ce", "sgm", "l2", "cosine"] = "ce"
    """Training loss. ce: cross-entropy; sgm: plus the squared gradient magnitude; l2: plus the
    squared norm of features; cosine: of a cosine classifier, on features without the last ReLU."""
    image_size: int = 64
    """Height and width of stored images: scaled, then cropped to the central square."""
    first_view: float = 0.55
    """Size of views at the start, as a share of the final size. Smaller views train faster. Sizes
    grow in steps of eight pixels."""
    grown_after: float = 0.8
    """Share of training after which views have their final size."""

    num_epochs: int = 80
    batch_size: int = 512
    """Images per step, over all workers."""
    learning_rate: float = 0.4
    """Largest learning rate."""
    schedule: Literal["cosine", "steps"] = "cosine"
    """Decay of the learning rate: along a half-cosine to zero, or to a tenth after each third of
    training (the benchmark)."""
    warmup: float = 0.02
    """Share of training in which the learning rate rises to its largest value."""
    nesterov: bool = True
    """Whether the momentum of 0.9 is Nesterov's."""
    weight_decay: float = 2e-3
    """Weight decay of convolutions and the classifier; normalisation layers have none."""
    label_smoothing: float = 0.1
    """Share of a target that is spread equally over all classes."""
    smallest_crop: float = 0.35
    """Smallest share of an image's area that a random view shows."""
    colour_jitter: float = 0.4
    """Largest deviation of the factors of brightness, contrast and saturation from one."""
    cut_and_paste: float = 0.7
    """Share of views into which a rectangle of another view is pasted (CutMix)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("image_size", "num_epochs", "batch_size", "learning_rate")
        self._refuse_unless_positive("smallest_crop", "grown_after")
        self._refuse_negative("weight_decay")
        self._refuse_unless_below_one("label_smoothing", "warmup")
        shares = ("first_view", "grown_after", "smallest_crop", "colour_jitter", "cut_and_paste")
        self._refuse(shares, lambda value: 0 <= value <= 1, "from 0 to 1")

    @property
    def is_small(self) -> bool:
        """Whether images are so small, like Tiny-ImageNet's, that the stem keeps every pixel."""
        return self.image_size <= 64

    @property
    def last_view_size(self) -> int:
        """Height and width of views at the end of training and for the computation of features.

        Seven eighths of the image size, like the benchmark's 224 of 256. For small images, nine
        eighths, for a larger map before the mean over positions.
        """
        return self.image_size * (9 if self.is_small else 7) // 8

    @classmethod
    def as_in_benchmark(cls) -> Self:
        """Return Hariharan & Girshick's recipe.

        Differences: crops are taken from the central square of an image, normalisation layers have
        no weight decay, and features are means over an image and its mirror image.
        """
        return cls(
            image_size=256,
            first_view=1.0,
            num_epochs=90,
            batch_size=256,
            learning_rate=0.1,
            schedule="steps",
            warmup=0.0,
            nesterov=False,
            weight_decay=1e-4,
            label_smoothing=0.0,
            smallest_crop=0.08,
            cut_and_paste=0.0,
        )


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(PerceptronSettings, EpisodeSettings, LearningSettings):
    """Settings of the embedding.

    The defaults are recommended. `plain` is the common form of a prototypical network. It overfits
    its train rows: on Tiny-ImageNet, its LSL is lower than without an embedding.
    """

    num_episodes: int = 800
    output: Literal["sphere", "linear"] = "sphere"
    weight_decay: float = 2.0
    learning_rate: float = 3e-3

    @classmethod
    def plain(cls) -> Self:
        """Return a two-layer perceptron on unchanged features, without regularisation."""
        return cls(
            num_episodes=2_000,
            normalisation="none",
            residual=False,
            output="linear",
            dropout=0.0,
            weight_decay=0.0,
            learning_rate=1e-3,
        )
