"""ResNet-10, the benchmark's network: images to 512 features.

Shapes: B = images, C = classes.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, relu
from torch.nn.utils import skip_init

FEATURE_DIM = 512

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride, a block each
_FIRST_SCALE = 10.0


class ResNet10(nn.Module):
    """Four stages of one residual block each, then the mean over positions."""

    def __init__(self, *, is_small: bool, last_relu: bool, rng: torch.Generator) -> None:
        """Draw the weights.

        Args:
            is_small: Whether the stem is 3x3 and keeps every pixel. The benchmark's, 7x7 of stride
                two and then pooling, would leave the last stage two pixels of a 64-pixel image.
            last_relu: Without it, features have both signs, as a cosine classifier wants them.
            rng: On the CPU, whatever the device of the network will be.
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
        """Return features, shape (B, 512), of images, shape (B, 3, height, width)."""
        return self.blocks(self.stem(images)).mean(dim=(2, 3))


class _Block(nn.Module):
    """Two 3x3 convolutions, added to what came in."""

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


class LinearClassifier(nn.Module):
    """Scores of classes as products, without a bias, as in the benchmark."""

    def __init__(self, num_classes: int, rng: torch.Generator) -> None:
        """Draw the weights."""
        super().__init__()
        weight = torch.randn(num_classes, FEATURE_DIM, generator=rng)
        self.weight = nn.Parameter(weight / FEATURE_DIM**0.5)

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, shape (B, C)."""
        return linear(features, self.weight)


class CosineClassifier(LinearClassifier):
    """Scores of classes as cosines, times a learned scale (Gidaris & Komodakis, 2018)."""

    def __init__(self, num_classes: int, rng: torch.Generator) -> None:
        """Draw the weights; the scale starts at ten."""
        super().__init__(num_classes, rng)
        self.scale = nn.Parameter(torch.tensor(_FIRST_SCALE))

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, shape (B, C)."""
        return self.scale * linear(normalize(features), normalize(self.weight))


def _convolution(
    inputs: int, outputs: int, size: int, stride: int, rng: torch.Generator
) -> nn.Conv2d:
    """Return a layer without a bias, which the batch normalisation after it has."""
    layer = skip_init(
        nn.Conv2d, inputs, outputs, size, stride=stride, padding=size // 2, bias=False
    )
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=rng)
    return layer
