"""Keys of a discriminator's answers and their gradients, in few products.

Shapes: C = classes, A = answers, C + 1 and more, D = feature dimension, W = hidden dimension.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def answer_keys(
    prototypes: Tensor,
    possible: Tensor,
    key: Tensor,
    embed: Tensor,
    embed_bias: Tensor,
    fake: Tensor,
    fake_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute keys, (A, W), and biases, (A,), of classes, of "fake", and of padding.

    Embedded answers are prototypes @ keyᵀ / √W, then ``fake``, then zeros. Keys are these times
    ``embed``, biases these times ``embed_bias``, plus ``fake_bias`` and what is ``possible``.

    Args:
        prototypes: Shape (C, D), constants.
        possible: Zero, or minus infinity for what cannot be the answer, shape (A,).
        key: Shape (W, D).
        embed: Shape (W, W); its bias has shape (W,).
        embed_bias: Shape (W,).
        fake: Shape (1, W); its bias has shape (1,).
        fake_bias: Shape (1,).
    """
    return _AnswerKeys.apply(prototypes, possible, key, embed, embed_bias, fake, fake_bias)


class _AnswerKeys(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        prototypes: Tensor,
        possible: Tensor,
        key: Tensor,
        embed: Tensor,
        embed_bias: Tensor,
        fake: Tensor,
        fake_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        count, ctx.scale = len(prototypes), len(embed) ** -0.5
        embedded = embed.new_zeros(len(possible), len(embed))
        embedded[:count].addmm_(prototypes, key.T, beta=0, alpha=ctx.scale)
        embedded[count : count + 1] = fake
        offsets = possible.clone()
        offsets[count : count + 1] = fake_bias
        ctx.save_for_backward(prototypes, embedded, embed, embed_bias)
        return embedded @ embed, offsets.addmv_(embedded, embed_bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_keys: Tensor, of_biases: Tensor
    ) -> tuple[None, None, Tensor, Tensor, Tensor, Tensor, Tensor]:
        prototypes, embedded, embed, embed_bias = ctx.saved_tensors
        count = len(prototypes)
        of_embedded = torch.outer(of_biases, embed_bias).addmm_(of_keys, embed.T)
        of_key = embed.new_empty(len(embed), prototypes.shape[1])
        of_key.addmm_(of_embedded[:count].T, prototypes, beta=0, alpha=ctx.scale)
        of_embed, of_embed_bias = embedded.T @ of_keys, embedded.T @ of_biases
        after = slice(count, count + 1)
        return None, None, of_key, of_embed, of_embed_bias, of_embedded[after], of_biases[after]
