"""Small studies, their trials and their rows."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import optuna

from cpaan import EvaluationConfig, Phase, Split, open_features, write_features
from cpaan.methods.registry import ROWS
from cpaan.study.config import PRESETS, DataReference, StudyConfig
from cpaan.study.folder import Study
from cpaan.study.gan_space import GanSpace
from cpaan.study.job import Evaluation, Job, Report
from cpaan.study.records import OPTUNA
from cpaan.study.report_rows import Row
from cpaan.study.searcher import OptunaSearcher, enqueue_points, open_study
from cpaan.study.space import Settled, Space
from cpaan.study.trial import to_metrics
from helpers.gan_runs import SMALL

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
}
"""Of a study that is small in everything, as ``--set`` takes them."""


def new_space(method: str = "cCov-GAN", preset: str = "quick", **fields: object) -> Space:
    """Around a preset, on data like the built-in ones: 512 dimensions, 100 base classes."""
    training, evaluation = PRESETS[preset].recommended(method)
    settings = {"training": training, "evaluation": evaluation, "num_dims": 512, "num_base": 100}
    return GanSpace(method=method, **{**settings, "wide": False, **fields})


CONFIG = StudyConfig(num_trials=12)


MARKS = CONFIG.eval_steps(200)


SPACE = new_space(training=new_space().training.with_overrides({"num_episodes": MARKS[-1]}))


def result_of(
    scores: Sequence[float], config: StudyConfig = CONFIG, problem: str | None = None
) -> dict:
    """Return what a trial reports that had these scores at its marks, ten seconds each.

    LSL is ten points above the score, and GLSL as much below.
    """
    curve = [
        Evaluation(mark, score + 10, score - 10, 10.0 * number)
        for number, (mark, score) in enumerate(zip(MARKS, scores, strict=False), start=1)
    ]
    return to_metrics(Report(tuple(curve), problem=problem), config)


class Search:
    """A study whose trials are run by hand; made anew on the same file, it was restarted."""

    def __init__(self, folder: Path, config: StudyConfig = CONFIG) -> None:
        self.config = config
        self.study = open_study(folder / OPTUNA, config)
        enqueue_points(self.study, SPACE)
        self.num_changes = 0
        self.searcher = OptunaSearcher(
            self.study,
            SPACE,
            config,
            make_trial=lambda number, settled: SimpleNamespace(number=number, settled=settled),
            changed=self._count,
        )

    def _count(self) -> None:
        self.num_changes += 1

    def suggest(self, trial_id: str) -> SimpleNamespace:
        return self.searcher.suggest(trial_id)["trial"]

    def report(self, trial_id: str, *scores: float) -> None:
        self.searcher.on_trial_result(trial_id, result_of(scores, self.config))

    def end(self, trial_id: str, *scores: float, problem: str | None = None) -> None:
        result = result_of(scores, self.config, problem)
        self.searcher.on_trial_complete(trial_id, result)

    def run(self, trial_id: str, *scores: float) -> None:
        self.suggest(trial_id)
        self.end(trial_id, *scores)

    def trial(self, number: int) -> optuna.trial.FrozenTrial:
        return self.study.get_trials()[number]

    def parameters(self) -> list[dict]:
        return [trial.params for trial in self.study.get_trials()]


# Synthetic examples outweigh the real ones, so that a small change of the generator shows.
QUICK = EvaluationConfig(
    shots=(1, 5), num_draws=2, num_synthetic=10, mixing_shots=50.0, heads=("cosine",)
)


def new_job(gaussians, folder: Path, path: str = "trials/0000.pt", **settings: object) -> Job:
    """Six large steps, evaluated after two, four and all of them."""
    folder.mkdir(exist_ok=True)
    features = folder / "features.parquet"
    write_features(features, gaussians.table)
    return Job(
        method="cCov-GAN",
        training=SMALL.with_overrides(
            {"num_episodes": 6, "generator_learning_rate": 0.03, **settings}
        ),
        evaluation=QUICK,
        seed=3,
        eval_steps=(2, 4, 6),
        data=DataReference.of(open_features(features), gaussians.split, [str(features)]),
        storage=str(folder / "storage"),
        path=path,
    )


def scores(curve: tuple[Evaluation, ...]) -> list[tuple[int, float, float]]:
    """Return a curve without its seconds, which no two runs share."""
    return [(entry.episode, entry.novel_top5, entry.all_top5) for entry in curve]


def best_row(method: str, *, num_base: int = 50, **settings: object) -> Row:
    """The best of a study of data with twice as many base classes."""
    training = ROWS[method].config.with_overrides(settings)
    classes = [str(number) for number in range(2 * num_base + 2)]
    split = Split(
        Phase(tuple(classes[:num_base]), (classes[-2],)),
        Phase(tuple(classes[num_base:-2]), (classes[-1],)),
        label_names=None,
    )
    study = Study(
        config=StudyConfig(method=method, head=ROWS[method].head),
        training=training,
        evaluation=EvaluationConfig(),
        data=DataReference((), split, "0123"),
        num_dims=512,
        folder=Path("study"),
    )
    return Row(method, method, Settled(training, EvaluationConfig()), (3, 4, 5), study, 7)
