"""CUDA graphs; the tests need a GPU."""

import gc

import pytest
import torch

from cpaan.core.devices import CudaGraph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def counting_graph() -> tuple[CudaGraph, torch.Tensor]:
    """Return a graph that adds one to a total; its capture destroys all garbage, as any may."""
    total = torch.zeros(1, device="cuda")

    def add_one() -> None:
        if torch.cuda.is_current_stream_capturing():
            gc.collect()
        total.add_(1)

    return CudaGraph(add_one, total.device), total


def test_a_capture_succeeds_while_an_earlier_graph_is_garbage():
    earlier, _ = counting_graph()
    graph, total = counting_graph()
    for _ in range(3):  # eager calls; the next one captures
        earlier()
        graph()
    earlier()
    earlier.itself = earlier
    del earlier

    graph()

    assert total.item() == 4
