"""Differentiable operations on all pairs of a novel class and an example.

Training spends most of its time here. An episode has thousands of pairs but only hundreds of
examples, prototypes and shots. So an operation takes values that pairs share as small tables, and
values of single pairs as rows. It adds both on the fly and sums gradients back into the
tables, so shared values are never copied.

Each function is defined by its PyTorch code. On a GPU, kernels compute the formula and its gradient
in fewer passes. There, rows may have a narrower type than weights and tables (bfloat16 and
float32): products are of narrow numbers, summed in float32.

Shapes: R = rows, one per pair, grouped by novel class; N = novel classes, M = R / N examples of
each, T = rows of a table, W = numbers per row, D = feature dimension.
"""

from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu, linear, one_hot, pad, relu

from cpaan.gan.fast.kernels import kernels_for

SLOPE = 0.1  # of the leaky ReLU

Activation = Literal["none", "leaky", "relu"]


class Shared(NamedTuple):
    """Summands that many rows share. Row r belongs to novel class r // M and example r % M."""

    bias: Tensor | None = None  # (W,)
    by_example: Tensor | None = None  # (M, W)
    by_novel: Tensor | None = None  # (N, W), or (T, W) with places
    places: Tensor | None = None  # (R,) positions in by_novel

    def spread(self, shape: tuple[int, int]) -> list[Tensor]:
        """Return all summands in shapes that broadcast to (N, M, W)."""
        summands = [each for each in (self.bias, self.by_example) if each is not None]
        if self.by_novel is not None and self.places is None:
            summands.append(self.by_novel.unsqueeze(1))
        elif self.by_novel is not None:
            summands.append(self.by_novel[self.places].unflatten(0, shape))
        return summands


def layer(
    products: list[tuple[Tensor, Tensor]],
    shared: Shared,
    *,
    shape: tuple[int, int],
    dtype: torch.dtype,
    added: Tensor | None = None,
    activation: Activation = "leaky",
) -> Tensor:
    """Compute activation(Σ inputs @ weightᵀ + shared + added), shape (R, W).

    Args:
        products: Inputs, shape (R, any), and their weights, shape (W, any). If empty, rows
            are sums of shared values.
        shared: Biases, and products that were computed once for many rows.
        shape: N and M.
        dtype: Type of the inputs and the result.
        added: Summands of single rows, shape (R, W).
        activation: Applied to the sum.
    """
    flat = [tensor for pair in products for tensor in pair]
    if kernels := kernels_for("pairs", *flat, added, *shared[:3]):
        result: Tensor = _Layer.apply(kernels, shape, dtype, activation, *shared, added, *flat)
        return result
    if products and shared.bias is not None:  # PyTorch adds a bias within the product
        (inputs, weight), *products = products
        total, shared = linear(inputs, weight, shared.bias), shared._replace(bias=None)
        summands = [total.unflatten(0, shape)]
    else:
        summands = []
    summands += [(inputs @ weight.T).unflatten(0, shape) for inputs, weight in products]
    summands += shared.spread(shape)
    if added is not None:
        summands.append(added.unflatten(0, shape))
    total = sum(summands[1:], summands[0]).expand(*shape, -1)
    if activation == "leaky":
        total = leaky_relu(total, SLOPE)
    elif activation == "relu":
        total = relu(total)
    return total.flatten(0, 1)


def log_likelihood(
    hidden: Tensor, keys: Tensor, biases: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    """Compute Σ weight · log softmax(hidden @ keysᵀ + biases)[target], a number.

    Args:
        hidden: Shape (R, W).
        keys: Shape (classes, W).
        biases: Shape (classes,); minus infinity for a class that cannot be the answer.
        targets: Class of each row, shape (R,).
        weights: Shape (R,).
    """
    if kernels := kernels_for("pairs", hidden, keys):
        result: Tensor = _LogLikelihood.apply(kernels, hidden, keys, biases, targets, weights)
        return result
    answers = linear(hidden, keys, biases).log_softmax(dim=1)
    return (weights * answers.gather(1, targets.unsqueeze(1)).squeeze(1)).sum()


def squared_distance(
    rows: Tensor,
    originals: Shared,
    weights: Tensor,
    *,
    shape: tuple[int, int],
    added: Tensor | None = None,
) -> Tensor:
    """Compute Σ weight · ‖row - original‖², a number; originals are constants.

    Args:
        rows: Shape (R, D).
        originals: Summands of the originals that rows share.
        weights: Not negative, shape (R,).
        shape: N and M.
        added: Summands of the originals that rows do not share, shape (R, D).
    """
    if kernels := kernels_for("pairs", rows):
        result: Tensor = _SquaredDistance.apply(kernels, shape, rows, *originals, added, weights)
        return result
    gaps = rows.unflatten(0, shape)
    for each in originals.spread(shape):
        gaps = gaps - each.detach()
    if added is not None:
        gaps = gaps - added.detach().unflatten(0, shape)
    return (weights.view(shape) * gaps.square().sum(dim=-1)).sum()


def moments(
    examples: Tensor, weights: Tensor, *, with_covariances: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute the mean of each class, (N, D), and the covariance about it, (N, D, D) or empty.

    Examples have shape (N, M, D). Their weights, shape (N, M), are constants and sum to one for
    every class. The results have the type of the weights.
    """
    if kernels := kernels_for("pairs", examples):
        result: tuple[Tensor, Tensor] = _Moments.apply(kernels, examples, weights, with_covariances)
        return result
    means = (weights.unsqueeze(1) @ examples).squeeze(1)
    if not with_covariances:
        return means, weights.new_empty(0)
    deviations = examples - means.unsqueeze(1)
    return means, deviations.mT @ (weights.unsqueeze(-1) * deviations)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        shape: tuple[int, int],
        dtype: torch.dtype,
        activation: Activation,
        bias: Tensor | None,
        by_example: Tensor | None,
        by_novel: Tensor | None,
        places: Tensor | None,
        added: Tensor | None,
        *products: Tensor,
    ) -> Tensor:
        inputs = [_aligned(each.to(dtype)) for each in products[::2]]
        weights = [_aligned(each.to(dtype)) for each in products[1::2]]
        rows = None
        for each, weight in zip(inputs, weights, strict=True):
            rows = each @ weight.T if rows is None else rows.addmm_(each, weight.T)
        shared = Shared(bias, by_example, by_novel, places)
        outputs: Tensor = kernels.add_rows(
            rows, shared, shape, dtype, added=added, activation=activation, slope=SLOPE
        )
        ctx.kernels, ctx.num_novel, ctx.activation = kernels, shape[0], activation
        ctx.num_places = 0 if by_novel is None else len(by_novel)
        ctx.widths = [each.shape[1] for each in products[::2]]
        ctx.save_for_backward(outputs, places, *inputs, *weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        outputs, places, *factors = ctx.saved_tensors
        inputs, weights = factors[: len(ctx.widths)], factors[len(ctx.widths) :]
        has_bias, has_examples, has_novel, _, has_added, *has_products = ctx.needs_input_grad[4:]
        # The bias alone needs no sums by class.
        by_class = has_novel and places is None
        gradient, sums = ctx.kernels.deactivate(
            gradient,
            outputs,
            ctx.activation,
            ctx.num_novel if by_class else 1,
            slope=SLOPE,
            with_sums=has_bias or by_class,
        )
        of_examples = of_novel = None
        if has_examples:
            by_novel = gradient.unflatten(0, (ctx.num_novel, -1))
            of_examples = by_novel.sum(dim=0, dtype=torch.float32)
        if by_class:
            of_novel = sums
        elif has_novel:
            # An indexed sum has no fixed order on a GPU, and a product is as fast.
            picked = one_hot(places, ctx.num_places).to(gradient.dtype)
            of_novel = _product(picked.T, gradient)
        of_products: list[Tensor | None] = []
        for number, width in enumerate(ctx.widths):
            of_input = of_weight = None
            if has_products[2 * number]:
                of_input = (gradient @ weights[number])[:, :width]
            if has_products[2 * number + 1]:
                # Fused optimisers need a gradient with the memory layout of its weight.
                of_weight = _product(gradient.T, inputs[number])[:, :width].contiguous()
            of_products += [of_input, of_weight]
        return (
            *(None, None, None, None),
            sums.sum(dim=0) if has_bias else None,
            of_examples,
            of_novel,
            None,
            gradient if has_added else None,
            *of_products,
        )


class _LogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        hidden: Tensor,
        keys: Tensor,
        biases: Tensor,
        targets: Tensor,
        weights: Tensor,
    ) -> Tensor:
        narrow = keys.to(hidden.dtype)
        logits = _product(hidden, narrow.T)
        targets, weights = targets.contiguous(), weights.contiguous()
        values, totals = kernels.log_likelihoods(logits, biases, targets, weights)
        ctx.kernels = kernels
        ctx.save_for_backward(hidden, narrow, logits, biases, totals, targets, weights)
        return values.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        hidden, keys, logits, biases, totals, targets, weights = ctx.saved_tensors
        gradient = ctx.kernels.log_likelihood_gradient(
            logits, biases, targets, weights, totals, factor, hidden.dtype
        )
        _, needs_hidden, needs_keys, needs_biases, *_ = ctx.needs_input_grad
        of_biases = None
        if needs_biases:
            _, sums = ctx.kernels.deactivate(
                gradient, gradient, "none", 1, slope=SLOPE, with_sums=True
            )
            of_biases = sums[0]
        return (
            None,
            gradient @ keys if needs_hidden else None,
            _product(gradient.T, hidden) if needs_keys else None,
            of_biases,
            None,
            None,
        )


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        shape: tuple[int, int],
        rows: Tensor,
        bias: Tensor | None,
        by_example: Tensor | None,
        by_novel: Tensor | None,
        places: Tensor | None,
        added: Tensor | None,
        weights: Tensor,
    ) -> Tensor:
        root = weights.sqrt()
        originals = Shared(bias, by_example, by_novel, places)
        gaps = kernels.add_rows(
            rows, originals, shape, rows.dtype, added=added, scales=root, sign=-1.0
        )
        ctx.kernels = kernels
        ctx.save_for_backward(gaps, root)
        return torch.linalg.vector_norm(gaps, dtype=weights.dtype).square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        gaps, root = ctx.saved_tensors
        shape, scales = (1, len(gaps)), 2 * factor * root
        gradient = ctx.kernels.add_rows(gaps, Shared(), shape, gaps.dtype, scales=scales)
        return None, None, gradient, *[None] * 6


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: ModuleType, examples: Tensor, weights: Tensor, with_covariances: bool
    ) -> tuple[Tensor, Tensor]:
        shape, dtype = (examples.shape[0], examples.shape[1]), examples.dtype
        narrow = weights.to(dtype)
        means = _product(narrow.unsqueeze(1), examples).squeeze(1)
        # Rounded weights of a narrow type do not sum to one.
        means = means / narrow.sum(dim=1, keepdim=True, dtype=weights.dtype)
        ctx.kernels, ctx.with_covariances = kernels, with_covariances
        if not with_covariances:
            ctx.save_for_backward(examples, weights)
            return means, weights.new_empty(0)
        rows, shared = examples.flatten(0, 1), Shared(by_novel=means)
        deviations = kernels.add_rows(rows, shared, shape, dtype, sign=-1.0)
        weighted = kernels.add_rows(deviations, Shared(), shape, dtype, scales=weights.flatten())
        deviations, weighted = deviations.view_as(examples), weighted.view_as(examples)
        ctx.save_for_backward(deviations, weights)
        return means, _product(deviations.mT, weighted)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_means: Tensor, of_covariances: Tensor
    ) -> tuple[None, Tensor, None, None]:
        deviations, weights = ctx.saved_tensors
        dtype, rows = deviations.dtype, None
        if ctx.with_covariances:
            # Deviations sum to zero, so the gradient through the mean vanishes.
            narrow = of_covariances.to(dtype)
            rows = torch.baddbmm(deviations @ narrow, deviations, narrow.mT).flatten(0, 1)
        gradient = ctx.kernels.add_rows(
            rows,
            Shared(by_novel=of_means),
            (weights.shape[0], weights.shape[1]),
            dtype,
            scales=weights.flatten(),
        )
        return None, gradient.view_as(deviations), None, None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left @ right in float32, for matrices or batches of them in a narrower type."""
    if left.dtype == torch.float32:
        return left @ right
    multiply = torch.mm if left.dim() == 2 else torch.bmm
    return multiply(left, right, out_dtype=torch.float32)


def _aligned(matrix: Tensor) -> Tensor:
    """Pad rows with zeros to a multiple of eight, because a GPU is slow with unaligned rows."""
    missing = -matrix.shape[1] % 8
    return pad(matrix, (0, missing)) if missing else matrix
