"""Small studies with their trials and rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import optuna

from cpaan import EvaluationConfig, Phase, Split, open_features, write_features
from cpaan.cli import main
from cpaan.data.reference import DataReference
from cpaan.evaluation.job import EPISODE, Job, Part, Report
from cpaan.evaluation.parts import PartKey
from cpaan.evaluation.scoring import TOP5
from cpaan.methods.registry import METHODS, ROWS, with_episodes
from cpaan.study import worker_pool
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.report_rows import MeasuredRow
from cpaan.study.row import Resolved, StudyRow
from cpaan.study.searcher import OptunaSearcher, RowSearch
from cpaan.study.study import Study
from cpaan.study.trial import to_metrics
from helpers.gan_runs import SMALL

search, report = (partial(main, command=name) for name in ("search", "report"))
"""The commands ``tune/search.py`` and ``tune/report.py``, as functions of their arguments."""

STUDY_SETTINGS = {
    "num_ways": "3",
    "episode_shots": "1,2",
    "batch_size": "20",
    "hidden_dim": "12",
    "shots": "1,2",
    "num_draws": "2",
    "num_synthetic": "5",
    "num_finalists": "1",
    "num_final_seeds": "1",
    "num_final_draws": "2",
    "linear_num_steps": "5",
}
"""Settings of a small study, as values of ``--set``."""
SMALL_STUDY = [f"--set={name}={value}" for name, value in STUDY_SETTINGS.items()]

NUM_EPISODES = 200
STEPS = StudyConfig().eval_steps(NUM_EPISODES)


def row_of_preset(
    method: str = "cCov-GAN", preset: str = "quick", *, num_base: int = 50, **fields: object
) -> StudyRow:
    """Return a preset's row on 512-dimensional data with 2 * num_base base classes."""
    training, evaluation = PRESETS[preset].recommended(method)
    classes = [str(number) for number in range(2 * num_base + 2)]
    split = Split(
        Phase(tuple(classes[:num_base]), (classes[-2],)),
        Phase(tuple(classes[num_base:-2]), (classes[-1],)),
        label_names=tuple(classes),
    )
    data = DataReference(("/data/train.hdf5", "/data/test.hdf5"), split, "0123")
    config = StudyConfig(method=method, head=ROWS[method].heads[0])
    return replace(StudyRow(config, training, evaluation, data, num_dims=512), **fields)


def new_row(method: str = "cCov-GAN", *, num_base: int = 50, **config: object) -> StudyRow:
    """Return a row of the quick preset with few episodes."""
    row = row_of_preset(method, num_base=num_base)
    training = with_episodes(row.training, NUM_EPISODES)
    return replace(row, config=row.config.with_overrides(config), training=training)


def new_study(folder: Path, methods: Sequence[str] = ("cCov-GAN",), **config: object) -> Study:
    rows = tuple(new_row(method, **config) for method in methods)
    return Study(rows, folder, has_row_folders=len(rows) > 1)


def result_of(scores: Sequence[float], problem: str | None = None) -> dict:
    """Return the report of a trial with a score for each evaluation step, at ten seconds each.

    LSL is ten points above the score, and calibrated GLSL is ten points below; plain GLSL is
    another point below.
    """
    curve = [
        {
            EPISODE: step,
            **dict(zip(TOP5, (score + 10, score - 11, score - 10), strict=True)),
            "seconds": 10.0 * number,
        }
        for number, (step, score) in enumerate(zip(STEPS, scores, strict=False), start=1)
    ]
    return to_metrics(Report(tuple(curve), problem=problem), StudyConfig())


class HandRunSearch:
    """A search whose trials the test runs; a new instance on the same folder is a restart."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.study = new_study(folder, **config)
        self.row = self.study.rows[0]
        self.search = RowSearch(self.study, self.row)
        self.searcher = OptunaSearcher([self.search])

    def suggest(self, trial_id: str) -> dict:
        return self.searcher.suggest(trial_id)

    def report(self, trial_id: str, *scores: float) -> None:
        self.searcher.on_trial_result(trial_id, result_of(scores))

    def end(self, trial_id: str, *scores: float, problem: str | None = None) -> None:
        self.searcher.on_trial_complete(trial_id, result_of(scores, problem))

    def run(self, trial_id: str, *scores: float) -> None:
        self.suggest(trial_id)
        self.end(trial_id, *scores)

    def trial(self, number: int) -> optuna.trial.FrozenTrial:
        return self.search.trials.get_trials()[number]

    def parameters(self) -> list[dict]:
        return [trial.params for trial in self.search.trials.get_trials()]


def run_here(
    jobs: Mapping[PartKey, Job], start: partial, *_: object
) -> Iterator[tuple[PartKey, Part]]:
    """Do what `run_on_ray` does, but in this process."""
    for key, job in jobs.items():
        yield key, worker_pool._run(job, start.keywords["storage"])


# Synthetic examples outweigh the real ones, so that small changes of the generator have an effect.
QUICK = EvaluationConfig(
    shots=(1, 5), num_draws=2, num_synthetic=10, mixing_shots=50.0, heads=("cosine",)
)


def new_job(gaussians, folder: Path, path: str = "trials/0000.pt", **settings: object) -> Job:
    """Return a job of six large steps, with evaluation steps after two, four and six."""
    folder.mkdir(exist_ok=True)
    features = folder / "features.parquet"
    write_features(features, gaussians.table)
    return Job(
        row="cCov-GAN",
        method="cCov-GAN",
        training=SMALL.with_overrides(
            {"num_episodes": 6, "generator_learning_rate": 0.03, **settings}
        ),
        evaluation=QUICK,
        seed=3,
        eval_steps=(2, 4, 6),
        data=DataReference.of(open_features(features), gaussians.split, [str(features)]),
        checkpoint=str(folder / "storage" / path),
        replaces_checkpoint=True,
    )


def scores(curve: Iterable[dict]) -> list[dict[str, float]]:
    """Return a curve without its seconds, which differ between runs."""
    return [{name: entry[name] for name in (EPISODE, *TOP5)} for entry in curve]


def best_row(method: str, *, num_base: int = 50, **settings: object) -> MeasuredRow:
    """Return the best row of a study with 2 * num_base base classes."""
    training = METHODS[method].config.with_overrides(settings)
    source = new_row(method, num_base=num_base, head=ROWS[method].head)
    resolved = Resolved(training, EvaluationConfig())
    return MeasuredRow(method, method, resolved, (3, 4, 5), source, 7)
