"""ResNet-10 backbone, its classifiers and its losses.

Shapes: S = size of stored images, B = images, C = classes, D = 512.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, relu
from torch.nn.utils import skip_init

from cpaan.representation.config import BackboneConfig
from cpaan.representation.views import plain_views

FEATURE_DIM = 512

_STAGES = ((64, 1), (128, 2), (256, 2), (FEATURE_DIM, 2))  # channels and stride of each block
_FIRST_SCALE = 10.0
_SGM_WEIGHT, _L2_WEIGHT = 0.02, 0.03  # of the benchmark for ResNet-10


class ResNet10(nn.Module):
    """Four stages of one residual block each, followed by the mean over positions."""

    def __init__(self, *, is_small: bool, last_relu: bool, rng: torch.Generator) -> None:
        """Draw the weights on the CPU.

        A stem for small images is 3x3 and keeps every pixel. The benchmark's stem, 7x7 with stride
        two and pooling, would leave the last stage two pixels of a 64-pixel image. Without the last
        ReLU, features have both signs, as a cosine classifier needs.
        """
        super().__init__()
        width = _STAGES[0][0]
        self.stem = nn.Sequential(
            _convolution(3, width, 3 if is_small else 7, 1 if is_small else 2, rng),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Identity() if is_small else nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks = []
        for number, (channels, stride) in enumerate(_STAGES, start=1):
            is_rectified = last_relu or number < len(_STAGES)
            blocks.append(_Block(width, channels, stride, rng, is_rectified))
            width = channels
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images: Tensor) -> Tensor:
        """Return features, shape (B, D), of images, shape (B, 3, height, width)."""
        return self.blocks(self.stem(images)).mean(dim=(2, 3))


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, rng: torch.Generator, is_rectified: bool
    ) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride, rng)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = _convolution(outputs, outputs, 3, 1, rng)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(
                _convolution(inputs, outputs, 1, stride, rng), nn.BatchNorm2d(outputs)
            )
        self.is_rectified = is_rectified

    def forward(self, images: Tensor) -> Tensor:
        hidden = relu(self.first_norm(self.first(images)))
        total = self.second_norm(self.second(hidden)) + self.shortcut(images)
        return relu(total) if self.is_rectified else total


def _convolution(
    inputs: int, outputs: int, size: int, stride: int, rng: torch.Generator
) -> nn.Conv2d:
    """Return a convolution without a bias, because the next batch normalisation has one."""
    layer = skip_init(
        nn.Conv2d, inputs, outputs, size, stride=stride, padding=size // 2, bias=False
    )
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=rng)
    return layer


class BackboneClassifier(nn.Module):
    """Classifier of the backbone: products without a bias, as in the benchmark, or cosines.

    Cosines are multiplied by a learned scale (Gidaris & Komodakis, 2018).
    """

    def __init__(self, num_classes: int, rng: torch.Generator, *, has_cosine: bool) -> None:
        super().__init__()
        weight = torch.randn(num_classes, FEATURE_DIM, generator=rng)
        self.weight = nn.Parameter(weight / FEATURE_DIM**0.5)
        self.scale = nn.Parameter(torch.tensor(_FIRST_SCALE)) if has_cosine else None

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, shape (B, C)."""
        if self.scale is None:
            return linear(features, self.weight)
        return self.scale * linear(normalize(features), normalize(self.weight))


class Backbone(nn.Module):
    """The network and the classifier that is trained with it."""

    def __init__(self, config: BackboneConfig, num_classes: int, rng: torch.Generator) -> None:
        super().__init__()
        has_cosine = config.loss == "cosine"
        self.network = ResNet10(is_small=config.is_small, last_relu=not has_cosine, rng=rng)
        self.classifier = BackboneClassifier(num_classes, rng, has_cosine=has_cosine)
        self.view_size = config.last_view_size

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return features, shape (B, D), and scores, shape (B, C), both float32.

        In training on a GPU, the convolutions run in bfloat16.
        """
        with torch.autocast("cuda", torch.bfloat16, enabled=views.is_cuda and self.training):
            features = self.network(views.contiguous(memory_format=torch.channels_last)).float()
        return features, self.classifier(features)

    @torch.no_grad()
    def describe(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and scores of images without augmentation.

        Both are means over an image and its mirror image. Images are bytes, shape (B, S, S, 3).
        """
        self.eval()
        views = plain_views(images, self.view_size)
        features, scores = self(views)
        of_mirror, scores_of_mirror = self(views.flip(-1))
        return (features + of_mirror) / 2, (scores + scores_of_mirror) / 2


def backbone_loss(features: Tensor, scores: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Return the training loss, shape ().

    SGM adds the squared magnitude of the cross-entropy's gradient with respect to the classifier's
    weights, ‖target − p‖²·‖φ‖²; L2 adds ‖φ‖²/2 (Hariharan & Girshick, 2017). Features φ have the
    shape (B, D); scores and targets, which are probabilities, (B, C).
    """
    loss = -(targets * scores.log_softmax(dim=1)).sum(dim=1)
    squared_norm = features.square().sum(dim=1)
    if kind == "sgm":
        error = (targets - scores.softmax(dim=1)).square().sum(dim=1)
        loss = loss + _SGM_WEIGHT * error * squared_norm
    elif kind == "l2":
        loss = loss + _L2_WEIGHT * squared_norm / 2
    return loss.mean()
