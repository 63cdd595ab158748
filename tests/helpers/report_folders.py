"""Small report folders as written by `tune/report.py`, with numbers to check by hand."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.distributions import FloatDistribution, IntDistribution, distribution_to_json

COLUMNS = {"novel": 0.0, "all": 5.0, "base": 20.0, "novel_joint": -5.0, "all_calibrated": 6.0}
"""Offset of each column from the level of a row."""
SHOTS = {1: 0.0, 5: 10.0}
DRAWS = (-1.0, 1.0, -2.0, 0.0, 2.0)
"""Offset of each draw. The first two draws are fixed; both kinds have mean zero."""
NUM_FIXED = 2
LEVELS = {
    ("none", "centroid"): 30.0,
    ("none", "linear"): 32.0,
    ("copy", "centroid"): 36.0,
    ("copy", "linear"): 31.0,
    ("MAML", "own"): 35.0,
    ("PN", "centroid"): 40.0,
    ("PN", "linear"): 33.0,
    ("cCov-GAN-PN", "centroid"): 41.0,
    ("cCov-GAN-PN", "linear"): 45.0,
    ("cCov-GAN-PN: all", "linear"): 39.0,  # the head of the search
}
ABLATION = {"of": "cCov-GAN-PN", "family": "neighbours", "key": "all"}
RUN = {
    "command": "python tune/report.py --name hand",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "time": "2026-11-15T12:43:56+00:00",
    "python": "3.11.7",
    "numpy": "2.4.6",
    "torch": "2.13.0",
}
COST = {"seconds": 600.0, "worker_seconds": 3600.0, "gpu_seconds": 1800.0, "num_uncounted": 0}
SEARCH = {**RUN, "command": "python tune/search.py --name hand"}


def make_scores() -> pd.DataFrame:
    """Return top-5 as level + column + shots + draw; top-1 is 10 below, seeds differ by 1."""
    rows = [
        (*row, column, shots, draw, seed, top5 - 10, top5)
        for row, level in LEVELS.items()
        for column, of_column in COLUMNS.items()
        for shots, of_shots in SHOTS.items()
        for draw, wobble in enumerate(DRAWS)
        for seed, of_seed in ((3, -0.5), (4, 0.5))
        for top5 in [level + of_column + of_shots + wobble + of_seed]
    ]
    names = ["method", "head", "column", "shots", "draw", "seed", "top1", "top5"]
    return pd.DataFrame(rows, columns=names)


RANGES = {
    "cycle_weight": distribution_to_json(FloatDistribution(0.5, 50.0, log=True)),
    "ky_fan_order": distribution_to_json(IntDistribution(1, 20)),
}


def make_trials() -> pd.DataFrame:
    """Return four trials with the columns that a page reads: two complete, two stopped early."""
    return pd.DataFrame(
        {
            "trial": range(4),
            "state": ["complete", "stopped early", "stopped early", "complete"],
            "score": [40.0, 21.0, 35.0, 42.0],
            **dict.fromkeys(("seconds", "worker_seconds"), 90.0),
            "gpu_seconds": 45.0,
            "cycle_weight": [1.0, 2.0, 3.0, 4.0],
            "ky_fan_order": [2, 3, 4, 5],
            "distributions": json.dumps(RANGES),
        }
    )


def _best(method: str) -> dict[str, Any]:
    return {
        "run": {**SEARCH, "worker_seconds": 72.0, "gpu_seconds": 36.0, "num_uncounted": 0},
        "method": method,
        "trial": 3,
        "score": 42.0,
        "parameters": {"cycle_weight": 4.0, "ky_fan_order": 5},
        "head": "linear",
        "num_trials": 4,
    }


def _study() -> dict[str, Any]:
    classes = {"base": ["a", "b"], "novel": ["c", "d", "e"]}
    return {
        "config": {"seed": 0, "early_stopping": True, "novel_weight": 1.0, "all_weight": 1.0},
        "data": {
            "fingerprint": "f1f2f3",
            "split": {"validation": classes, "test": classes, "label_names": None},
        },
        "dimensions": 16,
    }


def _about(scores: pd.DataFrame, *, is_table: bool) -> dict[str, Any]:
    """Return the content of ``report.json``, for a table or for one row and the controls."""
    rows = [
        {
            "name": name,
            "method": name.split(":")[0],
            "seeds": [3, 4],
            "ablation": ABLATION if ":" in name else None,
        }
        for name in dict.fromkeys(scores["method"])
    ]
    searched = [row["name"] for row in rows if row["ablation"] is None]
    searched = searched if is_table else ["cCov-GAN-PN"]
    return {
        "run": RUN,
        "settings": {"num_seeds": 2, "num_fixed_draws": NUM_FIXED, "num_seeded_draws": 3},
        "rows": rows,
        "failed": {"SN": "SN has no scores: it diverged & ended <early>"},
        "test_reads": 7,
        "nodes": [{"CPU": 16.0, "GPU": 1.0, "accelerator_type:H200": 1.0}],
        "num_fixed": NUM_FIXED,
        "cost": COST,
        "studies": {name: _study() for name in searched},
        "best": {name: _best(name) for name in searched},
        "diversity": [
            {"method": name, "shots": k, "draw": draw, "seed": 3, "distance": 9.0, "ratio": ratio}
            for name, ratio in (("copy", 1.1), ("cCov-GAN-PN", 0.8))
            for k in SHOTS
            for draw in range(len(DRAWS))
        ],
        # The validation scores are the same levels.
        "heads": [
            {"method": method, "head": head, "score": level}
            for (method, head), level in sorted(LEVELS.items(), key=lambda item: -item[1])
        ],
    }


def write_report(folder: Path, *, is_table: bool = True) -> Path:
    """Write a report of a study of five rows or one, and its trials."""
    scores = make_scores()
    report = folder / "report"
    report.mkdir(parents=True)
    scores.to_parquet(report / "scores.parquet", index=False)
    (report / "report.json").write_text(json.dumps(_about(scores, is_table=is_table)))
    for place in [folder / "PN", folder / "cCov-GAN-PN"] if is_table else [folder]:
        place.mkdir(exist_ok=True)
        make_trials().to_parquet(place / "trials.parquet", index=False)
    return folder
