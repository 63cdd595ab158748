"""What follows a change of a study: its records, states that nobody needs, and who looks on."""

from collections.abc import Callable

import optuna

from cpaan.study.folder import Study, state_path
from cpaan.study.records import Records
from cpaan.study.searcher import ENDED, best_trials
from cpaan.study.storage import Storage


class Upkeep:
    """Brings everything up to what the Optuna study knows."""

    def __init__(
        self,
        study: Study,
        optuna_study: optuna.Study,
        records: Records,
        show: Callable[[optuna.Study], None],
    ) -> None:
        """Keep what it is about.

        Args:
            study: All settings.
            optuna_study: Its trials.
            records: Its files.
            show: Takes the state of all trials.
        """
        self._study, self._optuna_study = study, optuna_study
        self._records, self._show = records, show
        self._forgotten: set[int] = set()

    def changed(self) -> None:
        """Do all of it."""
        self.write()
        self.forget()
        self.show()

    def write(self) -> None:
        """Bring the records up to date."""
        self._records.update(self._optuna_study, self._study.config)

    def forget(self) -> None:
        """Remove what only a trial that goes on would need; the best few stay for the end."""
        config = self._study.config
        kept = {t.number for t in best_trials(self._optuna_study, config, config.num_finalists)}
        storage = Storage(self._study.storage)
        for trial in self._optuna_study.get_trials(deepcopy=False, states=ENDED):
            if trial.number not in kept | self._forgotten:
                storage.delete(state_path(trial.number, config.seed))
                self._forgotten.add(trial.number)

    def show(self) -> None:
        """Show how trials stand."""
        self._show(self._optuna_study)
