"""A study on disk: all that decides it, begun or gone on with."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cpaan.core.provenance import describe_run
from cpaan.core.settings import Settings
from cpaan.gan.config import TrainConfig
from cpaan.methods.registry import ROWS, num_episodes_of
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import DataReference, StudyConfig
from cpaan.study.gan_space import GanSpace
from cpaan.study.job import Job
from cpaan.study.records import BEST, CONFIG, OPTUNA, Records, read_json
from cpaan.study.space import RowSpace, Settled, Space
from cpaan.study.storage import Storage

_MAY_CHANGE = ("num_trials",)


class StudyInUseError(ValueError):
    """Another process works on the study."""


@dataclass(frozen=True)
class Study:
    """Everything that decides a study, and where it is kept."""

    config: StudyConfig
    training: Settings
    """Recommended settings of the method at the study's size."""
    evaluation: EvaluationConfig
    """Of the validation phase; its draws are those of every trial."""
    data: DataReference
    num_dims: int
    folder: Path
    """Of this machine."""
    elsewhere: str | None = None
    """Location of a storage that all machines reach; None: the folder is one."""
    embedding: EmbeddingConfig | None = None
    """Of the embedding that the method works in, if it does."""

    @property
    def num_episodes(self) -> int:
        """Of a trial that is not stopped."""
        return num_episodes_of(self.training)

    @property
    def storage(self) -> str:
        """Where trials keep their states."""
        return self.elsewhere or str(self.folder.absolute())

    @property
    def records(self) -> Records:
        """Its files."""
        return Records(self.folder, Storage(self.storage))

    @property
    def space(self) -> Space:
        """What is proposed."""
        phases = (self.data.split.validation, self.data.split.test)
        num_base = sum(len(phase.base) for phase in phases)
        method, training, evaluation = self.config.method, self.training, self.evaluation
        if not isinstance(training, TrainConfig):
            return RowSpace(method, training, evaluation, num_base)
        return GanSpace(
            method=method,
            training=training,
            evaluation=evaluation,
            num_dims=self.num_dims,
            num_base=num_base,
            wide=self.config.wide,
        )

    def job(self, number: int, settled: Settled, seed: int) -> Job:
        """Return the training of a trial's settings with some seed, to be evaluated at no mark."""
        # One prior: the score does not ask for the column that has it, and all of them take time.
        overrides = {"heads": (self.config.head,), "prior": 0.5}
        evaluation = settled.evaluation.with_overrides(overrides)
        return Job(
            method=self.config.method,
            training=settled.training,
            evaluation=evaluation,
            seed=seed,
            marks=(),
            data=self.data,
            storage=self.storage,
            path=state_path(number, seed),
            embedding=self.embedding,
        )

    def describe(self) -> dict[str, Any]:
        """Return it for ``config.json``."""
        return {
            "config": self.config.to_dict(),
            "training": self.training.to_dict(),
            "evaluation": self.evaluation.to_dict(),
            "data": self.data.to_dict(),
            "embedding": None if self.embedding is None else self.embedding.to_dict(),
            "dimensions": self.num_dims,
            "storage": self.elsewhere,
        }

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this machine from working on the study.

        Raises:
            StudyInUseError: If one does already.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed, or we die
            except BlockingIOError:
                raise StudyInUseError(f"another process works on {self.folder}") from None
            yield

    def write(self) -> None:
        """Write ``config.json``, with every command that has worked on the study so far."""
        is_new = not (self.folder / CONFIG).exists()
        runs = [] if is_new else read_json(self.folder, CONFIG)["runs"]
        self.records.write_json(CONFIG, {"runs": [*runs, describe_run()], **self.describe()})

    def check_goes_on_from(self, earlier: "Study") -> None:
        """Refuse to go on with what was begun with other settings or other data.

        Raises:
            ValueError: With the first difference.
        """
        mine, theirs = self.data, earlier.data
        if (mine.fingerprint, mine.split) != (theirs.fingerprint, theirs.split):
            raise ValueError(
                f"{self.folder} is a study of other data: their fingerprint is "
                f"{theirs.fingerprint} and that of these {mine.fingerprint}, or the split differs"
            )
        for part in ("config", "training", "evaluation"):
            new, old = getattr(self, part), getattr(earlier, part)
            for name in (field.name for field in fields(new)):
                if getattr(new, name) != getattr(old, name) and name not in _MAY_CHANGE:
                    raise ValueError(
                        f"{self.folder} was begun with {name} = {getattr(old, name)} and cannot "
                        f"go on with {getattr(new, name)}"
                    )


def state_path(number: int, seed: int) -> str:
    """Return the name of the file in the storage that holds a trial's training with a seed."""
    return f"trials/{number:04d}-seed{seed}.pt"


def read_study(folder: Path) -> Study:
    """Return the study in a folder, wherever the folder was when it was begun.

    Raises:
        ValueError: If there is none.
    """
    content = read_json(folder, CONFIG)
    try:
        config, embedding = StudyConfig(**content["config"]), content["embedding"]
        return Study(
            config=config,
            training=ROWS[config.method].config.from_dict(content["training"]),
            evaluation=EvaluationConfig(**content["evaluation"]),
            data=DataReference.from_dict(content["data"]),
            num_dims=content["dimensions"],
            folder=folder,
            elsewhere=content["storage"],
            embedding=None if embedding is None else EmbeddingConfig(**embedding),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG} is of no study that can be read: {error}") from error


def fetch_study(location: str, folder: Path) -> None:
    """Bring what a search goes on from back from a storage, to a machine that has it not.

    Raises:
        ValueError: If there is no study.
    """
    storage, here = Storage(location), Storage(str(folder))
    # The config last: with it, the folder is a study. It is also the first that a search writes:
    # one that was lost at once has no more, and one that has not ended no best.
    for name in (BEST, OPTUNA, CONFIG):
        content = storage.read(name)
        if content is not None:
            here.write(name, content)
        elif name == CONFIG:
            raise ValueError(f"{location} has no {name}: it is no study")


def find_study(name: str | None, results: Path) -> Path:
    """Return the folder of a study by its name or path; without one, the newest.

    Raises:
        ValueError: If none is named and there is none.
    """
    if name is None:
        return newest_study(results)
    folder = Path(name)
    is_name = not folder.is_absolute() and not (folder / CONFIG).exists()
    is_name = is_name and folder.parts[:1] != results.parts[:1]
    return results / folder if is_name else folder


def newest_study(results: Path) -> Path:
    """Return the folder of the study that was begun or gone on with last.

    Raises:
        ValueError: If there is none.
    """
    configs = sorted(results.glob(f"*/{CONFIG}"), key=lambda path: path.stat().st_mtime)
    if not configs:
        raise ValueError(f"there is no study in {results}/: python tune/search.py makes one")
    return configs[-1].parent
