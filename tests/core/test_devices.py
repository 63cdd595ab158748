"""Test CUDA streams and graphs. Without a GPU, the same calls run directly."""

import pytest
import torch

from cpaan.core.devices import Beside, CudaGraph
from cpaan.core.randomness import new_rng, reseed

CPU = torch.device("cpu")
NUM_CALLS = 10  # more than a GPU needs before it captures a graph


@pytest.mark.parametrize("is_capturable", [True, False])
def test_every_call_runs_on_the_present_tensors_and_seeds(is_capturable):
    rng, tensors, seen = new_rng(0), {"x": torch.zeros(())}, []

    def step() -> None:
        seen.append((tensors["x"].item(), torch.rand((), generator=rng).item()))

    graph = CudaGraph(step, CPU, (rng,), is_capturable=is_capturable)
    assert seen == []
    for number in range(NUM_CALLS):
        tensors["x"] = torch.tensor(float(number))
        reseed(rng, 7, number % 2)
        graph()

    drawn = [torch.rand((), generator=new_rng(7, number)).item() for number in range(2)]
    assert seen == [(number, drawn[number % 2]) for number in range(NUM_CALLS)]


def test_gradients_pass_through_work_that_is_done_beside():
    beside, weight, order = Beside(CPU), torch.tensor(3.0, requires_grad=True), []

    with beside():
        order.append("beside")
        square = weight.square()
    order.append("what follows")
    total = square + weight
    beside.wait()
    total.backward()

    assert order == ["beside", "what follows"]
    assert weight.grad == 2 * 3 + 1
