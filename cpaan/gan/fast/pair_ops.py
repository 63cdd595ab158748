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

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu, linear, relu
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

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


class Layer(NamedTuple):
    """A layer of a perceptron: activation(Σ inputs @ weightᵀ + shared + added), shape (R, W)."""

    products: Sequence[tuple[Tensor | None, Tensor]]
    """Inputs, (R, any), or None for the rows of the layer before, and their weights, (W, any). If
    empty, rows are sums of shared values."""
    shared: Shared = Shared()
    """Biases, and products that were computed once for many rows."""
    added: Tensor | None = None
    """Summands of single rows, shape (R, W)."""
    activation: Activation = "leaky"


class Question(NamedTuple):
    """Rows to classify, and what the answers should be."""

    hidden: Tensor | None  # (R, W), or None for the rows of the last layer
    keys: Tensor  # (classes, W)
    biases: Tensor  # (classes,); minus infinity for a class that cannot be the answer
    targets: Tensor  # (R,) class of each row
    weights: Tensor  # (R,)


def perceptron(
    layers: Sequence[Layer],
    question: Question | None = None,
    *,
    shape: tuple[int, int] = (1, 1),
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute the rows of the last layer, shape (R, W), or how likely the right answers are.

    The latter is Σ weight · log softmax(hidden @ keysᵀ + biases)[target], a number.

    Args:
        layers: All but the first multiply the rows of the layer before.
        question: What to compute from the rows of the last layer.
        shape: N and M.
        dtype: Type of inputs and rows.
    """
    leaves, form = tree_flatten((list(layers), question))
    tensors = [each for each in leaves if isinstance(each, Tensor) and each.is_floating_point()]
    if kernels := kernels_for("pairs", *tensors):
        result: Tensor = _Perceptron.apply(kernels, shape, dtype, form, *leaves)
        return result
    rows = None
    for each in layers:
        rows = _plain_layer(each, rows, shape)
    if question is None:
        assert rows is not None
        return rows
    hidden = rows if question.hidden is None else question.hidden
    answers = linear(hidden, question.keys, question.biases).log_softmax(dim=1)
    answers = answers.gather(1, question.targets.unsqueeze(1)).squeeze(1)
    return (question.weights * answers).sum()


def _plain_layer(layer: Layer, before: Tensor | None, shape: tuple[int, int]) -> Tensor:
    products = [(before if rows is None else rows, weight) for rows, weight in layer.products]
    shared, summands = layer.shared, []
    if products and shared.bias is not None:  # PyTorch adds a bias within the product
        (inputs, weight), *products = products
        total, shared = linear(inputs, weight, shared.bias), shared._replace(bias=None)
        summands = [total.unflatten(0, shape)]
    summands += [(inputs @ weight.T).unflatten(0, shape) for inputs, weight in products]
    summands += shared.spread(shape)
    if layer.added is not None:
        summands.append(layer.added.unflatten(0, shape))
    total = sum(summands[1:], summands[0]).expand(*shape, -1)
    if layer.activation == "leaky":
        total = leaky_relu(total, SLOPE)
    elif layer.activation == "relu":
        total = relu(total)
    return total.flatten(0, 1)


class Rounded:
    """Copies of weights in a narrower type, which products use within the context.

    They must be refreshed whenever the weights have changed.
    """

    def __init__(self, weights: Sequence[Tensor], dtype: torch.dtype) -> None:
        wide = [each for each in weights if each.dim() == 2 and each.dtype != dtype]
        self._weights = [each for each in wide if each.shape[1] % 8 == 0]
        self._copies = [torch.empty_like(each, dtype=dtype) for each in self._weights]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the weights again, all in one kernel."""
        if self._copies:
            torch._foreach_copy_(self._copies, self._weights)

    def __enter__(self) -> None:
        for weight, copy in zip(self._weights, self._copies, strict=True):
            _ROUNDED[weight.data_ptr()] = copy.detach()

    def __exit__(self, *_: object) -> None:
        for weight in self._weights:
            _ROUNDED.pop(weight.data_ptr(), None)


_ROUNDED: dict[int, Tensor] = {}
"""Rounded copies of the weights at these addresses."""


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


class _Perceptron(torch.autograd.Function):
    """Leaves are those of a list of layers and a question, in the given form."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        shape: tuple[int, int],
        dtype: torch.dtype,
        form: TreeSpec,
        *leaves: Any,
    ) -> Tensor:
        layers, question = tree_unflatten(leaves, form)
        rows: Any = None
        saved: list[Any] = []
        for layer in layers:
            factors = [
                (_aligned(rows if each is None else each.to(dtype)), _rounded(weight, dtype))
                for each, weight in layer.products
            ]
            rows = _fast_layer(kernels, layer, factors, shape, dtype)
            saved.append((rows, layer.shared.places, factors))
        if question is not None:
            hidden, keys, biases, targets, weights = question
            hidden = rows if hidden is None else hidden
            keys = keys.to(hidden.dtype)
            logits = _product(hidden, keys.T)
            targets, weights = targets.contiguous(), weights.contiguous()
            values, totals = kernels.log_likelihoods(logits, biases, targets, weights)
            saved.append((hidden, keys, (logits, biases, targets, weights, totals)))
            rows = values.sum()
        tensors, ctx.form_of_saved = tree_flatten(saved)
        ctx.save_for_backward(*tensors)
        ctx.kernels, ctx.num_novel, ctx.form = kernels, shape[0], form
        ctx.activations = [layer.activation for layer in layers]
        tables = [layer.shared.by_novel for layer in layers]
        ctx.table_sizes = [0 if table is None else len(table) for table in tables]
        added = layers[-1].added if len(layers) > 1 and layers[0].products else None
        ctx.is_residual = (
            added is not None and layers[0].products[0][0].data_ptr() == added.data_ptr()
        )
        return rows  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        kernels, saved = ctx.kernels, tree_unflatten(ctx.saved_tensors, ctx.form_of_saved)
        needs, needs_answers = tree_unflatten(ctx.needs_input_grad[4:], ctx.form)
        # The gradient of the rows is `gradient`, or its product with `weight`.
        weight: Tensor | None = None
        of_question = None
        if needs_answers:
            hidden, weight, logits = saved.pop()
            gradient, of_question = _answer_gradients(
                kernels, hidden, weight, logits, gradient, needs_answers
            )
        of_layers: list[Any] = []
        of_sum: Tensor | None = None  # the gradient of the last layer, before its activation
        for (outputs, places, factors), need, activation, table_size in reversed(
            list(zip(saved, needs, ctx.activations, ctx.table_sizes, strict=True))
        ):
            has_table = need.shared.by_novel
            has_sums = need.shared.bias and not has_table
            gradient, of_bias = _before_activation(
                kernels, gradient, weight, outputs, activation, has_sums
            )
            of_sum = gradient if of_sum is None else of_sum
            of_example = of_novel = None
            if need.shared.by_example:
                by_novel = gradient.unflatten(0, (ctx.num_novel, -1))
                of_example = by_novel.sum(dim=0, dtype=torch.float32)
            if has_table and places is None:
                of_novel = kernels.sum_groups(gradient, ctx.num_novel)
            elif has_table:
                # An indexed sum has no fixed order on a GPU, and a product is as fast.
                every = torch.arange(table_size, device=places.device).unsqueeze(1)
                of_novel = _product((every == places).to(gradient.dtype), gradient)
            if need.shared.bias and has_table:
                of_bias = of_novel.sum(dim=0)
            of_products = []
            for (inputs, weight), (needs_inputs, needs_weight) in zip(
                factors, need.products, strict=True
            ):
                of_inputs = None
                if needs_inputs and ctx.is_residual and not of_products:
                    # A generator adds its inputs to its outputs; so their gradients are added.
                    of_inputs = _add_product(kernels, of_sum, gradient, weight)
                elif needs_inputs:
                    of_inputs = gradient @ weight
                of_weight = _product(gradient.T, inputs) if needs_weight else None
                of_products.append((of_inputs, of_weight))
            of_added = gradient if need.added and not ctx.is_residual else None
            of_shared = Shared(of_bias, of_example, of_novel)
            of_layers.insert(0, (of_products, of_shared, of_added, None))
        leaves, _ = tree_flatten((of_layers, of_question))
        return None, None, None, None, *leaves


def _fast_layer(
    kernels: ModuleType,
    layer: Layer,
    factors: list[tuple[Tensor, Tensor]],
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> Tensor:
    """Compute the rows of a layer from the factors of its products."""
    added, activation = layer.added, layer.activation
    is_fused = factors and kernels.is_fused(*factors[-1], *([] if added is None else [added]))
    rows = added if is_fused else None
    for inputs, weight in factors[:-1] if is_fused else factors:
        product = inputs @ weight.T if rows is None else torch.addmm(rows, inputs, weight.T)
        rows = product
    if is_fused:
        result: Tensor = kernels.multiply(
            *factors[-1],
            layer.shared,
            shape[1],
            is_transposed=True,
            added=rows,
            activation=activation,
            slope=SLOPE,
        )[0]
        return result
    result = kernels.add_rows(
        rows, layer.shared, shape, dtype, added=added, activation=activation, slope=SLOPE
    )
    return result


def _before_activation(
    kernels: ModuleType,
    gradient: Tensor,
    weight: Tensor | None,
    outputs: Tensor,
    activation: Activation,
    with_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient before an activation, given that after it, and its sums over rows.

    The latter is ``gradient``, or its product with ``weight``.
    """
    if weight is not None and kernels.is_fused(gradient, weight, outputs):
        result: tuple[Tensor, Tensor | None] = kernels.multiply(
            gradient,
            weight,
            activation=activation,
            slope=SLOPE,
            outputs=outputs,
            with_sums=with_sums,
        )
        return result
    if weight is not None:
        gradient = gradient @ weight
    return kernels.deactivate(  # type: ignore[no-any-return]
        gradient, outputs, activation, slope=SLOPE, with_sums=with_sums
    )


def _add_product(kernels: ModuleType, added: Tensor, left: Tensor, right: Tensor) -> Tensor:
    if kernels.is_fused(added, left, right):
        result: Tensor = kernels.multiply(left, right, added=added)[0]
        return result
    return torch.addmm(added, left, right)


def _answer_gradients(
    kernels: ModuleType,
    hidden: Tensor,
    keys: Tensor,
    logits: tuple[Tensor, ...],
    factor: Tensor,
    needs: Any,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the gradient of the logits, and those of a question's parts."""
    gradient = kernels.log_likelihood_gradient(*logits, factor, hidden.dtype)
    of_hidden = gradient @ keys if needs.hidden else None
    of_keys = _product(gradient.T, hidden) if needs.keys else None
    of_biases = kernels.sum_groups(gradient, 1)[0] if needs.biases else None
    return gradient, (of_hidden, of_keys, of_biases, None, None)


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
        squares = kernels.new_sums(len(rows), rows.shape[1], rows.device)
        gaps = kernels.add_rows(
            rows, originals, shape, rows.dtype, added=added, scales=root, sign=-1.0, squares=squares
        )
        ctx.kernels = kernels
        ctx.save_for_backward(gaps, root)
        return squares.sum()

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
    """Start every row at a multiple of eight numbers, because a GPU is slow with other rows."""
    if matrix.stride(0) % 8 == 0 and matrix.stride(1) == 1:
        return matrix
    num_rows, width = matrix.shape
    return matrix.new_empty(num_rows, width + -width % 8)[:, :width].copy_(matrix)


def _rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    copy = _ROUNDED.get(weight.data_ptr())
    return _aligned(weight.to(dtype)) if copy is None or copy.dtype != dtype else copy
