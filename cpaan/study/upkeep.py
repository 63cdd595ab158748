"""What follows a change of a study: its records, states that nobody needs, and who looks on."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import optuna

from cpaan.study.folder import Study, state_path
from cpaan.study.records import Records
from cpaan.study.searcher import ENDED, best_trials
from cpaan.study.storage import Storage

_TIMES_AS_LONG = 20
"""As the last upkeep took, nothing is done after it: a twentieth of the time at most."""
_AT_ONCE = 16  # requests to a storage far away, which answers each after a while


class Upkeep:
    """Brings everything up to what the Optuna study knows, as often as that costs little.

    All of it is work on all trials: after each change, it would soon be all that a search of
    thousands of trials does. Nothing depends on it but what people see, and where a study goes on
    from on another machine. What was lost there is done again, and comes out the same.
    """

    def __init__(
        self,
        study: Study,
        optuna_study: optuna.Study,
        records: Records,
        show: Callable[[optuna.Study], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what it is about.

        Args:
            study: All settings.
            optuna_study: Its trials.
            records: Its files.
            show: Takes the state of all trials.
            clock: In seconds.
        """
        self._study, self._optuna_study = study, optuna_study
        self._records, self._show, self._clock = records, show, clock
        self._storage = Storage(study.storage)
        self._forgotten: set[int] = set()
        self._is_behind = False
        self._waits_until = float("-inf")

    def changed(self) -> None:
        """Take note of a change, and catch up if it is time."""
        self._is_behind = True
        self.catch_up()

    def catch_up(self) -> None:
        """Do what is left to do, if it is time; called again and again."""
        if self._is_behind and self._clock() >= self._waits_until:
            self.finish()

    def finish(self) -> None:
        """Do what is left to do."""
        if not self._is_behind:
            return
        started = self._clock()
        self.write()
        self.forget()
        self.show()
        self._is_behind = False  # only now: what failed is left to do
        ended = self._clock()
        self._waits_until = ended + _TIMES_AS_LONG * (ended - started)

    def write(self) -> None:
        """Bring the records up to date."""
        self._records.update(self._optuna_study, self._study.config)

    def forget(self) -> None:
        """Remove what only a trial that goes on would need; the best few stay for the end."""
        config = self._study.config
        best = best_trials(self._optuna_study, config.num_finalists)
        needed = {trial.number for trial in best}
        ended = self._optuna_study.get_trials(deepcopy=False, states=ENDED)
        numbers = {trial.number for trial in ended} - needed - self._forgotten
        paths = [state_path(number, config.seed) for number in sorted(numbers)]
        with ThreadPoolExecutor(_AT_ONCE) as pool, suppress(OSError):  # it is tried again
            list(pool.map(self._storage.delete, paths))
            self._forgotten |= numbers

    def begin_anew(self, number: int) -> None:
        """Remove the state of a trial of this number that nobody knows of any more.

        It may have been proposed by a machine that was lost before its records were copied, and
        the trial of that number is another one now.
        """
        if self._study.elsewhere is not None:
            self._storage.delete(state_path(number, self._study.config.seed))

    def show(self) -> None:
        """Show how trials stand."""
        self._show(self._optuna_study)
