"""Meta-train generators on classes that the backbone has not seen, and compare all rows.

    python results/plus/held_out.py                      # an upper bound
    python results/plus/held_out.py --small              # a trial of some minutes on two cores

    python results/plus/held_out.py --images tiny-imagenet-lowshot      # the fair test, in 3 steps
    python -m cpaan represent --images results/held-out/images --out results/held-out/features
    python results/plus/held_out.py --features results/held-out/features

The bound takes a random half of the 56 novel classes as 28 more base classes, another half for each
replicate, and classifies the others. Without novel classes for meta-training, base classes have to
be held out from the backbone, which makes its features worse. So the fair test trains a backbone on
50 of the 76 base classes, and holds out the other 26. On one H200, the bound takes 11 minutes, and
the fair test 12.

The tables have LSL on validation classes. The scores are written to ``held_out_bound.csv`` and
``held_out.csv``. Finished parts are kept in results/held-out, so the same command resumes at the
same commit and on the same features. The novel classes of the test phase get features, but are not
scored.

* Replicate r has training seed r.
* held-out: meta-novel classes are drawn from the held-out classes only.
* seen: they are drawn from as many classes of the backbone. This tells the effect of fewer classes.
* (backbone): the embedding of PN is trained on the classes of the backbone. Other embeddings are
  trained on all base classes, so that held-out classes are not new to them.
* Intervals are over draws and replicates; each is for a single comparison.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from cpaan.core.devices import choose_device
from cpaan.core.remote_paths import RemotePath
from cpaan.data.builtin import FOLDER as BUILTIN
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.reference import DataReference
from cpaan.data.split_files import read_split
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, Split, shuffled
from cpaan.data.table import TRAIN
from cpaan.evaluation.executors import LocalExecutor
from cpaan.evaluation.job import Job, Part, Reader
from cpaan.evaluation.parts import PartCache, PartKey, run_parts
from cpaan.evaluation.scoring import draw_phase, run_method
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.loop import TrainingRun
from cpaan.methods.adversarial import Adversarial
from cpaan.methods.prototypical import Embedded
from cpaan.methods.registry import METHODS, ROWS, with_episodes
from cpaan.methods.table_row import PN
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.statistics import crossed_cells
from cpaan.protocol.tasks import BaseSet, check_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun
from cpaan.training.workers import Workers

RESULTS = Path(__file__).resolve().parents[1]
OWN_FOLDER = RESULTS / "held-out"
NUM_REPLICATES, SHOTS = 3, (1, 2, 5)
NUM_HELD_OUT = {VALIDATION_PHASE: 14, TEST_PHASE: 12}  # of the 40 and 36 base classes
NUM_FILES = 3  # of images, 23 MB each
say = partial(print, file=sys.stderr, flush=True)


class Variant(NamedTuple):
    """A row of the table: a method, and the classes that its parts are trained on."""

    method: str
    meta_novel: str = "all"
    embedding: str = "all"


NAMES = ("none", "copy", "PN", "none-PN", "copy-PN", "AWG", "wDAE", "cCov-GAN")
VARIANTS = {
    **{name: Variant(name) for name in (*NAMES, "CP-AAN+", "CP-AAN+-PN")},
    "cCov-GAN, held-out": Variant("cCov-GAN", "held-out"),
    "CP-AAN+, held-out": Variant("CP-AAN+", "held-out"),
    "CP-AAN+, seen": Variant("CP-AAN+", "seen"),
    "CP-AAN+-PN, held-out": Variant("CP-AAN+-PN", "held-out"),
    "copy-PN (backbone)": Variant("copy-PN", embedding="backbone"),
    "CP-AAN+-PN (backbone)": Variant("CP-AAN+-PN", embedding="backbone"),
    "CP-AAN+-PN (backbone), held-out": Variant("CP-AAN+-PN", "held-out", "backbone"),
}


class SomeMetaNovel(MetaEpisodes):
    """Episodes whose meta-novel classes are among the named ones; all others are meta-base.

    With 20 ways, as searched, some held-out classes are meta-base classes of an episode. This does
    no harm: at meta-test, held-out classes are among the base classes as well.
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

    def run(self, job: Job) -> Part:
        """Train and score one part."""
        variant, chosen = VARIANTS[job.row], METHODS[job.method]
        every = job.data.split.base_classes()
        backbone = sorted(self.reader.tables[job.data.fingerprint].backbone_classes or ())
        held_out = {*every} - {*backbone}
        some_seen = [backbone[number] for number in shuffled(len(backbone), job.seed)]
        method = chosen.make(job.training, job.evaluation)
        if variant.meta_novel != "all":
            assert chosen.gan is not None
            assert isinstance(job.training, TrainConfig)
            method = SomeAdversarial(chosen.gan, job.training, job.evaluation)
            is_held_out = variant.meta_novel == "held-out"
            method.meta_novel = held_out if is_held_out else some_seen[: len(held_out)]
        if job.embedding is not None:
            method = SomeEmbedded(method, job.embedding)
            method.classes = every if variant.embedding == "all" else backbone
        device, nothing = torch.device(job.device), pd.DataFrame()
        task, queries = self.reader.read(job, job.phase, device)
        scores, _ = run_method(
            job.row, method, job.seed, task, queries, job.evaluation, range(0), self.progress
        )
        return Part(scores, nothing, nothing, nothing, nothing, None, {})


def write_images(source: Path, folder: Path, every: int) -> None:
    """Write the images of the backbone's job and its split; ``every`` n-th image of a class.

    Held-out classes get only the train images that other base classes keep as train rows.
    """
    # Imported here, because a machine that only measures may be without Pillow.
    from cpaan.cli.represent import HOLDOUT

    split, held_out = read_split(BUILTIN / "split.json"), list[str]()
    for number, (phase, count) in enumerate(NUM_HELD_OUT.items()):
        names = sorted(split.phase(phase).base)
        held_out += [names[each] for each in shuffled(len(names), 0, number)[:count]]
    base = sorted({*split.base_classes()} - {*held_out})
    others = [*held_out, *(name for phase in split.phases.values() for name in phase.novel)]
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
    of_job = {VALIDATION_PHASE: {"base": base, "novel": others}}
    (folder / "split.json").write_text(json.dumps(of_job))


def hold_out(split: Split, replicate: int) -> Split:
    """Return the split with a random half of its novel validation classes as base classes."""
    phase = split.phase(VALIDATION_PHASE)
    order = [phase.novel[number] for number in shuffled(len(phase.novel), replicate)]
    half = len(order) // 2
    base = (*phase.base, *sorted(order[:half]))
    return replace(split, validation=replace(phase, base=base, novel=tuple(order[half:])))


@cache
def read_replicate(
    replicate: int, features: Path | None
) -> tuple[VariantExecutor, DataReference, torch.device]:
    """Return the executor of a replicate with its open table, its data, and the device."""
    (table, split), files = builtin_features(), None
    if features is None:
        split = hold_out(split, replicate)
    else:
        files = [str(features / "features.parquet")]
        table = open_features(*files)
    check_phase(table, split, VALIDATION_PHASE)
    executor = VariantExecutor(None, say, Reader({table.fingerprint: table}))
    return executor, DataReference.of(table, split, files), choose_device(None)


def score_variant(name: str, replicate: int, features: Path | None, is_small: bool) -> pd.DataFrame:
    """Train and score a row, or load its cached part; return top-5 on the novel classes."""
    torch.set_num_threads(1)
    executor, data, device = read_replicate(replicate, features)
    table = executor.reader.tables[data.fingerprint]
    # A bias has no effect on LSL, and scores with all biases take long.
    changes = {"shots": SHOTS, "num_draws": 20, "draw_seed": 1, "novel_bias": 0.0}
    changes["heads"] = ("centroid", "cosine", "linear")
    changes |= {"num_draws": 2, "linear_num_steps": 10} if is_small else {}
    row = ROWS[VARIANTS[name].method]
    best = json.loads((RESULTS / "tiny-imagenet" / row.name / "best.json").read_text())
    evaluation = EvaluationConfig(**best["evaluation"]).with_overrides(changes)
    training = row.method.config.from_dict(best["training"])
    if is_small:
        training = with_episodes(training.with_overrides(row.method.quick), 3)
    elif row.method.gan is not None:
        training = with_episodes(training, 10_000)
    embedding = EmbeddingConfig().with_overrides(METHODS[PN].quick if is_small else {})
    job = Job(
        row=name,
        method=row.name,
        training=training,
        embedding=embedding if row.is_embedded else None,
        evaluation=evaluation,
        seed=replicate,
        data=data,
        phase=VALIDATION_PHASE,
        draws=draw_phase(table, data.split, VALIDATION_PHASE, evaluation),
        diversity_draws=range(0),
        device=str(device),
    )
    folder = PartCache(RemotePath.at(OWN_FOLDER / "parts"))
    (part,) = run_parts({PartKey(name, replicate): job}, executor, folder, say).values()
    if not isinstance(part, Part):
        raise part
    columns = ["method", "head", "shots", "seed", "draw", "top5"]
    return part.scores.loc[part.scores["column"] == "novel", columns]


def lines_of(scores: pd.DataFrame) -> Iterator[str]:
    """Return the lines of a table: means of every row, and paired differences to other rows."""
    cells = crossed_cells(scores, "top5", ["head", "method", "shots"])
    yield " | ".join(["head", "row", "minus", *(f"LSL, K = {shots}" for shots in SHOTS)])
    yield "|".join(["---"] * (3 + len(SHOTS)))
    rows = dict.fromkeys((head, name) for head, name, _ in cells)
    for head, name in sorted(rows, key=lambda row: row[0]):  # sorting keeps the order of names
        own, variant = [cells[head, name, shots] for shots in SHOTS], VARIANTS[name]
        yield " | ".join([head, name, "", *(f"{each.values.mean():.1f}" for each in own)])
        copies = "copy-PN" if variant.method.endswith(PN) else "copy"
        copies += "" if variant.embedding == "all" else " (backbone)"
        # AWG and wDAE have their own cosine classifiers.
        other_head = "cosine" if head == OWN else head
        for other in dict.fromkeys((copies, name.partition(",")[0])):
            if other != name:
                pairs = zip(own, SHOTS, strict=True)
                gaps = [mine.minus(cells[other_head, other, shots]) for mine, shots in pairs]
                found = [gap.estimate() for gap in gaps]
                texts = [f"{each.mean:+.2f} ± {each.interval():.2f}" for each in found]
                yield " | ".join([head, name, other, *texts])


def main() -> None:
    """Write the images, or score all rows in several processes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, metavar="DIR", help="write those of the backbone")
    parser.add_argument("--features", type=Path, metavar="DIR", help="the fair test, on these")
    parser.add_argument("--small", action="store_true", help="sizes for minutes on two cores")
    options = parser.parse_args()
    if options.images is not None:
        write_images(options.images, OWN_FOLDER / "images", every=5 if options.small else 1)
        return
    replicates = range(2 if options.small else NUM_REPLICATES)
    names, numbers = zip(*product(VARIANTS, replicates), strict=True)
    score = partial(score_variant, features=options.features, is_small=options.small)
    num_processes = 9 if torch.cuda.is_available() else 2
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        scores = pd.concat(pool.map(score, names, numbers), ignore_index=True)
    if not options.small:
        name = "held_out_bound.csv" if options.features is None else "held_out.csv"
        scores.round({"top5": 2}).to_csv(Path(__file__).with_name(name), index=False)
    for line in lines_of(scores):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
