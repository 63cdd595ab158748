"""The end of a search: its best trials, scored again, and the one that is best then."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from cpaan.core.provenance import describe_run
from cpaan.methods.registry import num_episodes_of, with_episodes
from cpaan.study.config import StudyConfig
from cpaan.study.fleet import JobFailedError, WorkLostError, collect, start
from cpaan.study.folder import Study
from cpaan.study.job import score_job
from cpaan.study.records import BEST, read_json
from cpaan.study.searcher import ENDED, best_trials, settled_of
from cpaan.study.space import Settled
from cpaan.study.trial import Trial

_FRESH_DRAWS = 1  # what is added to the seed of the draws


def known_best(study: Study, num_ended: int) -> dict[str, Any] | None:
    """Return the best that an earlier run has chosen, if there was no trial since."""
    if not (study.folder / BEST).exists():
        return None
    best = read_json(study.folder, BEST)
    return best if best["num_trials"] == num_ended else None


def choose_best(
    study: Study,
    optuna_study: optuna.Study,
    say: Callable[[str], None],
    num_at_once: int,
    deadline: float | None = None,
) -> dict[str, Any] | None:
    """Score the best trials again, with fresh draws and more seeds; return the best of them.

    The highest of many scores is high by luck too. Draws and seeds that took no part in choosing
    the finalists tell how high it is without.

    Args:
        study: All settings.
        optuna_study: Its trials.
        say: Called with a line for each score.
        num_at_once: Trainings at a time.
        deadline: Of the monotonic clock, when the rest is left for later.

    Returns:
        What ``best.json`` says; None if there was no finalist, or no time.

    Raises:
        WorkLostError: If machines or processes failed more often than is forgiven.
    """
    config = study.config
    finalists = best_trials(optuna_study, config.num_finalists)
    if not finalists:
        return None
    seeds = range(config.seed, config.seed + config.num_final_seeds)
    draws = {
        "num_draws": config.num_final_draws,
        "draw_seed": study.evaluation.draw_seed + _FRESH_DRAWS,
    }
    work = {}
    for trial in finalists:
        for seed in seeds:
            job = study.job(trial.number, in_full(settled_of(trial, config), config), seed)
            job = replace(job, evaluation=job.evaluation.with_overrides(draws))
            if config.final_length > 1:  # a training of its own, beside the trial's
                job = replace(job, path=f"finals/{trial.number:04d}-seed{seed}.pt")
            work[trial.number, seed] = partial(start, _score, Trial(trial.number, job, config))
    say(
        f"scoring the best {len(finalists)} again: {config.num_final_draws} fresh draws, "
        f"{len(seeds)} seeds"
    )
    found: dict[int, dict[int, tuple[float, float]]] = {trial.number: {} for trial in finalists}
    dropped: dict[int, str] = {}
    began, done = time.monotonic(), 0
    for (number, seed), scores in collect(work, num_at_once, deadline):
        if isinstance(scores, WorkLostError):
            raise scores
        done += 1
        left = (time.monotonic() - began) / done * (len(work) - done)
        count = f"({done} of {len(work)}, about {left:.0f} s left)"
        if isinstance(scores, JobFailedError):
            dropped[number] = f"with seed {seed}, {scores}"
            say(f"trial {number} is no finalist: {dropped[number]} {count}")
            continue
        found[number][seed] = scores
        say(f"trial {number}, seed {seed}: LSL {scores[0]:.2f}, GLSL {scores[1]:.2f} {count}")
    if done < len(work):
        return None
    rows = [
        _final_row(study, trial, found[trial.number])
        for trial in finalists
        if trial.number not in dropped
    ]
    if not rows:
        return None
    best = max(rows, key=lambda row: (row["score"], -row["trial"]))
    return {
        "run": describe_run(),
        "method": config.method,
        **best,
        "head": config.head,
        "phase": "validation",
        "num_trials": len(optuna_study.get_trials(deepcopy=False, states=ENDED)),
        "num_draws": config.num_final_draws,
        "draw_seed": draws["draw_seed"],
        "features": study.data.fingerprint,
        "dropped": {str(number): reason for number, reason in dropped.items()},
        "finalists": [
            {name: row[name] for name in row if name not in ("training", "evaluation")}
            for row in rows
        ],
    }


def in_full(settled: Settled, config: StudyConfig) -> Settled:
    """Return the settings of a trial with the length of training that finalists have."""
    num_episodes = num_episodes_of(settled.training) * config.final_length
    return replace(settled, training=with_episodes(settled.training, num_episodes))


def _score(trial: Trial, device: Any) -> tuple[float, float]:
    return score_job(trial.job, device)


def _final_row(
    study: Study, trial: FrozenTrial, found: dict[int, tuple[float, float]]
) -> dict[str, Any]:
    novel, everything = (sum(values) / len(found) for values in zip(*found.values(), strict=True))
    settled = in_full(settled_of(trial, study.config), study.config)
    return {
        "trial": trial.number,
        "score": study.config.score(novel, everything),
        "novel_top5": novel,
        "all_top5": everything,
        "score_in_search": trial.values[0],
        "score_by_seed": {
            str(seed): study.config.score(*scores) for seed, scores in sorted(found.items())
        },
        "parameters": trial.params,
        "training": settled.training.to_dict(),
        "evaluation": settled.evaluation.to_dict(),
    }
