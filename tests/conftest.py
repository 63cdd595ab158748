"""Small data for all tests, and a folder of its own for each."""

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# Tests are small: with several threads each would mostly wait for the others. Before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow.fs
import pytest
import sqlalchemy
import torch

# The kernels of a GPU run without one in Triton's interpreter. Before Triton starts.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from cpaan.feature_parquet import write_features
from cpaan.features import FeatureTable
from cpaan.files import write_whole
from cpaan.learning import LearningRun
from cpaan.places import Place, join
from cpaan.settings import Range, SearchSpace, Settings
from cpaan.splits import ShotRows, Split, draw_shots
from cpaan.synthetic import GaussianClasses, gaussian_classes
from cpaan.tasks import BaseSet, LowShotTask, Problem
from cpaan.workers import Workers


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep caches, results and the log of test-phase reads out of the project."""
    monkeypatch.setenv("CPAAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def gaussians() -> GaussianClasses:
    """12 base and 12 novel classes a phase, in 8 dimensions."""
    return gaussian_classes(num_families=6, num_train=25, num_test=10, num_dims=8)


def shots_of(table: FeatureTable, split: Split, num_draws: int = 2, max_shots: int = 5) -> ShotRows:
    return draw_shots(table, split.validation, num_draws=num_draws, max_shots=max_shots, seed=0)


def small_task(
    base: list[list[list[float]]], shots: list[list[list[float]]], num_base: int | None = None
) -> LowShotTask:
    """One problem with all given shots: base examples by class, shots by novel class."""
    classes = [torch.tensor(rows, dtype=torch.float32) for rows in base]
    counts = torch.tensor([len(rows) for rows in classes])
    return LowShotTask(
        base=BaseSet(torch.cat(classes), counts),
        num_base=len(base) if num_base is None else num_base,
        shots=torch.tensor([shots], dtype=torch.float32),
        problems=(Problem(num_shots=len(shots[0]), draw=0),),
    )


def reordered(base: BaseSet, order: Sequence[int]) -> BaseSet:
    """Return the same base classes in another order."""
    rows, order = base.by_class(), list(map(int, order))
    return BaseSet(
        torch.cat([rows[number] for number in order]),
        base.counts[order],
        [base.names[number] for number in order],
    )


def flat(run: LearningRun) -> torch.Tensor:
    """Return all numbers that a run has learnt or keeps."""
    return torch.cat([value.flatten() for value in run.learner.state_dict().values()])


def assert_goes_on(begin: Callable[[], LearningRun]) -> None:
    """Assert that a run that stopped and went on is the unbroken one, to the last bit."""
    unbroken, stopped, resumed = (begin() for _ in range(3))
    unbroken.advance(5)
    stopped.advance(2)
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)

    resumed.load_state_dict(torch.load(file, weights_only=True))
    resumed.advance(3)

    assert torch.equal(flat(resumed), flat(unbroken))
    assert not torch.equal(flat(resumed), flat(stopped))


def assert_searched(space: SearchSpace, config: Settings) -> None:
    """Assert that what is searched holds these settings."""
    for name, wanted in space.items():
        value = getattr(config, name)
        if isinstance(wanted, Range):
            assert wanted.low <= value <= wanted.high, name
        else:
            assert value in wanted, name


@pytest.fixture
def easyfsl(monkeypatch) -> ModuleType:
    """Return easyfsl's methods. Its image networks, not used here, want torchvision."""
    names = {
        "torchvision": (),
        "torchvision.models": (),
        "torchvision.models.resnet": ("BasicBlock", "Bottleneck", "conv3x3", "conv1x1"),
        "torchvision.datasets": ("ImageFolder",),
        "torchvision.transforms": (),
    }
    for name, members in names.items():
        stand_in = ModuleType(name)
        for member in members:
            setattr(stand_in, member, torch.nn.Module)
        monkeypatch.setitem(sys.modules, name, stand_in)
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    import easyfsl.methods

    return easyfsl.methods


def random_table(num_rows: int = 40, num_dims: int = 6, dtype: str = "float32") -> FeatureTable:
    rng = np.random.default_rng(0)
    names = [f"class{number % 4}" for number in range(num_rows)]
    partitions = ["train" if number % 3 else "test" for number in range(num_rows)]
    features = rng.normal(size=(num_rows, num_dims)).astype(dtype)
    return FeatureTable.from_arrays(features, names, partitions)


@dataclass(frozen=True)
class Threads(Workers):
    """Workers that are threads of this process, and meet at a barrier."""

    barrier: threading.Barrier | None = None
    shared: tuple[list, ...] = ()

    def average(self, tensors):
        self.shared[self.rank][:] = [tensor.clone() for tensor in tensors]
        self.barrier.wait()
        for number, tensor in enumerate(tensors):
            tensor.copy_(torch.stack([of_worker[number] for of_worker in self.shared]).mean(dim=0))
        self.barrier.wait()


def threads(count: int) -> list[Threads]:
    """Return workers that meet; one that waits for the others in vain is told so."""
    barrier = threading.Barrier(count, timeout=60)
    shared = tuple([] for _ in range(count))
    return [Threads(rank, count, barrier, shared) for rank in range(count)]


STUDY_SETTINGS = {
    "num_ways": "3",
    "episode_shots": "1,2",
    "batch_size": "20",
    "hidden_dim": "12",
    "shots": "1,2",
    "num_draws": "2",
    "num_synthetic": "5",
    "num_finalists": "1",
    "num_final_seeds": "1",
    "num_final_draws": "2",
}
"""Of a study that is small in everything, as ``--set`` takes them."""


@pytest.fixture(scope="session")
def study_features(tmp_path_factory) -> Path:
    """Features of Gaussian classes in a file, wide enough for the search's ranges; and a split."""
    folder = tmp_path_factory.mktemp("data")
    classes = gaussian_classes(num_families=6, num_train=25, num_test=10, num_dims=16)
    write_features(folder / "features.parquet", classes.table)
    groups = {
        name: {"base": phase.base, "novel": phase.novel}
        for name, phase in (
            ("validation", classes.split.validation),
            ("test", classes.split.test),
        )
    }
    write_whole(folder / "split.json", json.dumps(groups))
    return folder / "features.parquet"


@dataclass(frozen=True)
class Bucket:
    """A bucket of the tests' own S3."""

    location: str
    requests: list[tuple[str, str]]
    """What the server was asked: method and path, which begins with the bucket's name."""

    @property
    def name(self) -> str:
        return self.place().path

    def place(self, path: str | None = None) -> Place:
        return Place.at(join(self.location, path) if path else self.location)

    def put(self, path: str, content: bytes | Path) -> str:
        """Put an object in the place of what is there, and return its address."""
        place = self.place(path)
        with place.files.open_output_stream(place.path, compression=None) as file:
            file.write(content.read_bytes() if isinstance(content, Path) else content)
        return place.location

    def names(self) -> list[str]:
        """Return the paths of all objects."""
        selector = pyarrow.fs.FileSelector(self.name, recursive=True)
        found = self.place().files.get_file_info(selector)
        return sorted(
            each.path.removeprefix(f"{self.name}/")
            for each in found
            if each.type == pyarrow.fs.FileType.File
        )

    def num_downloads(self, path: str) -> int:
        return self.requests.count(("GET", f"/{self.name}/{path}"))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """An S3 in a thread of this process: its port, and what it was asked.

    To the bucket called forbidden nobody has access.
    """
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    requests: list[tuple[str, str]] = []

    def noting(environ, start_response):
        requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if environ["PATH_INFO"].startswith("/forbidden"):
            start_response("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, noting, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bucket(s3_server, tmp_path, monkeypatch) -> Bucket:
    """A bucket for one test, and credentials."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    server, requests = s3_server
    name = f"bucket-{len(requests)}"
    location = f"s3://{name}?endpoint_override={server}&scheme=http"
    Place.at(f"{location}&allow_bucket_creation=true").files.create_dir(name)
    return Bucket(location, requests)


@pytest.fixture
def quick_disk() -> Iterator[None]:
    """Let SQLite not wait for the disk: what a test writes need not outlive the machine."""

    def hurry(connection, _record) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", hurry)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", hurry)
