"""Compare gains in LSL for 25, 50 and 76 base classes, on the validation classes.

    python results/plus/base_classes.py            # about 25 minutes on one H200
    python results/plus/base_classes.py --small    # a trial: a few minutes on two idle cores
    python results/plus/base_classes.py --table    # print and draw the stored scores

The first command writes base_classes.parquet and prints Markdown tables. Finished parts are kept in
results/base-classes-parts, so the same command at the same commit resumes. The third one also
writes base_classes.svg, and needs no GPU. The novel classes of the test phase are never read. The
train rows of its base classes are, as in every evaluation.

* Replicate r has training seed r. Its 25 base classes are a random part of its 50, and these of all
  76; the two phases keep their shares. The novel classes and draws are the same everywhere.
* The backbone was trained on all 76 base classes. Only methods and heads have fewer of them.
* Settings are those of the search with 76 base classes, results/tiny-imagenet. GANs are trained as
  long as a trial. With 25 base classes, their episodes have 10 ways instead of 20, which leaves 15
  base classes. PN and AWG use all base classes in every episode, so they need no change.
* A perplexity is at most half of the number of base classes to choose from, or 10 if this is more.
  This is the bound of the search. It lowers copy-PN and CP-AAN+ with 25 base classes.
* Rows in the embedding of PN use its recommended settings, as in the search.
* Synthetic examples have the weight of the search, and in other tables the recommended weight of
  two shots. Both use the same training, so the second costs only its evaluation.
* A gain is in the heads of the searches. PN and AWG have another head than their control, none.
* Intervals are over draws and replicates; each is for a single comparison.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cpaan.core.devices import choose_device
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.builtin import builtin_features
from cpaan.data.reference import DataReference
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, Split, shuffled
from cpaan.evaluation.executors import LocalExecutor
from cpaan.evaluation.job import Job, Part, Reader
from cpaan.evaluation.parts import PartCache, PartKey, run_parts
from cpaan.evaluation.scoring import draw_phase
from cpaan.gan.config import TrainConfig
from cpaan.methods.registry import ROWS, with_episodes
from cpaan.methods.table_row import PN
from cpaan.protocol.config import EvaluationConfig, NeighbourSettings
from cpaan.protocol.statistics import Crossed, crossed_cells
from cpaan.representation.config import EmbeddingConfig

RESULTS = Path(__file__).resolve().parents[1]
SCORES, PARTS = RESULTS / "plus" / "base_classes.parquet", RESULTS / "base-classes-parts"
PAIRS = [
    *[(row, "none") for row in ("copy", "PN", "AWG", "cCov-GAN", "CP-AAN+")],
    *[(row, "copy") for row in ("cCov-GAN", "CP-AAN+")],
    *[(row, "none-PN") for row in ("copy-PN", "cCov-GAN-PN", "CP-AAN+-PN")],
    *[(row, "copy-PN") for row in ("cCov-GAN-PN", "CP-AAN+-PN")],
]
"""Rows and their controls."""
METHODS = tuple(dict.fromkeys(name for row, control in PAIRS for name in (control, row)))
SEARCHED = RESULTS / "tiny-imagenet"
BEST = {row: json.loads((SEARCHED / row / "best.json").read_text()) for row in METHODS}

Cells = Mapping[tuple[Any, ...], Crossed]
"""Scores by draws and replicates, by row, head, weight, shots and number of base classes."""

NUMBERS, NUM_REPLICATES = (25, 50, 76), 3
WEIGHTS = "searched", "recommended"
NUM_EPISODES, NUM_WAYS = 10_000, {25: 10, 50: 20, 76: 20}  # of GANs
RECOMMENDED = {"mixing_shots": 2.0, "num_synthetic": 100}
EVALUATION: dict[str, Any] = {
    "shots": (1, 2, 5),
    "num_draws": 20,
    "draw_seed": 1,
    "heads": ("centroid", "cosine", "linear"),
    "novel_bias": 0.0,  # a bias has no effect on LSL, and scores with all biases take long
}
SMALL_EVALUATION = {"shots": (1, 5), "num_draws": 2, "linear_num_steps": 20}


def reduce_base(split: Split, num_base: int, replicate: int) -> Split:
    """Return a split with the first base classes of each phase in the replicate's random order."""
    share, phases = num_base / len(split.base_classes()), {}
    for name, phase in split.phases.items():
        order = shuffled(len(phase.base), replicate)[: round(share * len(phase.base))]
        phases[name] = replace(phase, base=tuple(phase.base[place] for place in sorted(order)))
    return Split(phases[VALIDATION_PHASE], phases[TEST_PHASE], split.label_names)


def bound(settings: NeighbourSettings, num_related: int) -> dict[str, float]:
    """Return the override of a perplexity for this number of base classes to choose from."""
    assert settings.perplexity is not None
    return {"perplexity": min(settings.perplexity, max(num_related / 2, 10.0))}


def variants_of(
    row: str, num_base: int, is_small: bool
) -> tuple[tuple[Settings, EvaluationConfig], ...]:
    """Return settings with the searched weight, then with the recommended one if it differs."""
    training: Settings = ROWS[row].method.config.from_dict(BEST[row]["training"])
    evaluation = EvaluationConfig(**BEST[row]["evaluation"]).with_overrides(EVALUATION)
    evaluation = evaluation.with_overrides(bound(evaluation, num_base))
    if isinstance(training, TrainConfig):  # a GAN
        sizes = {"num_episodes": NUM_EPISODES, "num_ways": NUM_WAYS[num_base]}
        related = bound(training, num_base - NUM_WAYS[num_base])
        training = training.with_overrides({**sizes, **related})
    if is_small:
        training = with_episodes(training.with_overrides(ROWS[row].method.quick), 10)
        evaluation = evaluation.with_overrides(SMALL_EVALUATION)
    both = dict.fromkeys([evaluation, evaluation.with_overrides(RECOMMENDED)])
    return tuple((training, each) for each in both)


def score_replicate(replicate: int, is_small: bool) -> pd.DataFrame:
    """Train and score all rows with all numbers of base classes, or load their cached parts."""
    torch.set_num_threads(max(1, torch.get_num_threads() // NUM_REPLICATES))
    table, split = builtin_features()
    embedding = EmbeddingConfig().with_overrides(ROWS[PN].method.quick if is_small else {})
    cache, device, frames = PartCache(RemotePath.at(PARTS)), str(choose_device(None)), []
    for num_base in NUMBERS:
        data, jobs = DataReference.of(table, reduce_base(split, num_base, replicate), None), {}
        for row in METHODS:
            variants = variants_of(row, num_base, is_small)
            training, evaluation = variants[0]
            jobs[PartKey(row, replicate)] = Job(
                row=row,
                method=row,
                training=training,
                embedding=embedding if ROWS[row].is_embedded else None,
                evaluation=evaluation,
                seed=replicate,
                data=data,
                phase=VALIDATION_PHASE,
                draws=draw_phase(table, data.split, VALIDATION_PHASE, evaluation),
                diversity_draws=range(0),
                variants=variants,
                device=device,
            )
        execute = LocalExecutor(reader=Reader({table.fingerprint: table}))
        say = partial(print, f"{num_base} base classes,", file=sys.stderr, flush=True)
        for key, part in run_parts(jobs, execute, cache, say).items():
            if isinstance(part, Part):  # otherwise its training diverged; the reason is printed
                found = part.scores[part.scores["column"] == "novel"]
                numbered = enumerate(jobs[key].variants)
                weights = {str(number): each.mixing_shots for number, (_, each) in numbered}
                weight = found["method"].map(weights)
                frames.append(found.assign(method=key.row, mixing_shots=weight, base=num_base))
    columns = ["method", "head", "mixing_shots", "base", "shots", "seed", "draw", "top5"]
    return pd.concat(frames)[columns].round({"top5": 4})


def gains_of(cells: Cells, row: str, control: str, weight: str, shots: int) -> list[Crossed]:
    """Return the gain of a row over its control, for each number of base classes."""

    def cell(name: str, num_base: int) -> Crossed:
        settings = {**BEST[name]["evaluation"], **(RECOMMENDED if weight == "recommended" else {})}
        return cells[name, BEST[name]["head"], settings["mixing_shots"], shots, num_base]

    return [cell(row, num_base).minus(cell(control, num_base)) for num_base in NUMBERS]


def lines_of(cells: Cells) -> Iterator[str]:
    """Return the Markdown tables: gains by number of base classes, and how much they grow."""
    for weight, shots in product(WEIGHTS, (1, 5)):
        yield f"\nGain in LSL top-5 with the {weight} weight, K = {shots}, and its 95 % interval\n"
        yield f"| row | head | over | {' | '.join(map(str, NUMBERS))} | growth, 25 to 76 |"
        yield "|---|---|---|" + "---|" * (len(NUMBERS) + 1)
        for row in ("none", "none-PN"):
            head, share = BEST[row]["head"], BEST[row]["evaluation"]["mixing_shots"]
            of = [cells[row, head, share, shots, number].values.mean() for number in NUMBERS]
            yield f"| {row} | {head} | accuracy | {' | '.join(f'{x:.1f}' for x in of)} | |"
        for row, control in PAIRS:
            gains = gains_of(cells, row, control, weight, shots)
            estimates = [each.estimate() for each in (*gains, gains[-1].minus(gains[0]))]
            texts = [f"{each.mean:+.2f} ± {each.interval():.2f}" for each in estimates]
            yield f"| {row} | {BEST[row]['head']} | {control} | {' | '.join(texts)} |"


def draw(cells: Cells) -> bytes:
    """Return an SVG file of the gains over no augmentation at one shot, a panel for each weight."""
    # Imported here, because a machine that only measures may be without matplotlib.
    from cpaan.report.figures.picture import INK, Picture, drawing, look_of, new_figure

    with drawing():
        figure = new_figure(height=6.5)
        rows = [(row, control) for row, control in PAIRS if control.startswith("none")]
        panels = figure.subplots(len(WEIGHTS), 1, sharex=True, sharey=True)
        for weight, axes in zip(WEIGHTS, panels, strict=True):
            axes.axhline(0, color=INK, lw=0.9)
            for number, pair in enumerate(rows):
                found = [each.estimate() for each in gains_of(cells, *pair, weight, shots=1)]
                places = [base + number - len(rows) / 2 for base in NUMBERS]  # side by side
                look = look_of(number)
                axes.errorbar(
                    places,
                    [each.mean for each in found],
                    yerr=[each.interval() for each in found],
                    label=f"{pair[0]} over {pair[1]}",
                    **look._asdict(),
                )
            axes.set(title=f"{weight} weight of synthetic examples", ylabel="gain in LSL, points")
        axes.set_xticks(NUMBERS, [str(base) for base in NUMBERS])
        axes.set_xlabel("base classes")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        text = "Gain over no augmentation at one shot against the number of base classes."
        return Picture("base-classes", "Base classes", text, text, figure).file("svg")


def main() -> None:
    """Score all replicates, each in its own process, and print the tables."""
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--small", action="store_true", help="tiny trainings, 2 draws, 2 replicates, no file"
    )
    parser.add_argument("--table", action="store_true", help="print the stored scores only")
    options = parser.parse_args()
    if options.table:
        scores = pd.read_parquet(SCORES)
    else:
        score = partial(score_replicate, is_small=options.small)
        # A pool of replicates starts three processes once. One within each evaluation would start
        # them for every number of base classes, and compile the kernels of the GPU again.
        replicates = range(2 if options.small else NUM_REPLICATES)
        with ProcessPoolExecutor(len(replicates), mp_context=get_context("spawn")) as pool:
            scores = pd.concat(pool.map(score, replicates), ignore_index=True)
        if not options.small:
            scores.to_parquet(SCORES, index=False, compression="zstd")
    cells = crossed_cells(scores, "top5", ["method", "head", "mixing_shots", "shots", "base"])
    for line in lines_of(cells):
        print(line)  # noqa: T201
    if options.table:
        SCORES.with_suffix(".svg").write_bytes(draw(cells))


if __name__ == "__main__":
    main()
