"""What a GPU does in one pass and PyTorch in several: Triton kernels, and how they are called.

`cpaan.gan.fast.pair_ops` and `cpaan.gan.covariance` call them for tensors on a GPU. For all others
they have the same in plain PyTorch, which is the definition. Sums go over blocks of rows in a fixed
order: equal inputs have equal results, bit for bit.
"""

from cpaan.gan.fast.kernels.covariances import (
    eigh,
    fits,
    orthonormal,
    scaled_gram,
    times_difference,
    to_halves,
)
from cpaan.gan.fast.kernels.pairs import (
    add_rows,
    deactivate,
    log_likelihood_gradient,
    log_likelihoods,
)

__all__ = [
    "add_rows",
    "deactivate",
    "eigh",
    "fits",
    "log_likelihood_gradient",
    "log_likelihoods",
    "orthonormal",
    "scaled_gram",
    "times_difference",
    "to_halves",
]
