"""Test the number of trials that fit on a cluster."""

from contextlib import nullcontext

import pytest

from cpaan.study import cluster
from cpaan.study.cluster import HEAD, NODES, Cluster
from cpaan.study.config import StudyConfig


def room(nodes: list[dict[str, float]], **settings: object) -> int:
    """Return the number of trials that fit, and check that a study is refused if none fits."""
    there = Cluster("http://127.0.0.1:8265", tuple(nodes))
    study = StudyConfig(**settings)
    found = there.most_trials_at_once(study)
    is_refused = nullcontext() if found else pytest.raises(ValueError, match="Ray has room for")
    with is_refused:
        there.check(study)
    return found


def test_room_is_counted_by_machines_and_by_cards():
    one_card = {"CPU": 16.0, "GPU": 1.0}

    assert room([{"CPU": 2.0}]) == 2
    assert room([{"CPU": 2.0}], workers_per_trial=3) == 0
    assert room([{"CPU": 0.0}, {"CPU": 1.0}, {"CPU": 1.0}], workers_per_trial=2) == 1
    assert room([one_card], gpus_per_worker=0.25) == 4
    assert room([one_card], gpus_per_worker=0.3) == 3
    assert room([{"CPU": 2.0, "GPU": 1.0}], gpus_per_worker=0.25, workers_per_trial=4) == 0
    assert room([{"CPU": 8.0, "GPU": 2.0}], gpus_per_worker=0.6, workers_per_trial=3) == 0
    assert room([one_card, one_card], gpus_per_worker=2.0) == 0
    assert room([one_card, one_card], gpus_per_worker=1.0, workers_per_trial=2) == 1


def test_machines_that_the_autoscaler_may_start_count(monkeypatch):
    monkeypatch.setenv(NODES, '[{"count": 3, "CPU": 4, "GPU": 1}]')
    here = Cluster("x", ({"CPU": 0.0, **HEAD}, *cluster._coming_nodes()))

    assert here.num_gpus == 3
    assert here.most_trials_at_once(StudyConfig(gpus_per_worker=0.5)) == 6
    assert here.most_trials_at_once(StudyConfig()) == 12
    here.check(StudyConfig(workers_per_trial=3, gpus_per_worker=1.0))
    with pytest.raises(ValueError, match=r"^--workers-per-trial 4 .* Ray has room for 3"):
        here.check(StudyConfig(workers_per_trial=4, gpus_per_worker=1.0))
    for text in ("8", "[8]", '[{"CPU": 1}]', '[{"count": "many"}]', "{"):
        monkeypatch.setenv(NODES, text)
        with pytest.raises(ValueError, match="CPAAN_NODES is not a list of machines"):
            cluster._coming_nodes()
