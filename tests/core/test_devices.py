"""What a GPU does in another way; here, where there is none, it is simply done."""

import pytest
import torch

from cpaan.core.devices import Beside, CudaGraph, quick_products
from cpaan.core.randomness import new_rng, reseed
from cpaan.gan.fast.kernels import kernels_for

CPU = torch.device("cpu")
NUM_CALLS = 10  # more than a GPU needs before it captures a CUDA graph


@pytest.mark.parametrize("is_capturable", [True, False])
def test_every_call_of_a_cuda_graph_is_an_ordinary_one(is_capturable):
    seen: list[int] = []
    graph = CudaGraph(lambda: seen.append(len(seen)), CPU, is_capturable=is_capturable)

    assert seen == []  # none before the first call
    for _ in range(NUM_CALLS):
        graph()

    assert seen == list(range(NUM_CALLS))


def test_a_cuda_graph_sees_what_has_changed_since_its_last_call():
    """Also another tensor in the place of one, which a recording could not follow."""
    place, seen = {"tensor": torch.zeros(())}, []
    graph = CudaGraph(lambda: seen.append(place["tensor"].item()), CPU)

    for number in range(NUM_CALLS):
        place["tensor"] = torch.tensor(float(number))
        graph()

    assert seen == list(range(NUM_CALLS))


def test_a_cuda_graph_draws_from_its_generators_as_they_are_seeded():
    rng, drawn = new_rng(0), []
    graph = CudaGraph(lambda: drawn.append(torch.rand(2, generator=rng).tolist()), CPU, (rng,))

    for number in range(NUM_CALLS):
        reseed(rng, 7, number % 2)
        graph()

    expected = [torch.rand(2, generator=new_rng(7, number % 2)).tolist() for number in range(2)]
    assert drawn == expected * (NUM_CALLS // 2)


def test_an_error_of_a_cuda_graph_is_its_callers():
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        CudaGraph(fail, CPU)()


def test_what_is_done_beside_is_done_first():
    beside, order = Beside(CPU), []

    with beside():
        order.append("beside")
    order.append("what follows")
    beside.wait()
    order.append("after the wait")

    assert order == ["beside", "what follows", "after the wait"]


def test_gradients_pass_through_what_was_done_beside():
    beside, weight = Beside(CPU), torch.tensor(3.0, requires_grad=True)

    with beside():
        square = weight.square()
    total = square + weight
    beside.wait()
    total.backward()

    assert weight.grad == 2 * 3 + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_processor_has_no_kernels(dtype):
    assert kernels_for("pairs", torch.zeros(1, dtype=dtype)) is None


def test_products_on_a_processor_are_as_exact_as_before():
    before = torch.get_float32_matmul_precision()

    with quick_products(CPU):
        inside = torch.get_float32_matmul_precision()

    assert inside == torch.get_float32_matmul_precision() == before
