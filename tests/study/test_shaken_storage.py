"""Test a whole search in this process, on an S3 server that fails at random."""

import math
from pathlib import Path
from typing import Any

import pytest

from cpaan.core.remote_paths import RemotePath
from cpaan.study import search as search_module
from cpaan.study import worker_pool
from cpaan.study.cluster import MARK
from cpaan.study.job import run_study_job
from cpaan.study.records import trial_table
from cpaan.study.resolve import StudyRequest, new_study
from cpaan.study.searcher import OptunaSearcher, RowSearch
from cpaan.study.study import BEST, Study, read_json
from cpaan.study.trial import to_metrics
from helpers.studies import STUDY_SETTINGS, run_here

NUM_TRIALS = 3


def search_here(study: Study) -> tuple[dict[str, Any], list[list[Any]]]:
    """Run all trials one after the other; return the best and the scores of all trials."""
    with study.locked():
        study.write()
        (RemotePath.at(study.storage) / MARK).write(b"")
        search = RowSearch(study, study.rows[0])
        searcher = OptunaSearcher([search])
        for name in map(str, range(NUM_TRIALS)):
            job = searcher.suggest(name)["job"]
            for report in run_study_job(job):
                metrics = to_metrics(report, study.config)
                searcher.on_trial_result(name, metrics)
            searcher.on_trial_complete(name, metrics)
        assert searcher.failure is None
        search_module._choose_best(study, [search], print, 1, math.inf)
        study.write_json(BEST, search.best)
        search.records.update(is_last=True)
    columns = ["trial", "state", "score", "novel_top5", "all_calibrated_top5", "problem"]
    table = trial_table(search.trials, study.config)[columns]
    return {**read_json(study.storage, BEST), "run": None}, table.values.tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_disk")
def test_a_storage_that_fails_at_random_changes_neither_trials_nor_winner(
    study_features, bucket, monkeypatch
):
    monkeypatch.setattr("cpaan.core.remote_paths._PAUSES", (0.0,) * 6)
    monkeypatch.setattr(worker_pool, "run_on_ray", run_here)
    settings = {**STUDY_SETTINGS, "num_finalists": 2, "num_trials": NUM_TRIALS}
    request = StudyRequest(
        features=[str(study_features)],
        episodes=4,
        settings=tuple(f"{name}={value}" for name, value in settings.items()),
    )
    calm = search_here(new_study(request, Path("results/calm"), None))

    bucket.failures[bucket.name] = 0.05
    shaken = search_here(new_study(request, Path("results/shaken"), bucket.location))

    assert bucket.num_failures() >= 3
    assert shaken == calm
    assert [state for _, state, *_ in shaken[1]] == ["complete"] * NUM_TRIALS
    assert len(shaken[0]["finalists"]) == 2
