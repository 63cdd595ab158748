"""Optuna's file, as the one process that writes to it may read it."""

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState


class OwnStorage(_CachedStorage):
    """Writes through to the file, and reads again only what this process has written since.

    Optuna reads every unfinished trial anew whenever trials are looked at, since another process
    may have changed it. A proposal looks many times, and hundreds of trials may run: that would be
    most of a search's work. A study is locked, so that there is no other process; what one writes
    all the same is not seen.
    """

    def __init__(self, backend: RDBStorage) -> None:
        """Keep the file's storage."""
        super().__init__(backend)
        self._were_read: set[int] = set()

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        if study_id in self._were_read and not self._studies[study_id].unfinished_trial_ids:
            return
        super()._read_trials_from_remote_storage(study_id)
        self._were_read.add(study_id)
        # What Optuna reads next time: these trials, and those beyond this one.
        study = self._studies[study_id]
        study.unfinished_trial_ids.clear()
        study.last_finished_trial_id = max(self._trial_id_to_study_id_and_number, default=-1)

    def _will_differ(self, trial_id: int) -> None:
        """Have a trial read again; before it is written, since writing may fail half-way."""
        if trial_id in self._trial_id_to_study_id_and_number:
            study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
            self._studies[study_id].unfinished_trial_ids.add(trial_id)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Add a trial."""
        trial_id = super().create_new_trial(study_id, template_trial)
        self._will_differ(trial_id)
        return trial_id

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Write a parameter."""
        self._will_differ(trial_id)
        super().set_trial_param(trial_id, param_name, param_value_internal, distribution)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Write how a trial stands, or ended."""
        self._will_differ(trial_id)
        return super().set_trial_state_values(trial_id, state, values)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Write a score at a mark."""
        self._will_differ(trial_id)
        super().set_trial_intermediate_value(trial_id, step, intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Write what we note of a trial."""
        self._will_differ(trial_id)
        super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Write what Optuna notes of a trial."""
        self._will_differ(trial_id)
        super().set_trial_system_attr(trial_id, key, value)
