"""Perceptrons of all pairs, whose first layers share values; see `cpaan.gan.fast.pair_ops`.

Shapes: R = rows, N = novel classes, M = R / N examples of each, W = numbers per row.
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
from cpaan.gan.fast.pair_ops import Shared, product
from cpaan.gan.fast.weights import aligned, rounded

SLOPE = 0.1  # of the leaky ReLU

Activation = Literal["none", "leaky", "relu"]


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
    """Compute `perceptron_for` one use."""
    return perceptron_for(1, layers, question, shape=shape, dtype=dtype)[0]


def perceptron_for(
    num_uses: int,
    layers: Sequence[Layer],
    question: Question | None = None,
    *,
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> Sequence[Tensor]:
    """Compute the rows of the last layer, shape (R, W), or how likely the right answers are.

    The latter is Σ weight · log softmax(hidden @ keysᵀ + biases)[target], a number.

    Returns the same for every use. A GPU then adds the gradients of all uses at once.

    Args:
        num_uses: Number of results.
        layers: All but the first multiply the rows of the layer before.
        question: What to compute from the rows of the last layer.
        shape: N and M.
        dtype: Type of inputs and rows.
    """
    leaves, form = tree_flatten((list(layers), question))
    tensors = [each for each in leaves if isinstance(each, Tensor) and each.is_floating_point()]
    if kernels := kernels_for("pairs", *tensors):
        return _Perceptron.apply(kernels, num_uses, shape, dtype, form, *leaves)
    rows = None
    for each in layers:
        rows = _plain_layer(each, rows, shape)
    if question is None:
        assert rows is not None
        return [rows] * num_uses
    hidden = rows if question.hidden is None else question.hidden
    assert hidden is not None, "a question has rows"
    answers = linear(hidden, question.keys, question.biases).log_softmax(dim=1)
    answers = answers.gather(1, question.targets.unsqueeze(1)).squeeze(1)
    return [(question.weights * answers).sum()] * num_uses


def _plain_layer(layer: Layer, before: Any, shape: tuple[int, int]) -> Tensor:
    products = [(before if rows is None else rows, weight) for rows, weight in layer.products]
    shared = layer.shared
    summands: list[Tensor] = []
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


class _Perceptron(torch.autograd.Function):
    """Leaves are those of a list of layers and a question, in the given form."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        num_uses: int,
        shape: tuple[int, int],
        dtype: torch.dtype,
        form: TreeSpec,
        *leaves: Any,
    ) -> tuple[Tensor, ...]:
        layers, question = tree_unflatten(leaves, form)
        rows: Any = None
        saved: list[Any] = []
        for layer in layers:
            factors = [
                (aligned(rows if each is None else each.to(dtype)), rounded(weight, dtype))
                for each, weight in layer.products
            ]
            rows = _fast_layer(kernels, layer, factors, shape, dtype)
            saved.append((rows, layer.shared.places, factors))
        if question is not None:
            hidden, keys, biases, targets, weights = question
            hidden = rows if hidden is None else hidden
            keys = keys.to(hidden.dtype)
            logits = product(hidden, keys.T)
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
        ctx.set_materialize_grads(False)
        # Other tensors of the same memory, because autograd adds the gradients of one tensor.
        return rows, *(rows.new_empty(0).set_(rows) for _ in range(num_uses - 1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_uses: Tensor | None) -> tuple[Any, ...]:
        gradients = [each for each in of_uses if each is not None]
        kernels, saved = ctx.kernels, tree_unflatten(ctx.saved_tensors, ctx.form_of_saved)
        needs, needs_answers = tree_unflatten(ctx.needs_input_grad[5:], ctx.form)
        # The gradient of the rows is the sum of `gradients`, or its product with `weight`.
        weight: Tensor | None = None
        of_question = None
        if needs_answers:
            hidden, weight, logits = saved.pop()
            gradient, of_question = _answer_gradients(
                kernels, hidden, weight, logits, sum(gradients[1:], gradients[0]), needs_answers
            )
            gradients = [gradient]
        of_layers: list[Any] = []
        of_sum: Tensor | None = None  # the gradient of the last layer, before its activation
        for (outputs, places, factors), need, activation, table_size in reversed(
            list(zip(saved, needs, ctx.activations, ctx.table_sizes, strict=True))
        ):
            has_table = need.shared.by_novel
            has_sums = need.shared.bias and not has_table
            gradient, of_bias = _before_activation(
                kernels, gradients, weight, outputs, activation, has_sums
            )
            gradients = [gradient]
            of_sum = gradient if of_sum is None else of_sum
            of_example = of_novel = None
            if need.shared.by_example:
                by_novel = gradient.unflatten(0, (ctx.num_novel, -1))
                of_example = by_novel.sum(dim=0, dtype=torch.float32)
            if has_table and places is None:
                of_novel = kernels.sum_groups(gradient, ctx.num_novel)
            elif has_table:
                # An indexed sum has no fixed order on a GPU, and a product is as fast.
                picked = gradient.new_zeros(table_size, len(gradient))
                of_novel = product(picked.scatter_(0, places.unsqueeze(0), 1), gradient)
            if need.shared.bias and of_novel is not None:
                of_bias = of_novel.sum(dim=0)
            of_products: list[tuple[Tensor | None, Tensor | None]] = []
            for (inputs, weight), (needs_inputs, needs_weight) in zip(
                factors, need.products, strict=True
            ):
                of_inputs = None
                if needs_inputs and ctx.is_residual and not of_products:
                    # A generator adds its inputs to its outputs; so their gradients are added.
                    of_inputs = _add_product(kernels, of_sum, gradient, weight)
                elif needs_inputs:
                    of_inputs = gradient @ weight
                of_weight = _of_weight(gradient, inputs) if needs_weight else None
                of_products.append((of_inputs, of_weight))
            of_added = gradient if need.added and not ctx.is_residual else None
            of_shared = Shared(of_bias, of_example, of_novel)
            of_layers.insert(0, (of_products, of_shared, of_added, None))
        leaves, _ = tree_flatten((of_layers, of_question))
        return None, None, None, None, None, *leaves


def _fast_layer(
    kernels: ModuleType,
    layer: Layer,
    factors: list[tuple[Tensor, Tensor]],
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> Tensor:
    """Compute the rows of a layer from the factors of its products."""
    added, activation = layer.added, layer.activation
    is_fused = factors and kernels.products.is_fused(
        *factors[-1], *([] if added is None else [added])
    )
    rows = added if is_fused else None
    for inputs, weight in factors[:-1] if is_fused else factors:
        rows = inputs @ weight.T if rows is None else torch.addmm(rows, inputs, weight.T)
    if is_fused:
        return kernels.products.multiply(
            *factors[-1],
            layer.shared,
            shape[1],
            is_transposed=True,
            added=rows,
            activation=activation,
            slope=SLOPE,
        )[0]
    return kernels.add_rows(
        rows, layer.shared, shape, dtype, added=added, activation=activation, slope=SLOPE
    )


def _before_activation(
    kernels: ModuleType,
    gradients: list[Tensor],
    weight: Tensor | None,
    outputs: Tensor,
    activation: Activation,
    with_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient before an activation, given that after it, and its sums over rows.

    The latter is the sum of ``gradients``, or the product of the only one with ``weight``.
    """
    if weight is not None and kernels.products.is_fused(gradients[0], weight, outputs):
        return kernels.products.multiply(
            gradients[0],
            weight,
            activation=activation,
            slope=SLOPE,
            outputs=outputs,
            with_sums=with_sums,
        )
    if weight is not None:
        gradients = [gradients[0] @ weight]
    return kernels.deactivate(gradients, outputs, activation, slope=SLOPE, with_sums=with_sums)


def _of_weight(gradient: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient of a weight that multiplied the inputs."""
    num_rows, width = inputs.shape
    if inputs.stride(0) == width:
        return product(gradient.T, inputs)
    # A GPU is slow for an odd width; what lies between rows changes only columns that are cut off.
    whole = inputs.as_strided((num_rows, inputs.stride(0)), inputs.stride())
    return product(gradient.T, whole)[:, :width].contiguous()


def _add_product(kernels: ModuleType, added: Tensor, left: Tensor, right: Tensor) -> Tensor:
    if kernels.products.is_fused(added, left, right):
        return kernels.products.multiply(left, right, added=added)[0]
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
    of_keys = product(gradient.T, hidden) if needs.keys else None
    of_biases = kernels.sum_groups(gradient, 1)[0] if needs.biases else None
    return gradient, (of_hidden, of_keys, of_biases, None, None)
