"""The device of a run; CUDA streams and graph capture, which run eagerly on other devices."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_NUM_EAGER = 3  # eager calls before the capture; they compile kernels and allocate memory


def choose_device(name: str | None) -> torch.device:
    """Return the named device, or the best one; raise ValueError if it does not work."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    # For an unknown name, a missing device, and a device that torch was not built for.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name} cannot be used: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name}")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # the default of kernels and streams
    return device


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out; on the CPU, torch raises a plain RuntimeError."""
    texts = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def new_rate(device: torch.device) -> Tensor | float:
    """Return a learning rate of zero: on a GPU a tensor, which CUDA graphs read at every replay."""
    return torch.zeros((), device=device) if device.type == "cuda" else 0.0


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups; captured steps use the new value."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def quick_products(device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU, which is precise enough for training."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Beside:
    """A side CUDA stream; its work may overlap with work of the current stream, until `wait`.

    Its work goes first, because its short kernels would wait for the long ones of the current
    stream. On other devices the work runs immediately. Its tensors must stay alive until `wait`.
    """

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device, priority=-1) if is_cuda else None
        self._is_busy = False
        if self._stream is not None:
            # Weights intentionally get gradients from several streams; PyTorch would warn.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run the body on the stream."""
        if self._stream is None:
            yield
            return
        self._is_busy = True
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Make the current stream wait for this one."""
        if self._stream is not None and self._is_busy:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._is_busy = False


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect garbage now instead of in the body.

    Garbage may own a CUDA graph or a Triton kernel. Their destruction invalidates a capture.
    """
    is_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


class CudaGraph:
    """Capture a function without arguments as a CUDA graph, and replay it.

    The first calls run eagerly. A replay uses the tensors of the capture, so they must not be
    reallocated; generators may be reseeded between calls. Every call runs eagerly on other
    devices.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        rngs: Sequence[torch.Generator] = (),
    ) -> None:
        self._function, self._rngs = function, rngs
        self._is_captured = device.type == "cuda"
        self._num_eager = _NUM_EAGER
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Call or replay the function."""
        if self._graph is None and self._is_captured and self._num_eager == 0:
            graph = torch.cuda.CUDAGraph()
            for rng in self._rngs:
                graph.register_generator_state(rng)
            # Other threads of the process may use the GPU during the capture.
            with _no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._function()
            self._graph = graph
        if self._graph is not None:
            self._graph.replay()
        else:
            self._num_eager = max(0, self._num_eager - 1)
            self._function()
