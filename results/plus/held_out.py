"""Meta-train generators on classes that the backbone has not seen, and compare all rows.

    python results/plus/held_out.py images tiny-imagenet-lowshot
    python -m cpaan represent --images results/held-out/images --out results/held-out/features
    python results/plus/held_out.py rows

The first command holds out 26 of the 76 base classes, and writes the images that the others need.
The second trains the backbone on the other 50 classes. The third prints a Markdown table of the
validation phase, and writes ``held_out.csv``. It caches finished parts, so the same command
resumes. The test-phase novel classes are not read. The commands take about 10 s, 2 minutes and 20
minutes on one H200 (an estimate).

For a trial of some minutes on two cores, add ``--small`` to the commands of this script and
``--size 16 --epochs 2`` to the other one, and replace held-out by held-out-small.

All 76 classes are base classes of the task. The rows of the table are those of the project, except:

* held-out: meta-novel classes are drawn from the 26 held-out classes only.
* seen: they are drawn from 26 classes of the backbone. This tells the effect of fewer classes.
* (50): the embedding of PN is trained on the 50 classes of the backbone. Other embeddings are
  trained on all 76 classes, so that held-out classes are not new to them.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from cpaan.cli.represent import HOLDOUT
from cpaan.core.devices import choose_device
from cpaan.core.remote_paths import RemotePath
from cpaan.data.builtin import FOLDER as BUILTIN
from cpaan.data.cache import open_features
from cpaan.data.reference import DataReference
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, read_split, shuffled
from cpaan.data.table import TRAIN
from cpaan.evaluation.executors import LocalExecutor, score_part
from cpaan.evaluation.parts import Part, PartCache, PartJob, PartKey, run_parts
from cpaan.evaluation.scoring import draw_phase
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.loop import TrainingRun
from cpaan.methods.adversarial import Adversarial
from cpaan.methods.base import NO_CHECKPOINT
from cpaan.methods.prototypical import Embedded
from cpaan.methods.registry import ROWS, with_episodes
from cpaan.methods.table_row import PN
from cpaan.protocol.calibration import SCORED, calibrate
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.statistics import crossed_cells
from cpaan.protocol.tasks import BaseSet, check_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun
from cpaan.training.workers import Workers

RESULTS = Path(__file__).parents[1]
NUM_HELD_OUT = {VALIDATION_PHASE: 14, TEST_PHASE: 12}  # of the 40 and 36 base classes
NUM_FILES = 2  # of images, 27 MB each
NUM_SEEDS, SHOTS = 3, (1, 2, 5)
SPLIT = read_split(BUILTIN / "split.json")


class Variant(NamedTuple):
    """A row of the table: a method, and the classes that its parts are trained on."""

    method: str
    meta_novel: str = "all"
    embedding: str = "all"


NAMES = ("none", "copy", "PN", "none-PN", "copy-PN", "AWG", "wDAE", "cCov-GAN", "cCov-GAN-PN")
VARIANTS = {
    **{name: Variant(name) for name in (*NAMES, "CP-AAN+", "CP-AAN+-PN")},
    "cCov-GAN, held-out": Variant("cCov-GAN", "held-out"),
    "CP-AAN+, held-out": Variant("CP-AAN+", "held-out"),
    "CP-AAN+, seen": Variant("CP-AAN+", "seen"),
    "CP-AAN+-PN, held-out": Variant("CP-AAN+-PN", "held-out"),
    "copy-PN (50)": Variant("copy-PN", embedding="backbone"),
    "CP-AAN+-PN (50)": Variant("CP-AAN+-PN", embedding="backbone"),
    "CP-AAN+-PN (50), held-out": Variant("CP-AAN+-PN", "held-out", "backbone"),
}


class SomeMetaNovel(MetaEpisodes):
    """Episodes whose meta-novel classes are among the named ones; all others are meta-base.

    With 20 ways, as searched, 6 of 26 held-out classes are meta-base classes of an episode. This
    does no harm: at meta-test, held-out classes are among the base classes as well.
    """

    def __init__(self, data: TrainingData, config: TrainConfig, names: Collection[str]) -> None:
        super().__init__(data, config)
        is_other = [name not in names for name in data.base.names]
        assert len(is_other) - sum(is_other) >= config.num_ways
        self._is_other = torch.tensor(is_other, device=data.base.counts.device)

    def order_classes(self, rng: torch.Generator) -> Tensor:
        """Return the named classes in random order, then the others, shape (C,)."""
        shape, device = self._is_other.shape, self._is_other.device
        numbers = torch.rand(shape, generator=rng, device=device, dtype=torch.float64)
        return (numbers + self._is_other).argsort()


class SomeAdversarial(Adversarial):
    """A GAN that is meta-trained on `SomeMetaNovel`."""

    meta_novel: Collection[str]

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> TrainingRun:
        """Create the networks, and replace the episodes before the first one is drawn."""
        run = super().new_run(base, rng, workers)
        run.episodes = SomeMetaNovel(run.episodes.data, self._settings, self.meta_novel)
        return run


class SomeEmbedded(Embedded):
    """A method in an embedding that is trained on some of the base classes."""

    classes: Collection[str]

    def trained(self, base: BaseSet, rng: torch.Generator) -> tuple[EmbeddingRun, torch.Generator]:
        """Return the embedding, trained on the rows of the classes."""
        chosen = [number for number, name in enumerate(base.names) if name in self.classes]
        rows, names = base.by_class(), [base.names[number] for number in chosen]
        some = BaseSet(torch.cat([rows[number] for number in chosen]), base.counts[chosen], names)
        return super().trained(some, rng)


class VariantExecutor(LocalExecutor):
    """Executor of parts whose rows are in `VARIANTS`."""

    def run(self, job: PartJob) -> Part:
        """Train and score one part."""
        variant, row = VARIANTS[job.row], ROWS[job.method]
        every, backbone = SPLIT.base_classes(), self.tables[job.data.fingerprint].backbone_classes
        assert backbone is not None, "represent records it"
        held_out, seen = set(every) - backbone, sorted(backbone)
        some_seen = [seen[number] for number in shuffled(len(seen), 0)[: len(held_out)]]
        method = row.make(job.training, job.evaluation, NO_CHECKPOINT)
        if variant.meta_novel != "all":
            assert row.gan is not None
            assert isinstance(job.training, TrainConfig)
            method = SomeAdversarial(row.gan, job.training, job.evaluation)
            method.meta_novel = held_out if variant.meta_novel == "held-out" else some_seen
        if job.embedding is not None:
            method = SomeEmbedded(method, job.embedding, NO_CHECKPOINT)
            method.classes = every if variant.embedding == "all" else backbone
        return score_part(job, method, self.read, self.progress)


def write_images(source: Path, folder: Path, every: int) -> None:
    """Write the images of the backbone's job and its split; ``every`` n-th image of a class.

    Held-out classes get only the train images that other base classes keep as train rows.
    """
    held_out: list[str] = []
    for number, (phase, count) in enumerate(NUM_HELD_OUT.items()):
        names = sorted(SPLIT.phase(phase).base)
        held_out += [names[each] for each in shuffled(len(names), 0, number)[:count]]
    base = sorted({*SPLIT.base_classes()} - {*held_out})
    others = [*held_out, *SPLIT.phase(VALIDATION_PHASE).novel]
    filters = [("wnid", "in", base + others)]
    files = sorted(source.glob("images_*.parquet"))
    images = pa.concat_tables([pq.read_table(file, filters=filters) for file in files])
    rows = images.select(["wnid", "partition"]).to_pandas()
    groups = rows.groupby(["wnid", "partition"])
    place, num_fitted = groups.cumcount(), (1 - HOLDOUT) * groups["wnid"].transform("size")
    is_extra = rows["wnid"].isin(held_out) & (rows["partition"] == TRAIN) & (place < num_fitted)
    kept = images.filter(pa.array((place % every == 0) & ~is_extra))
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(kept) // NUM_FILES)
    for number in range(NUM_FILES):
        part, path = kept.slice(number * size, size), folder / f"images_{number}.parquet"
        pq.write_table(part, path, compression="zstd")
    split = {VALIDATION_PHASE: {"base": base, "novel": others}}
    (folder / "split.json").write_text(json.dumps(split))


def score_rows(seed: int, folder: Path, is_small: bool) -> pd.DataFrame:
    """Score all rows with a seed on 20 draws; return top-5 with all biases."""
    torch.set_num_threads(max(1, torch.get_num_threads() // NUM_SEEDS))
    files, device = [str(folder / "features" / "features.parquet")], choose_device(None)
    table = open_features(*files)
    check_phase(table, SPLIT, VALIDATION_PHASE)
    heads, small = ("centroid", "cosine", "linear"), {"num_draws": 2, "linear_num_steps": 10}
    changes = {"shots": SHOTS, "num_draws": 20, "draw_seed": 1, "heads": heads}
    changes |= small if is_small else {}
    embedding = EmbeddingConfig().with_overrides(ROWS[PN].quick if is_small else {})
    jobs: dict[PartKey, PartJob] = {}
    for name, variant in VARIANTS.items():
        row = ROWS[variant.method]
        best = json.loads((RESULTS / "all-rows" / row.name / "best.json").read_text())
        evaluation = EvaluationConfig(**best["evaluation"]).with_overrides(changes)
        training = row.config.from_dict(best["training"])
        if is_small:
            training = with_episodes(training.with_overrides(row.quick), 3)
        elif row.gan is not None:
            training = with_episodes(training, 10_000)
        jobs[PartKey(name, seed)] = PartJob(
            row=name,
            method=row.name,
            training=training,
            embedding=embedding if row.is_embedded else None,
            evaluation=evaluation,
            seed=seed,
            data=DataReference.of(table, SPLIT, files),
            phase=VALIDATION_PHASE,
            shot_rows=draw_phase(table, SPLIT, VALIDATION_PHASE, evaluation),
            diversity_draws=range(0),
            device=str(device),
        )

    def progress(message: str) -> None:
        sys.stderr.write(f"{message}\n")

    executor = VariantExecutor(None, progress, {table.fingerprint: table})
    outcomes = run_parts(jobs, executor, PartCache(RemotePath.at(folder / "parts")), progress)
    parts = [part.scores for part in outcomes.values() if isinstance(part, Part)]
    return pd.concat(parts, ignore_index=True)


def lines_of(scores: pd.DataFrame) -> Iterator[str]:
    """Return the lines of a table: means of every row, and paired differences to other rows."""
    cells, columns = crossed_cells(scores, "top5"), [*product(SCORED, SHOTS)]
    titles = [f"{title}, K = {k}" for title, k in product(("LSL", "GLSL"), SHOTS)]
    yield " | ".join(["head", "row", "minus", *titles])
    yield "|".join(["---"] * (3 + len(columns)))
    rows = dict.fromkeys((name, head) for name, head, *_ in cells)
    for name, head in sorted(rows, key=lambda row: row[1]):  # sorting keeps the order of names
        own, variant = [cells[name, head, *column] for column in columns], VARIANTS[name]
        yield " | ".join([head, name, "", *(f"{each.values.mean():.1f}" for each in own)])
        copies = "copy-PN" if variant.method.endswith(PN) else "copy"
        copies += "" if variant.embedding == "all" else " (50)"
        # AWG and wDAE have their own cosine classifiers.
        other = "cosine" if head == OWN else head
        for reference in dict.fromkeys((copies, name.partition(",")[0])):
            if reference != name:
                pairs = zip(own, columns, strict=True)
                gaps = [mine.minus(cells[reference, other, *column]) for mine, column in pairs]
                found = [gap.estimate() for gap in gaps]
                texts = [f"{each.mean:+.2f} ± {each.interval():.2f}" for each in found]
                yield " | ".join([head, name, reference, *texts])


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("images", "rows"))
    parser.add_argument("source", nargs="?", type=Path, help="folder of images, for step images")
    parser.add_argument("--small", action="store_true", help="sizes for minutes on two cores")
    options = parser.parse_args()
    folder = RESULTS / ("held-out-small" if options.small else "held-out")
    if options.step == "images":
        if options.source is None:
            parser.error("images needs the folder of the image files")
        write_images(options.source, folder / "images", every=5 if options.small else 1)
        return
    score = partial(score_rows, folder=folder, is_small=options.small)
    seeds = range(2 if options.small else NUM_SEEDS)
    with ProcessPoolExecutor(len(seeds), mp_context=get_context("spawn")) as pool:
        scores = calibrate(pd.concat(pool.map(score, seeds), ignore_index=True))
    scores = scores[scores["column"].isin(SCORED)]
    keys = ["method", "head", "shots", "draw", "seed"]
    wide = scores.pivot(index=keys, columns="column", values="top5").round(2)
    wide.to_csv((folder if options.small else Path(__file__).parent) / "held_out.csv")
    for line in lines_of(scores):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
