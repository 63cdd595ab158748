"""What synthetic examples are like beside real ones, on Gaussian classes."""

import pytest
import torch

from cpaan.methods.registry import make_method
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import read_phase
from cpaan.report.illustration import eigenvalues, illustrate
from helpers.tasks import shots_of

EVALUATION = EvaluationConfig(
    shots=(1, 4), num_draws=2, perplexity=4, num_synthetic=30, heads=("centroid",)
)


@pytest.fixture(scope="module")
def looked_at_copies(gaussians):
    return look_at(gaussians, "copy")


def look_at(gaussians, method: str):
    table, split = gaussians.table, gaussians.split
    draws = shots_of(table, split)
    task, queries = read_phase(table, split, "validation", draws, (1, 4), torch.device("cpu"))
    novel = split.validation.novel
    return illustrate(method, make_method(method, EVALUATION), 0, task, queries, novel)


def test_eigenvalues_are_of_the_covariance_largest_first():
    # Variance 4 * 2 / 3 along the first axis, 2 / 3 along the second.
    points = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, -1.0], [0.0, 1.0]])

    torch.testing.assert_close(eigenvalues(points + 7), torch.tensor([8 / 3, 2 / 3]).double())


def test_few_and_many_examples_have_the_same_trace_on_average():
    rng = torch.Generator().manual_seed(0)
    traces = [
        torch.stack(
            [eigenvalues(torch.randn(n, 3, generator=rng)).sum() for _ in range(400)]
        ).mean()
        for n in (4, 40)
    ]

    assert float(traces[0]) == pytest.approx(3.0, rel=0.1)
    assert float(traces[1]) == pytest.approx(3.0, rel=0.1)


def test_real_shares_of_a_class_sum_to_one_and_there_are_two_spectra_a_class(
    gaussians, looked_at_copies
):
    spectra = looked_at_copies.spectra
    num_classes = len(gaussians.split.validation.novel)

    assert set(spectra["method"]) == {"copy", "copy, real"}
    assert spectra.groupby("method")["class"].nunique().tolist() == [num_classes] * 2
    of_real = spectra[spectra["method"] == "copy, real"]
    sums = of_real.groupby("class")["share"].sum()
    assert sums.tolist() == pytest.approx([1.0] * num_classes)
    first = of_real[of_real["class"] == of_real["class"].iloc[0]]
    assert first["index"].tolist() == list(range(1, len(first) + 1))
    assert first["share"].is_monotonic_decreasing


def test_a_map_has_real_examples_shots_and_synthetic_ones_of_five_classes(gaussians):
    found = look_at(gaussians, "mean-shift").projections
    counts = found.groupby(["class", "kind"]).size().unstack()

    novel = gaussians.split.validation.novel
    assert len(counts) == 5
    assert {novel[0], novel[-1]} <= set(counts.index), "from all over"
    assert counts["shot"].tolist() == [4] * 5  # as near to five shots as the task has
    assert counts["synthetic"].tolist() == [30] * 5
    assert (counts["real"] > 1).all()
    assert found[["x", "y"]].notna().all(axis=None)


@pytest.mark.slow
def test_the_same_examples_give_the_same_map(gaussians, looked_at_copies):
    assert look_at(gaussians, "copy").projections.equals(looked_at_copies.projections)


def test_a_method_without_synthetic_examples_has_nothing_to_show(gaussians):
    found = look_at(gaussians, "none")

    assert found.spectra.empty
    assert found.projections.empty


def test_synthetic_examples_are_kept_only_while_they_are_looked_at(gaussians):
    table, split = gaussians.table, gaussians.split
    draws = shots_of(table, split)
    task, queries = read_phase(table, split, "validation", draws, (1, 4), torch.device("cpu"))
    method = make_method("copy", EVALUATION)

    illustrate("copy", method, 0, task, queries, split.validation.novel)

    assert method.synthetic is None
    method.fit(task, torch.Generator())
    assert method.synthetic is None
