"""Connect Optuna to Ray Tune: propose trials for all rows of a study, and record their results.

A search resumes from its Optuna studies: trials that have ended are kept, and unfinished trials run
again under their numbers.
"""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from cpaan.core.randomness import new_rng, word_of
from cpaan.evaluation.job import EPISODE, Job
from cpaan.study.config import StudyConfig
from cpaan.study.records import ENDED, RowRecords
from cpaan.study.row import RECOMMENDED, StudyRow
from cpaan.study.study import OPTUNA, Study
from cpaan.study.trial import CURVE, PROBLEM, SCORE

WHOSE = "whose"
NUM_RANDOM = 6
"""Number of trials before the sampler uses results: our settings, and random proposals."""


class RowSearch:
    """The search of one row: its Optuna study and its records."""

    def __init__(self, study: Study, row: StudyRow) -> None:
        self.study, self.row = study, row
        self.trials = open_trials(study, row)
        self.records = RowRecords(study, row, self.trials)
        self.eval_steps = row.config.eval_steps(row.num_episodes)
        running = self.trials.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        self._unfinished = deque(running)
        self.num_to_propose = self.num_left
        self.best: dict[str, Any] | None = None
        """Content of ``best.json``; None until all trials have ended and the best is chosen."""

    @property
    def num_ended(self) -> int:
        """Number of trials that have ended."""
        return len(self.trials.get_trials(deepcopy=False, states=ENDED))

    @property
    def num_left(self) -> int:
        """Number of trials that have not ended yet."""
        return max(0, self.row.config.num_trials - self.num_ended)

    @property
    def failed(self) -> list[FrozenTrial]:
        """Trials without a score because of a problem."""
        every = self.trials.get_trials(deepcopy=False)
        return [trial for trial in every if trial.user_attrs.get(PROBLEM) is not None]

    def propose(self) -> tuple[optuna.Trial, Job]:
        """Return an unfinished trial, or a new one."""
        self.num_to_propose -= 1
        if self._unfinished:
            known = self._unfinished.popleft()
            self._seed_sampler(known.number)  # its proposal may be incomplete
            trial = optuna.Trial(self.trials, known._trial_id)
        else:
            started = self.trials.get_trials(deepcopy=False, states=(*ENDED, TrialState.RUNNING))
            self._seed_sampler(len(started))
            self._enqueue_point(len(started))
            trial = self.trials.ask()
        resolved = self.row.propose(trial, trial.user_attrs.get(WHOSE, RECOMMENDED))
        trial.set_user_attr("training", resolved.training.to_dict())
        trial.set_user_attr("evaluation", resolved.evaluation.to_dict())
        self.records.changed()
        resolved, seed = self.row.for_score(resolved), self.row.config.seed
        job = self.study.job(self.row, trial.number, resolved, seed)
        return trial, replace(job, eval_steps=self.eval_steps)

    def _enqueue_point(self, number: int) -> None:
        """Enqueue our settings first, and those of the source after the random trials or last.

        The source's settings have no parameters, so the sampler learns nothing from them.
        """
        known = {trial.user_attrs.get(WHOSE) for trial in self.trials.get_trials(deepcopy=False)}
        left = [whose for whose in self.row.points if whose not in known]
        if left and (left[0] == RECOMMENDED or number >= NUM_RANDOM or not self.num_to_propose):
            self.trials.enqueue_trial(self.row.point(left[0]), user_attrs={WHOSE: left[0]})

    def _seed_sampler(self, number: int) -> None:
        """Create a sampler for one proposal, with a seed from the row and the number of the trial.

        Proposals then depend on the seed and the known results only, not on the earlier proposals
        of this process. Rows with the same search space try different points.
        """
        rng = new_rng(self.row.config.seed, number, word_of(self.row.method))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.trials.sampler = optuna.samplers.TPESampler(
                seed=rng.initial_seed() % 2**32,  # as many bits as Optuna accepts
                n_startup_trials=NUM_RANDOM,
                multivariate=True,
                group=True,
                constant_liar=True,
            )

    def note(self, trial: optuna.Trial, result: dict[str, Any]) -> None:
        """Record the new evaluations of a trial."""
        known = trial.user_attrs.get(CURVE, [])
        if len(result[CURVE]) > len(known):
            for entry in result[CURVE][len(known) :]:
                trial.report(self.row.config.score(entry), entry[EPISODE])
            trial.set_user_attr(CURVE, result[CURVE])
        if result[PROBLEM] is not None or PROBLEM in trial.user_attrs:
            trial.set_user_attr(PROBLEM, result[PROBLEM])

    def tell(self, trial: optuna.Trial, result: dict[str, Any] | None) -> None:
        """Record how a trial ended.

        A trial whose processes died too often stays unfinished, because its parameters are not the
        cause. A resumed search runs it again.
        """
        if result is None:
            trial.set_user_attr(PROBLEM, "its processes failed too many times, or could not start")
            return
        self.note(trial, result)
        if result[PROBLEM] is not None:
            self.trials.tell(trial, state=TrialState.FAIL)
        elif result[EPISODE] < self.row.num_episodes:
            self.trials.tell(trial, state=TrialState.PRUNED)
        else:
            self.trials.tell(trial, result[SCORE])


class OptunaSearcher(Searcher):
    """Searcher that proposes trials to Ray Tune row by row, and records their results.

    Ray's `OptunaSearch` (2.60) records a trial that the scheduler stops as complete, with its last
    score, which misleads the sampler. It also searches a single space.
    """

    def __init__(self, searches: Sequence[RowSearch]) -> None:
        super().__init__(metric=SCORE, mode="max")
        self._searches = searches
        self._trials: dict[str, tuple[RowSearch, optuna.Trial]] = {}
        self.failure: Exception | None = None
        """First error of the records. It is not raised at once, because Ray Tune would treat it as
        an error of the trial and run the trial again."""

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return an unfinished or new trial of the first row that has trials left."""
        with self.recording():
            search = next((search for search in self._searches if search.num_to_propose), None)
            if search is not None:
                trial, job = search.propose()
                self._trials[trial_id] = search, trial
                return {
                    "job": job,
                    "number": trial.number,
                    "study": search.row.config,
                    "storage": search.study.storage,
                }
        return None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Catch errors of the records, and keep the first one in `failure`."""
        try:
            yield
        except (OSError, optuna.exceptions.OptunaError) as error:
            self.failure = self.failure or error

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Record the new evaluations of a trial."""
        with self.recording():
            search, trial = self._trials[trial_id]
            search.note(trial, result)
            search.records.changed()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record how a trial ended."""
        with self.recording():
            search, trial = self._trials[trial_id]
            search.tell(trial, None if error else result)
            search.records.changed()

    def note_error(self, trial_id: str, reason: str) -> None:
        """Record why the processes of a trial failed."""
        with self.recording():
            self._trials[trial_id][1].set_user_attr(PROBLEM, reason)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing, because the Optuna storage has the whole state."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing, because the Optuna storage has the whole state."""


class RowScheduler(FIFOScheduler):
    """Stop trials early by asynchronous successive halving (ASHA) on episodes, within each row.

    Trials of earlier runs count. A trial is compared at every rung of its curve, including rungs
    whose reports were lost. Ray Tune (2.60) does not save the rungs of its `ASHAScheduler`, so they
    would be empty in a resumed search.
    """

    def __init__(self, searches: Sequence[RowSearch]) -> None:
        super().__init__()
        self._rows: dict[str, tuple[StudyConfig, ASHAScheduler]] = {}
        self._curves: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for search in searches:
            config, (*rungs, _) = search.row.config, search.eval_steps
            if not (config.early_stopping and rungs):
                continue
            asha = ASHAScheduler(
                time_attr=EPISODE,
                metric=SCORE,
                mode="max",
                grace_period=rungs[0],
                # The end is not a rung, because a trial that reaches it is complete.
                max_t=1.5 * rungs[-1],  # type: ignore[arg-type]  # any number is valid
                reduction_factor=config.reduction_factor,
                stop_last_trials=False,
            )
            self._rows[config.method] = config, asha
            for known in search.trials.get_trials(deepcopy=False):
                number = known.number
                self._curves[config.method, number] = known.user_attrs.get(CURVE, [])
                if known.state in ENDED:
                    about = {"job": SimpleNamespace(method=config.method), "number": number}
                    trial = SimpleNamespace(trial_id=f"earlier-{number}", config=about)
                    self.on_trial_add(None, trial)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial at the rung that it had reached in an earlier run."""
        method, number = trial.config["job"].method, trial.config["number"]
        if method in self._rows:
            self._rows[method][1].on_trial_add(tune_controller, trial)
            curve = self._curves.get((method, number), [])
            self.on_trial_result(tune_controller, trial, {CURVE: curve})

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return the decision whether a trial continues."""
        decisions = []
        if (method := trial.config["job"].method) in self._rows:
            config, asha = self._rows[method]
            for entry in result[CURVE]:
                known = {EPISODE: entry[EPISODE], SCORE: config.score(entry)}
                decisions.append(asha.on_trial_result(tune_controller, trial, known))
        return self.STOP if self.STOP in decisions else self.CONTINUE


def open_trials(study: Study, row: StudyRow) -> optuna.Study:
    """Open the Optuna study of a row, or create it."""
    path, published = study.database_of(row), study.folder / study.path_of(row, OPTUNA)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path != published.resolve():  # it may be of another machine, or newer than the copy
        path.unlink(missing_ok=True)
        if published.exists():
            path.write_bytes(published.read_bytes())
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name="cpaan",
        direction="maximize",
        load_if_exists=True,
    )
