"""Test that an interrupted training gives the same result, and the same as the benchmark."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpaan import evaluate
from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation.job import Job, Report
from cpaan.gan.gans import GANS
from cpaan.gan.loop import LOSSES, TrainingRun
from cpaan.study.cluster import MARK, check_this_machine
from cpaan.study.job import is_trained, run_study_job
from cpaan.training import drive
from cpaan.training.learning import Run
from helpers.jobs import (
    EMBEDDING,
    TRAINED,
    UNTRAINED,
    assert_same_weights,
    at,
    checkpoint_of,
    finish,
    job_of,
    kept_state,
    kept_weights,
    score_again,
    slow,
)
from helpers.studies import new_job, scores
from helpers.tables import poisoned


class Died(BaseException):
    """The process was killed."""


def run_until_saved_at(job: Job, episode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a job that saves after every step, and kill it after the checkpoint of an episode."""
    save = drive.Checkpoint.save

    def save_and_die(checkpoint: drive.Checkpoint, run: Run) -> None:
        save(checkpoint, run)
        if run.episode == episode:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(drive, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        patch.setattr(drive, "_MOST_STEPS_AT_ONCE", 1)
        patch.setattr(drive.Checkpoint, "save", save_and_die)
        with pytest.raises(Died):
            list(run_study_job(job))


@pytest.mark.parametrize(
    ("method", "head", "num_draws"),
    [
        ("cCov-GAN", "cosine", 2),
        ("c-GAN", "knn", 2),
        ("cCov-GAN", "cosine", 7),
        *(slow(name, None, 2) for name in [*TRAINED, *UNTRAINED] if name not in GANS),
        slow("FI-PN", "knn", 2),
        slow("PN", "knn", 2),
    ],
)
def test_a_trial_scores_as_the_benchmark_does(gaussians, job, method, head, num_draws):
    job = job_of(job, method, head, num_draws=num_draws)

    *_, last = finish(job).curve

    results = evaluate(
        gaussians.table,
        gaussians.split,
        methods=[method],
        config=job.evaluation.with_overrides({"seed": job.seed}),
        settings={method: job.training, **({"PN": EMBEDDING} if job.embedding else {})},
    )
    scores = results.scores[results.scores["head"] == job.evaluation.heads[0]]
    means = scores.groupby("column")["top5"].mean()
    assert last["episode"] == job.eval_steps[-1]
    for column in ("novel", "all", "all_calibrated"):
        assert last[f"{column}_top5"] == pytest.approx(means[column], rel=1e-12)
    assert score_again(job).items() <= last.items()


def test_a_job_reports_its_whole_curve_at_every_step_and_looking_changes_nothing(job):
    reports = list(run_study_job(job))
    straight = at("trials/0001.pt", replace(job, eval_steps=(6,)))
    unseen = at("trials/0002.pt", replace(job, eval_steps=()))

    steps = [[entry["episode"] for entry in report.curve] for report in reports]
    assert steps == [[2], [2, 4], [2, 4, 6]]
    for report in reports:
        assert report.problem is None
        assert set(report.losses) == set(LOSSES)
        assert report.episodes_per_second > 0
    seconds = [entry["seconds"] for entry in reports[-1].curve]
    assert seconds == sorted(seconds)
    assert scores(finish(straight).curve) == scores(reports[-1].curve)[-1:]
    assert finish(unseen).curve == ()
    for other in (straight, unseen):
        assert_same_weights(kept_weights(other), kept_weights(job))


@pytest.mark.parametrize(
    ("method", "episodes"),
    [
        ("cCov-GAN", [2]),  # at an evaluation step
        ("cCov-GAN", [4]),
        ("cCov-GAN", [1, 3, 5]),  # between the evaluation steps
        *(slow(name, [1, 3, 5]) for name in TRAINED[1:]),
    ],
)
def test_a_job_that_dies_ends_as_if_it_had_not(job, method, episodes, monkeypatch):
    job = job_of(job, method)
    unbroken = at("trials/0001.pt", job)
    for episode in episodes:
        run_until_saved_at(job, episode, monkeypatch)

    first, *_, last = run_study_job(job)

    curve = scores(finish(unbroken).curve)
    assert [entry["episode"] for entry in curve] == [2, 4, 6]
    assert scores(first.curve) == curve[: episodes[-1] // 2], "what was evaluated before"
    assert scores(last.curve) == curve
    assert_same_weights(kept_weights(job), kept_weights(unbroken))


@pytest.mark.parametrize("method", ["cCov-GAN", *UNTRAINED])
def test_a_finished_job_only_reports_its_curve(job, method):
    job = job_of(job, method)
    curve = finish(job).curve
    before = checkpoint_of(job).read()

    (report,) = run_study_job(job)

    assert report == Report(curve)
    assert checkpoint_of(job).read() == before
    assert curve[-1]["episode"] == (6 if method in TRAINED else 0)


def test_a_diverging_job_ends_with_a_problem_and_keeps_its_last_good_state(gaussians, tmp_path):
    job = new_job(gaussians, tmp_path, generator_learning_rate=1e30)
    job = replace(job, eval_steps=(1, 4, 6))

    good, ended = run_study_job(job)

    assert good.problem is None
    assert "cCov-GAN diverged at episode 1" in ended.problem
    assert "\n" not in ended.problem
    assert ended.curve == good.curve
    assert kept_state(job)["run"]["episode"] == 1
    assert [report.problem for report in run_study_job(job)] == [None, ended.problem]


def test_a_state_of_another_job_is_not_taken(job):
    """A machine whose records were lost may have left it under the number of a new trial."""
    finish(job)
    others = [replace(job, seed=4), job_of(job, "AWG"), job_of(job, "LR")]
    others += [job_of(job, "LR", num_draws=3)]  # the same training, which has no episode

    for other in others:
        assert not is_trained(other) or other == others[-1]
        alone = at("trials/0001.pt", other)
        assert scores(finish(other).curve) == scores(finish(alone).curve)
        checkpoint_of(alone).delete()

    assert is_trained(others[-1])


def test_a_storage_that_does_not_answer_is_not_a_problem_of_the_job(job, monkeypatch):
    next(run_study_job(job))

    def fail(*_: object) -> None:
        raise OSError("the storage does not answer")

    for name in ("read_if_exists", "write"):
        with monkeypatch.context() as patch:
            patch.setattr(RemotePath, name, fail)
            with pytest.raises(OSError, match="does not answer"):
                list(run_study_job(job))
    assert finish(job).problem is None


def test_a_lack_of_memory_is_a_problem_of_the_job_after_one_retry(job, monkeypatch):
    train, num_starts = TrainingRun.advance, 0

    def advance(run: TrainingRun, count: int) -> dict[str, float]:
        nonlocal num_starts
        if run.episode >= 4:
            num_starts += 1
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        return train(run, count)

    monkeypatch.setattr(TrainingRun, "advance", advance)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            list(run_study_job(job))
    problem = "out of memory twice: CUDA out of memory. Tried to allocate 2 GiB"
    assert finish(job).problem == finish(job).problem == problem
    assert num_starts == 2

    monkeypatch.setattr(TrainingRun, "advance", train)
    assert finish(replace(job, seed=4)).problem is None, "other settings have their own attempts"


def test_only_a_job_at_its_last_episode_is_trained(job):
    assert not is_trained(job)
    next(run_study_job(job))
    assert not is_trained(job)

    finish(job)
    assert is_trained(job)
    checkpoint_of(job).write(b"damaged")
    assert not is_trained(job)
    assert finish(job).problem.startswith("cannot resume from ")


def test_a_method_that_is_not_trained_is_in_the_job_s_embedding_all_the_same(job):
    spaces = []
    for name in ("c-GAN-PN", "copy-PN"):
        of_row = replace(job_of(job, name), is_illustrated=True)
        *_, last = run_study_job(of_row, is_scored=True)
        spectra = last.part.spectra
        spaces.append(spectra[spectra["method"] == f"{of_row.row}, real"]["share"].tolist())

    assert spaces[0] == spaces[1]
    *_, plain = run_study_job(replace(job_of(job, "copy"), is_illustrated=True), is_scored=True)
    assert plain.part.spectra["share"].tolist()[: len(spaces[0])] != spaces[0]


def test_jobs_of_one_machine_share_an_embedding_and_jobs_of_another_seed_have_another(job):
    job = job_of(job, "c-GAN-PN")
    other = EMBEDDING.with_overrides({"dropout": 0.1})
    changes = ({}, {}, {"seed": 4}, {"embedding": other})
    for number, change in enumerate(changes):
        assert finish(at(f"trials/{number}.pt", replace(job, **change))).problem is None

    kept = sorted(Path("cache/embeddings").rglob("*.pt"))
    assert sorted(path.name for path in kept) == ["PN-seed3.pt", "PN-seed3.pt", "PN-seed4.pt"]
    assert len({path.parent for path in kept}) == 2


def test_a_job_reads_nothing_of_the_test_phase(gaussians, job, tmp_path):
    split = gaussians.split

    def is_allowed(name: str, is_train: bool) -> bool:
        return name in split.validation.base + split.validation.novel or (
            name in split.test.base and is_train
        )

    other = replace(gaussians, table=poisoned(gaussians, is_allowed))
    of_other = new_job(other, tmp_path / "poisoned")

    assert of_other.data.fingerprint != job.data.fingerprint
    assert scores(finish(of_other).curve) == scores(finish(job).curve)
    assert_same_weights(kept_weights(of_other), kept_weights(job))


def test_a_machine_that_does_not_see_the_study_takes_no_work(tmp_path):
    """A machine that joins late may have a different folder of the same name."""
    location = str(tmp_path / "shared")

    with pytest.raises(RuntimeError, match=f"cannot find the study in {location}"):
        check_this_machine(location)

    (RemotePath.at(location) / MARK).write(b"of the machine that started")
    check_this_machine(location)
