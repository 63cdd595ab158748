"""Test that several workers on Ray train one backbone, and that errors have one line."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cpaan.core.files import unpack_state
from cpaan.representation.backbone_training import BackboneRun
from cpaan.study.backbone import train_with_ray
from helpers.backbones import small_config, striped_images
from helpers.runs import advance_together, threads

pytestmark = pytest.mark.ray


@pytest.fixture
def folder(tmp_path) -> Path:
    images, labels = striped_images()
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path


def train(folder: Path, config, said: list[str], num_workers: int = 2) -> None:
    train_with_ray(
        folder, 3, config, 0, num_workers=num_workers, use_gpu=False, progress=said.append
    )


def test_two_workers_average_the_gradients_of_their_halves(two_cpus, folder):
    # One step only, because each further step multiplies rounding differences by ten.
    config, said = small_config(num_epochs=1, batch_size=48), []

    train(folder, config, said)

    images, labels = striped_images()
    runs = [
        BackboneRun(images, labels, 3, config, 0, torch.device("cpu"), workers)
        for workers in threads(2)
    ]
    advance_together(runs, runs[0].num_episodes)
    state = unpack_state((folder / "backbone.pt").read_bytes())
    assert state["run"]["workers"] == 2
    assert len(said) == 1
    for name, value in runs[0].model.state_dict().items():
        torch.testing.assert_close(state["run"]["model"][name], value, rtol=1e-4, atol=1e-5)


def test_diverged_training_on_ray_is_one_line(two_cpus, folder):
    config = small_config(num_epochs=1, learning_rate=1e30, warmup=0.0)

    with pytest.raises(ValueError, match=r"diverged at step \d.*learning_rate is 1e\+30"):
        train(folder, config, [])


def test_more_workers_than_cpus_are_refused_at_once(two_cpus, folder):
    with pytest.raises(ValueError, match="5 workers need 5 CPUs, but Ray has 2"):
        train(folder, small_config(), [], num_workers=5)
