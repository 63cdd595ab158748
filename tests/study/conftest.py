"""A job of six episodes, which the tests of this folder train."""

import pytest

from cpaan.evaluation.job import Job
from helpers.studies import new_job


@pytest.fixture
def job(gaussians, tmp_path) -> Job:
    return new_job(gaussians, tmp_path)
