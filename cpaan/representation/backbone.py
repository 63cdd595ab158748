"""The backbone and its losses.

Shapes: S = size of stored images, B = images, C = classes, D = 512.
"""

import torch
from torch import Tensor, nn

from cpaan.representation.config import BackboneConfig
from cpaan.representation.resnet import CosineClassifier, LinearClassifier, ResNet10
from cpaan.representation.views import plain_views


class Backbone(nn.Module):
    """The network, and the classifier that it is trained with."""

    def __init__(self, config: BackboneConfig, num_classes: int, rng: torch.Generator) -> None:
        """Draw the weights."""
        super().__init__()
        has_cosine = config.loss == "cosine"
        self.network = ResNet10(is_small=config.is_small, last_relu=not has_cosine, rng=rng)
        classifier = CosineClassifier if has_cosine else LinearClassifier
        self.classifier = classifier(num_classes, rng)
        self.view_size = config.last_view_size

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return features, shape (B, D), and scores, shape (B, C), both float32.

        While a GPU trains, the convolutions run in bfloat16.
        """
        with torch.autocast("cuda", torch.bfloat16, enabled=views.is_cuda and self.training):
            features = self.network(views.contiguous(memory_format=torch.channels_last)).float()
        return features, self.classifier(features)

    @torch.no_grad()
    def describe(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and scores of images as they are: means over an image and its mirror's.

        Args:
            images: Shape (B, S, S, 3), bytes.
        """
        self.eval()
        views = plain_views(images, self.view_size)
        features, scores = self(views)
        of_mirror, scores_of_mirror = self(views.flip(-1))
        return (features + of_mirror) / 2, (scores + scores_of_mirror) / 2


def backbone_loss(
    features: Tensor, scores: Tensor, targets: Tensor, config: BackboneConfig
) -> Tensor:
    """Return what training minimises, shape ().

    SGM adds the squared magnitude of the cross-entropy's gradient with respect to the classifier's
    weights, ‖target − p‖²·‖φ‖²; L2 adds ‖φ‖²/2 (Hariharan & Girshick, 2017).

    Args:
        features: φ, shape (B, D).
        scores: Shape (B, C).
        targets: Probabilities, shape (B, C).
        config: Which loss, and its weight.
    """
    loss = -(targets * scores.log_softmax(dim=1)).sum(dim=1)
    squared_norm = features.square().sum(dim=1)
    if config.loss == "sgm":
        error = (targets - scores.softmax(dim=1)).square().sum(dim=1)
        loss = loss + config.loss_weight * error * squared_norm
    elif config.loss == "l2":
        loss = loss + config.loss_weight * squared_norm / 2
    return loss.mean()
