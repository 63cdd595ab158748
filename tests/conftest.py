"""Fixtures: small data sets, a separate folder for each test, and servers."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from helpers.ray_environment import RAY_ENVIRONMENT

# Tests are too small to gain from several threads. Set this before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests start their own Ray, whatever runs on this machine.
os.environ["RAY_ADDRESS"] = "local"
os.environ |= RAY_ENVIRONMENT

import numpy as np
import pytest
import sqlalchemy
import torch

# Without a GPU, kernels run in Triton's interpreter. Set this before Triton starts.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from cpaan.core.remote_paths import RemotePath
from cpaan.data.builtin import FOLDER as BUILTIN
from cpaan.data.cache import open_features
from cpaan.study.cluster import Cluster, ray_cluster
from cpaan.study.config import StudyConfig
from helpers.buckets import Bucket
from helpers.gaussians import GaussianClasses, gaussian_classes
from helpers.tables import write_data


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with Ray, a cluster or a browser as slow, and run each kind in one process.

    The slowest kinds run first. Tests with Ray may take 900 s: a trial starts a dozen processes one
    after the other, which takes a minute on two idle cores and several on busy ones. If a node dies
    meanwhile, Ray has taken up to four minutes to report that a process cannot start.
    """
    kinds: dict[str, list[pytest.Item]] = {"cluster": [], "ray": [], "browser": []}
    others = []
    for item in items:
        kind = next(filter(item.get_closest_marker, kinds), None)
        if kind is None:
            others.append(item)
        else:
            kinds[kind].append(item)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group(kind))
            if kind != "browser":
                item.add_marker(pytest.mark.timeout(900))
                # Ray leaves sockets open when its processes are killed.
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
    items[:] = [*kinds["cluster"], *kinds["ray"], *kinds["browser"], *others]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep caches, results and the log of test-phase reads out of the project."""
    monkeypatch.setenv("CPAAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def decoded_builtin_features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with the built-in features, because decoding them takes over a second."""
    folder = tmp_path_factory.mktemp("cache")
    open_features(BUILTIN / "features.parquet", cache_folder=folder)
    return folder


@pytest.fixture
def builtin_cache(decoded_builtin_features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share the cache with the built-in features."""
    monkeypatch.setenv("CPAAN_CACHE", str(decoded_builtin_features))


@pytest.fixture(scope="session")
def gaussians() -> GaussianClasses:
    """Return 12 base and 12 novel classes in each phase, in 8 dimensions."""
    return gaussian_classes(num_dims=8)


@pytest.fixture(scope="session")
def easyfsl() -> ModuleType:
    """Return easyfsl's methods; easyfsl imports torchvision."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        # The operators of PyPI's torchvision need CUDA, so they do not load with the CPU build of
        # torch. The import of torchvision fails unless these two operators are declared.
        for name in ("nms", "qnms"):
            boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", boxes)
    import easyfsl.methods

    return easyfsl.methods


@pytest.fixture(scope="session")
def two_cpus() -> Iterator[Cluster]:
    """Start Ray on this machine as the commands do; all tests share it."""
    with ray_cluster(None, lambda message: None) as cluster:
        assert cluster.most_trials_at_once(StudyConfig()) >= 2, "these tests want two CPU cores"
        yield cluster


@pytest.fixture(scope="session")
def study_features(tmp_path_factory) -> Path:
    """Write features of Gaussian classes, with enough dimensions for a search, and a split."""
    folder = tmp_path_factory.mktemp("data")
    return write_data(folder, gaussian_classes(num_dims=16))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, list[tuple[str, str]], dict[str, float]]]:
    """Start an S3 server in a thread; yield its port, its requests, and shares of failures.

    It denies access to the bucket "forbidden". A share is of the requests to a bucket, by name.
    """
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)
    requests: list[tuple[str, str]] = []
    failures: dict[str, float] = {}
    counts: Counter[str] = Counter()  # of requests to buckets whose requests fail

    def noting(environ, start_response):
        requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if environ["PATH_INFO"].startswith("/forbidden"):
            start_response("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        name = environ["PATH_INFO"].split("/")[1]
        counts[name] += name in failures
        # Whatever other tests request, the same requests of a test fail.
        rng = np.random.default_rng(counts[name])
        if rng.random() < failures.get(name, 0.0):
            requests.append(("failed", environ["PATH_INFO"]))
            # S3's "try again later". Unlike 503, Arrow does not repeat it.
            start_response("409 OperationAborted", [("Content-Length", "0")])
            return [b""]
        return application(environ, start_response)

    server = make_server("127.0.0.1", 0, noting, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.port}", requests, failures
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bucket(s3_server, tmp_path, monkeypatch) -> Bucket:
    """Return a bucket for one test, and set the credentials."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    server, requests, failures = s3_server
    name = f"bucket-{len(requests)}"
    location = f"s3://{name}?endpoint_override={server}&scheme=http"
    RemotePath.at(f"{location}&allow_bucket_creation=true").files.create_dir(name)
    return Bucket(location, requests, failures)


@pytest.fixture
def quick_disk() -> Iterator[None]:
    """Turn off SQLite's writes to disk, because tests do not need durability."""

    def hurry(connection, _record) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", hurry)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", hurry)
