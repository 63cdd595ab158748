"""Views of images: random ones for training, plain ones for features.

Shapes: B = images, S = stored size, V = size of a view, C = classes.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

from cpaan.representation.config import BackboneConfig

# Means and deviations of ImageNet's training images: red, green and blue, from 0 to 1.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_GREY = (0.299, 0.587, 0.114)
_MOST_STRETCHED = 4 / 3


def plain_views(images: Tensor, size: int) -> Tensor:
    """Return normalised centres of images, or whole images enlarged, shape (B, 3, V, V).

    Images are bytes, shape (B, S, S, 3); ``size`` is V.
    """
    margin = max(0, images.shape[1] - size) // 2
    centre = images[:, margin : margin + size, margin : margin + size]
    pixels = centre.permute(0, 3, 1, 2).float() / 255
    if pixels.shape[-1] < size:
        # The same as a random view of the whole image.
        pixels = interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False)
    return _normalised(pixels)


def random_views(images: Tensor, size: int, config: BackboneConfig, rng: torch.Generator) -> Tensor:
    """Return normalised random crops with random colours, half mirrored, shape (B, 3, V, V).

    Images are bytes, shape (B, S, S, 3); ``size`` is V; ``rng`` is on the device of the images.
    """

    def uniform(low: float, high: float) -> Tensor:
        sample = torch.rand(len(images), generator=rng, device=images.device)
        return low + (high - low) * sample

    area = uniform(config.smallest_crop, 1.0)
    stretch = uniform(-1.0, 1.0).mul(math.log(_MOST_STRETCHED) / 2).exp()
    width = (area.sqrt() * stretch).clamp(max=1)
    height = (area.sqrt() / stretch).clamp(max=1)
    mirror = uniform(-1.0, 1.0).sign()
    # Coordinates of an image go from -1 to 1.
    nothing = torch.zeros_like(width)
    from_left, from_top = uniform(-1.0, 1.0) * (1 - width), uniform(-1.0, 1.0) * (1 - height)
    where = torch.stack(
        [mirror * width, nothing, from_left, nothing, height, from_top], dim=1
    ).view(-1, 2, 3)
    grid = affine_grid(where, [len(images), 3, size, size], align_corners=False)
    pixels = images.permute(0, 3, 1, 2).float() / 255
    views = grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)

    if config.colour_jitter:
        ends = 1 - config.colour_jitter, 1 + config.colour_jitter
        brightness, contrast, saturation = (uniform(*ends).view(-1, 1, 1, 1) for _ in range(3))
        views = views * brightness
        views = torch.lerp(_grey(views).mean(dim=(2, 3), keepdim=True), views, contrast)
        views = torch.lerp(_grey(views), views, saturation).clamp(0, 1)
    return _normalised(views)


def cut_and_paste(
    views: Tensor, targets: Tensor, share: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Paste a rectangle of another view into a share of views (CutMix, Yun et al., 2019).

    Views have the shape (B, 3, V, V). Targets are probabilities of the classes, shape (B, C); they
    are mixed by area.
    """
    count, _, height, width = views.shape
    device = views.device
    random = torch.rand(5, count, 1, generator=rng, device=device)
    side = random[0].sqrt() * (random[1] < share)  # the area of a rectangle is uniform
    # The centre may be anywhere, so the border may cut a rectangle off.
    across = torch.arange(width, device=device) + 0.5
    down = torch.arange(height, device=device) + 0.5
    in_columns = (across - random[2] * width).abs() < side * width / 2  # (B, V)
    in_rows = (down - random[3] * height).abs() < side * height / 2
    is_pasted = in_rows[:, :, None] & in_columns[:, None, :]  # (B, V, V)
    partner = random[4, :, 0].argsort()
    pasted_share = is_pasted.float().mean(dim=(1, 2)).unsqueeze(1)
    return (
        torch.where(is_pasted.unsqueeze(1), views[partner], views),
        torch.lerp(targets, targets[partner], pasted_share),
    )


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(_GREY, device=images.device).view(3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


def _normalised(images: Tensor) -> Tensor:
    mean = torch.tensor(_MEAN, device=images.device).view(3, 1, 1)
    deviation = torch.tensor(_DEVIATION, device=images.device).view(3, 1, 1)
    return (images - mean) / deviation
