"""Optuna behind Ray Tune: proposals, and what became of them.

The Optuna storage is the one record of a study. Whatever dies, a search goes on from it: trials
that ended stay, those that did not are handed out again under their numbers.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from cpaan.study.config import StudyConfig
from cpaan.study.own_storage import OwnStorage
from cpaan.study.space import RECOMMENDED, Settled, Space
from cpaan.study.trial import ALL_TOP5, CURVE, EPISODE, NOVEL_TOP5, PROBLEM, SCORE, Trial

STUDY_NAME = "cpaan"
WHOSE = "whose"
_POINT = "point"
_NUM_RANDOM = 6  # trials before the sampler learns from them
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def open_study(path: Path, config: StudyConfig) -> optuna.Study:
    """Open the Optuna study in a file, or make it; what others write later may not be seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=OwnStorage(RDBStorage(f"sqlite:///{path}")),
        study_name=STUDY_NAME,
        directions=[StudyDirection.MAXIMIZE] * (2 if config.pareto else 1),
        load_if_exists=True,
    )


def enqueue_points(
    study: optuna.Study, space: Space, points: Sequence[dict[str, Any]] = ()
) -> None:
    """Queue the points that a space begins with, then further ones, unless the study has them.

    Args:
        study: Where.
        space: Whose points.
        points: Parameters by name; those that are left out are chosen by the sampler.
    """
    known = [trial.user_attrs for trial in study.get_trials(deepcopy=False)]
    queue: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (space.point(whose), {WHOSE: whose}) for whose in space.points
    ]
    queue += [(dict(point), {_POINT: number}) for number, point in enumerate(points)]
    for parameters, mark in queue:
        if not any(mark.items() <= attributes.items() for attributes in known):
            study.enqueue_trial(parameters, user_attrs=mark)


class OptunaSearcher(Searcher):
    """Hands out trials, and writes down what is reported of them."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        config: StudyConfig,
        make_trial: Callable[[int, Settled], Trial],
        changed: Callable[[], None],
        begin_anew: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Keep the study.

        Args:
            study: With its points queued.
            space: Makes settings of proposals.
            config: The study's settings.
            make_trial: Makes a trial of its number and settings.
            changed: Called after everything that was written down.
            begin_anew: Called with the number of a trial that was not proposed before.
        """
        super().__init__(metric=SCORE, mode="max")
        self._study, self._space, self._config = study, space, config
        self._make_trial, self._changed, self._begin_anew = make_trial, changed, begin_anew
        running = study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        self._unfinished = deque(running)
        self._trials: dict[str, optuna.Trial] = {}
        self.failure: Exception | None = None
        """Why nothing can be written down any more. Raised into Tune, it would be taken for a
        fault of the trial, and the trial be run again."""

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return an unfinished trial, or a new one."""
        with self.noting_failure():
            return self._suggest(trial_id)
        return None

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Take what cannot be written for the end of the search."""
        try:
            yield
        except (OSError, optuna.exceptions.OptunaError) as error:
            self.failure = self.failure or error

    def _suggest(self, trial_id: str) -> dict[str, Any]:
        if self._unfinished:
            known = self._unfinished.popleft()
            self._seed_sampler(known.number)  # should it have died before all was proposed
            trial = optuna.Trial(self._study, known._trial_id)
        else:
            begun = self._study.get_trials(deepcopy=False, states=(*ENDED, TrialState.RUNNING))
            self._seed_sampler(len(begun))
            trial = self._study.ask()
        self._trials[trial_id] = trial
        if "training" not in trial.user_attrs:  # nor was it proposed in full before
            self._begin_anew(trial.number)
        whose = trial.user_attrs.get(WHOSE, RECOMMENDED)
        settled = self._space.propose(trial, whose)
        trial.set_user_attr("training", settled.training.to_dict())
        trial.set_user_attr("evaluation", settled.evaluation.to_dict())
        self._changed()
        return {"trial": self._make_trial(trial.number, settled)}

    def _seed_sampler(self, number: int) -> None:
        """Give every proposal a sampler of its own.

        It depends on the seed and on what is known then, and not on how many others this process
        has made.
        """
        (seed,) = np.random.SeedSequence([self._config.seed, number]).generate_state(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = optuna.samplers.TPESampler(
                seed=int(seed),
                n_startup_trials=_NUM_RANDOM,
                multivariate=True,
                group=True,
                constant_liar=True,
            )

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Write down what is new of a trial's curve."""
        with self.noting_failure():
            self._note(self._trials[trial_id], result)
            self._changed()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna how a trial ended.

        A trial whose processes died too often stays unfinished: it is no fault of its
        parameters, and a search that goes on tries it again.
        """
        with self.noting_failure():
            self._tell(self._trials[trial_id], None if error else result)
            self._changed()

    def _tell(self, trial: optuna.Trial, result: dict[str, Any] | None) -> None:
        if result is None:
            trial.set_user_attr(PROBLEM, "its processes died too often, or could not start")
        else:
            self._note(trial, result)
            if result[PROBLEM] is not None:
                self._study.tell(trial, state=TrialState.FAIL)
            elif result[EPISODE] < self._space.num_episodes:
                self._study.tell(trial, state=TrialState.PRUNED)
            elif self._config.pareto:
                self._study.tell(trial, [result[NOVEL_TOP5], result[ALL_TOP5]])
            else:
                self._study.tell(trial, result[SCORE])

    def _note(self, trial: optuna.Trial, result: dict[str, Any]) -> None:
        known = trial.user_attrs.get(CURVE, [])
        if len(result[CURVE]) > len(known):
            if not self._config.pareto:  # for which Optuna has no intermediate values
                for entry in result[CURVE][len(known) :]:
                    score = self._config.score(entry[NOVEL_TOP5], entry[ALL_TOP5])
                    trial.report(score, entry[EPISODE])
            trial.set_user_attr(CURVE, result[CURVE])
        if result[PROBLEM] is not None or PROBLEM in trial.user_attrs:
            trial.set_user_attr(PROBLEM, result[PROBLEM])

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: all that counts is in the Optuna storage already."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, likewise."""

    def __reduce__(self) -> Any:
        # Tune pickles its searcher for a way to go on that is not ours.
        return (object, ())


class ResumableASHA(ASHAScheduler):
    """Asynchronous successive halving by episodes, which remembers trials of earlier runs."""

    def __init__(self, config: StudyConfig, eval_steps: Sequence[int], study: optuna.Study) -> None:
        """Put the rungs where trials are evaluated, and let ended trials climb them again."""
        *rungs, _ = eval_steps
        super().__init__(
            time_attr=EPISODE,
            metric=SCORE,
            mode="max",
            grace_period=rungs[0],
            # No rung at the end, where a trial is left to itself: it is just about to finish.
            max_t=1.5 * rungs[-1],  # type: ignore[arg-type]  # any number will do
            reduction_factor=config.reduction_factor,
            stop_last_trials=False,
        )
        self._config = config
        known = study.get_trials(deepcopy=False)
        self._curves = {trial.number: trial.user_attrs.get(CURVE, []) for trial in known}
        for ended in study.get_trials(deepcopy=False, states=ENDED):
            of_earlier_run = SimpleNamespace(number=ended.number)
            trial = SimpleNamespace(
                trial_id=f"earlier-{ended.number}", config={"trial": of_earlier_run}
            )
            self.on_trial_add(None, trial)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Let a trial of an earlier run stand where it was: what it has passed, it has passed."""
        super().on_trial_add(tune_controller, trial)
        curve = self._curves.get(trial.config["trial"].number, [])
        self.on_trial_result(tune_controller, trial, {CURVE: curve})

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Judge a trial at every rung that its curve has reached, also where reports were lost."""
        decisions = [
            super(ResumableASHA, self).on_trial_result(
                tune_controller,
                trial,
                {
                    EPISODE: entry[EPISODE],
                    SCORE: self._config.score(entry[NOVEL_TOP5], entry[ALL_TOP5]),
                },
            )
            for entry in result[CURVE]
        ]
        return self.STOP if self.STOP in decisions else self.CONTINUE


def best_trials(study: optuna.Study, config: StudyConfig, count: int) -> list[FrozenTrial]:
    """Return finished trials, the best first.

    With two objectives, those that no other one beats in both come first.
    """
    done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    front = {trial.number for trial in study.best_trials} if done and config.pareto else set()

    def key(trial: FrozenTrial) -> tuple[bool, float, int]:
        is_first = not config.pareto or trial.number in front
        return (is_first, score_of(trial, config), -trial.number)

    return sorted(done, key=key, reverse=True)[:count]


def score_of(trial: FrozenTrial, config: StudyConfig) -> float:
    """Return the score of a finished trial."""
    values: list[float] = trial.values
    return config.score(*values) if config.pareto else values[0]


def settled_of(trial: FrozenTrial, config: StudyConfig) -> Settled:
    """Return the settings of a trial, as they were written down."""
    return Settled.of(config.method, trial.user_attrs["training"], trial.user_attrs["evaluation"])
