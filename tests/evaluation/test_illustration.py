"""Test the comparison of synthetic with real examples, on Gaussian classes."""

import pytest
import torch

from cpaan.evaluation.illustration import eigenvalues, illustrate
from cpaan.methods.registry import make_method
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import read_phase
from helpers.tasks import shots_of

EVALUATION = EvaluationConfig(
    shots=(1, 4), num_draws=2, perplexity=4, num_synthetic=30, heads=("centroid",)
)


@pytest.fixture(scope="module")
def illustrated(gaussians):
    """Return a function that illustrates a method by its name."""
    table, split = gaussians.table, gaussians.split
    draws = shots_of(table, split)
    task, queries = read_phase(table, split, "validation", draws, (1, 4), torch.device("cpu"))

    def fit(name: str):
        method = make_method(name, EVALUATION)
        return illustrate(name, method, 0, task, queries, split.validation.novel)

    return fit


def test_eigenvalues_are_of_the_covariance_largest_first():
    # Variance 4 * 2 / 3 along the first axis, 2 / 3 along the second.
    points = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
    torch.testing.assert_close(eigenvalues(points + 7), torch.tensor([8 / 3, 2 / 3]).double())

    # Few and many examples have the same trace on average.
    rng = torch.Generator().manual_seed(0)
    for n in (4, 40):
        traces = [eigenvalues(torch.randn(n, 3, generator=rng)).sum() for _ in range(400)]
        assert float(torch.stack(traces).mean()) == pytest.approx(3.0, rel=0.1)


def test_real_shares_of_a_class_sum_to_one_and_there_are_two_spectra_a_class(
    gaussians, illustrated
):
    spectra, _ = illustrated("copy")
    num_classes = len(gaussians.split.validation.novel)

    assert spectra.groupby("method")["class"].nunique().to_dict() == {
        "copy": num_classes,
        "copy, real": num_classes,
    }
    of_real = spectra[spectra["method"] == "copy, real"]
    assert of_real.groupby("class")["share"].sum().tolist() == pytest.approx([1.0] * num_classes)
    first = of_real[of_real["class"] == of_real["class"].iloc[0]]
    assert first["index"].tolist() == list(range(1, len(first) + 1))
    assert first["share"].is_monotonic_decreasing


def test_a_map_has_real_examples_shots_and_synthetic_ones_of_five_classes(gaussians, illustrated):
    _, projections = illustrated("mean-shift")
    counts = projections.groupby(["class", "kind"]).size().unstack()

    novel = gaussians.split.validation.novel
    assert len(counts) == 5
    assert {novel[0], novel[-1]} <= set(counts.index), "from all over"
    assert counts["shot"].tolist() == [4] * 5  # the task's number nearest to five
    assert counts["synthetic"].tolist() == [30] * 5
    assert (counts["real"] > 1).all()
    assert projections[["x", "y"]].notna().all(axis=None)
    assert illustrated("mean-shift").projections.equals(projections), "the same examples, same map"


def test_a_method_without_synthetic_examples_has_nothing_to_show(illustrated):
    illustration = illustrated("none")

    assert illustration.spectra.empty
    assert list(illustration.projections.columns) == ["method", "class", "kind", "x", "y"]
    assert illustration.projections.empty
