"""What is done in another way on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_NUM_ORDINARY = 3
"""Calls before one is captured."""


def new_rate(device: torch.device) -> Tensor | float:
    """Return a learning rate of zero, in the form that `set_rate` can change on this device."""
    return torch.zeros((), device=device) if device.type == "cuda" else 0.0


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a CUDA graph reads it from a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def quick_products(device: torch.device) -> Iterator[None]:
    """Let a GPU multiply float32 matrices to three digits, which training does not notice."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Beside:
    """Work that a GPU may do at the same time as what follows, until it is waited for.

    On other devices it is simply done first. Nothing that it uses may be given up before the wait.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._is_busy = False
        if self._stream is not None:
            # Weights have gradients from several streams, on purpose; PyTorch would warn of it.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Do what is inside beside the rest."""
        if self._stream is None:
            yield
            return
        self._is_busy = True
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Let what follows wait for it."""
        if self._stream is not None and self._is_busy:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._is_busy = False


class CudaGraph:
    """A function without arguments that a GPU replays without the CPU.

    The first calls are ordinary ones, which compile kernels and allocate memory. Then one call is
    captured as a CUDA graph and replayed from there on: it works on the tensors that it was
    captured with, so these must stay in place. On other devices every call is an ordinary one.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        rngs: Sequence[torch.Generator] = (),
        *,
        is_capturable: bool = True,
    ) -> None:
        """Keep a function.

        Args:
            function: What to call.
            device: Where it computes.
            rngs: What it draws from. They may be seeded anew between calls.
            is_capturable: False where it waits for results, which a CUDA graph cannot.
        """
        self._function = function
        self._rngs = rngs
        self._num_ordinary = _NUM_ORDINARY if device.type == "cuda" and is_capturable else None
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Call or replay it."""
        if self._graph is not None:
            self._graph.replay()
        elif self._num_ordinary is None:
            self._function()
        elif self._num_ordinary:
            self._num_ordinary -= 1
            self._function()
        else:
            graph = torch.cuda.CUDAGraph()
            for rng in self._rngs:
                graph.register_generator_state(rng)
            # Other threads of the process may go on with what they do on the GPU.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._function()
            self._graph = graph
            graph.replay()
