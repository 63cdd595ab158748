"""Test that the fast engine trains as the reference does, and where each of them runs.

Without a GPU, kernels run in Triton's interpreter, and functions are not compiled.
"""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.gan.engine import new_run as choose_engine
from cpaan.gan.engine import why_reference
from cpaan.gan.gans import GANS
from cpaan.gan.loop import TrainingRun
from cpaan.protocol.tasks import BaseSet
from cpaan.training.workers import ALONE, Workers
from helpers.gan_runs import SMALL, new_run, small_base
from helpers.runs import assert_goes_on, flat

fast = pytest.importorskip("cpaan.gan.fast.run", reason="needs Triton")
HAS_GPU = torch.cuda.is_available()
uncompiled = partial(fast.FastRun, compiled=lambda function: function)
ENGINE = fast.FastRun if HAS_GPU else uncompiled
DEVICE = "cuda" if HAS_GPU else "cpu"


def base_on_device(*, is_positive: bool = False) -> BaseSet:
    """Return examples of few dimensions, because Triton's interpreter is slow."""
    base = small_base()
    features = base.features[:, :6].to(DEVICE)
    return BaseSet(features.abs() if is_positive else features, base.counts.to(DEVICE))


def pair_of_runs(name: str, settings: dict) -> list[TrainingRun]:
    """Return a run of the reference and a run of the fast engine, from the same random weights.

    Residual generators start as the identity, where most gradients vanish, so weights are drawn.
    """
    base = base_on_device(is_positive="output" in settings)
    options = {"base": base, "dtype": torch.float32, "precision": "full", **settings}
    runs = [new_run(name, engine=engine, **options) for engine in (TrainingRun, ENGINE)]
    rng = new_rng(3)
    state = {
        key: 0.2 * torch.randn(value.shape, generator=rng)
        for key, value in runs[0].networks.state_dict().items()
    }
    for run in runs:
        run.networks.load_state_dict(state)
    return runs


HARD = {"neighbours": "hard", "num_neighbours": 2}  # has no kernel, so it is quick
CASES = [
    ("c-GAN", {}),
    ("cCyc-GAN", HARD),
    ("cDeLi-GAN", HARD),
    ("cCov-GAN", HARD),
    ("cCov-GAN", {"residual": "mean-shift"}),
    ("cCov-GAN", {**HARD, "generator_loss": "minimax", "residual": "none", "noise": "mixture"}),
    ("cCov-GAN", {"adversarial_weight": 0.0, "neighbours": "none"}),
    ("cCov-GAN", {**HARD, "cycle_weight": 0.0, "prototype_weight": 0.0}),
    ("cCov-GAN", {**HARD, "covariance_weight": 0.0, "real_examples": "shots"}),
    ("cCov-GAN", {**HARD, "sampling": "uniform", "normalised_weights": False}),
    ("cCov-GAN", {**HARD, "covariance_classes": "all", "output": "match", "ky_fan_order": 5}),
    ("cCyc-GAN", {"cycle_weight": 0.0, "normalisation": "none", "perplexity": None}),
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        case if place < len(GANS) else pytest.param(*case, marks=pytest.mark.slow)
        for place, case in enumerate(CASES)
    ],
    ids=str,
)
def test_both_engines_have_the_same_losses_gradients_and_weights(name, settings):
    reference, other = pair_of_runs(name, settings)
    # The fast engine compares covariances in half precision, and float32 is TF32 on a GPU.
    has_covariance = name == "cCov-GAN" and settings.get("covariance_weight") != 0
    precision = 1e-2 if HAS_GPU else 1e-3 if has_covariance else 1e-5

    first = [run.advance(1) for run in (reference, other)]

    assert first[1] == pytest.approx(first[0], rel=precision, abs=1e-7)
    for one, two in zip(reference.networks.parameters(), other.networks.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)
        if one.grad is not None and two.grad is not None:
            assert (two.grad - one.grad).norm() <= 10 * precision * one.grad.norm() + 1e-9
    reference.advance(3)
    other.advance(3)
    gap = (flat(other) - flat(reference)).norm() / flat(reference).norm()
    assert gap < (1e-3 if HAS_GPU else 1e-4 if has_covariance else 1e-6)


def test_a_fast_run_resumes_bit_by_bit():
    options = {"base": base_on_device(), "dtype": torch.float32, "neighbours": "none"}
    assert_goes_on(lambda: new_run("cCyc-GAN", engine=ENGINE, **options))


@dataclass(frozen=True)
class Halving(Workers):
    """A worker that halves every gradient, within the graph of a step or between graphs."""

    has_one_graph: bool = True

    def is_capturable(self, device: torch.device) -> bool:
        return self.has_one_graph

    def average(self, tensors) -> None:
        for tensor in tensors:
            tensor.div_(2)


def test_gradients_are_exchanged_within_a_graph_or_between_graphs():
    options = {"base": base_on_device(), "dtype": torch.float32, "neighbours": "none"}
    runs = [
        new_run("cCyc-GAN", workers=workers, engine=ENGINE, **options)
        for workers in (Halving(has_one_graph=True), Halving(has_one_graph=False), ALONE)
    ]

    for run in runs:
        run.advance(5)

    within, between, none = map(flat, runs)
    assert torch.equal(within, between)
    assert not torch.equal(within, none)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # The compiler has many of its own.
def test_compiled_functions_are_those_of_the_definition():
    compiled = fast.FastRun
    runs = [
        new_run("cCyc-GAN", dtype=torch.float32, precision="full", neighbours="none", engine=engine)
        for engine in (uncompiled, compiled)
    ]

    told = [run.advance(2) for run in runs]

    assert told[1] == pytest.approx(told[0], rel=1e-5, abs=1e-7)


def features_of(**changes: object) -> SimpleNamespace:
    """Return episodes with features of a GPU, in as far as the choice of an engine reads them."""
    features = {"is_cuda": True, "dtype": torch.float32, "shape": (100, 512), **changes}
    base = SimpleNamespace(features=SimpleNamespace(**features))
    return SimpleNamespace(data=SimpleNamespace(base=base))


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        ({}, {}, ""),
        ({}, {"engine": "reference"}, "it is set"),
        ({"is_cuda": False, "device": torch.device("cpu")}, {}, "CPU"),
        ({"dtype": torch.float64}, {}, "float64"),
        ({"shape": (100, 4096)}, {}, "4096 dimensions"),
        ({}, {"ky_fan_order": 40}, "m = 40"),
    ],
)
def test_the_reference_runs_where_the_fast_engine_cannot(changes, settings, reason):
    config = SMALL.with_overrides(settings)

    answer = why_reference(GANS["cCov-GAN"], features_of(**changes), config)

    assert (reason in answer) if reason else not answer


@pytest.mark.skipif(HAS_GPU, reason="the log names the fast engine there")
def test_the_log_says_which_engine_runs():
    run = new_run(engine=choose_engine)

    assert type(run) is TrainingRun
    assert run.note.startswith("reference engine")
