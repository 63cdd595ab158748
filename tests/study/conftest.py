"""A job of six episodes, which the tests of this folder train."""

import pytest

from cpaan.study.job import TrialJob
from helpers.studies import new_job


@pytest.fixture
def job(gaussians, tmp_path) -> TrialJob:
    return new_job(gaussians, tmp_path)
