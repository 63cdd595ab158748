"""Test the parts of ``tune/search.py`` and ``tune/report.py`` that do not need Ray."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cpaan import open_features, write_features
from cpaan.cli.search import describe_best
from cpaan.methods.registry import METHODS, ROWS, rows_of_table
from cpaan.study import cluster
from cpaan.study.config import PRESETS
from cpaan.study.resolve import StudyRequest, new_study
from cpaan.study.study import read_study
from helpers.commands import refused
from helpers.studies import SMALL_STUDY, STUDY_SETTINGS, report, search
from helpers.tables import in_other_order

pytestmark = pytest.mark.usefixtures("builtin_cache")


def dry_run(capsys, *arguments: str) -> dict[str, dict]:
    """Return the settings that a dry run prints, by row."""
    assert search([*arguments, "--dry-run", "--json"]) == 0
    text, decoder, shown = capsys.readouterr().out, json.JSONDecoder(), {}
    while text.strip():
        content, end = decoder.raw_decode(text)
        shown[content["config"]["method"]] = content
        text = text[end:].lstrip()
    assert not Path("results").exists() or "--resume" in arguments
    return shown


def lengths(shown: dict[str, dict]) -> dict[str, tuple[int, int]]:
    """Return the episodes of a trial and of the report by row; zero without training."""
    counts = {}
    for name, row in shown.items():
        of_trial = row["training"].get("num_episodes", 0)
        counts[name] = (of_trial, of_trial * row["config"]["report_length"])
    return counts


def test_the_paper_preset_is_of_the_papers_scale_and_trials_may_be_shorter(capsys):
    options = ["--method", "copy,AWG,cCov-GAN", "--preset", "paper"]
    shown = dry_run(capsys, *options)

    training, config = shown["cCov-GAN"]["training"], shown["cCov-GAN"]["config"]
    assert (training["batch_size"], training["num_ways"]) == (1000, 20)
    assert training["episode_shots"] == [10]
    assert (config["num_trials"], config["num_final_seeds"]) == (12, 3)
    assert shown["cCov-GAN"]["evaluated after episodes"] == [5_000, 10_000]
    # Other methods than the GANs have one length.
    full = {"copy": (0, 0), "AWG": (1_000, 1_000), "cCov-GAN": (10_000, 100_000)}
    assert lengths(shown) == full
    short = {name: (trial // 4, report) for name, (trial, report) in full.items()}
    assert lengths(dry_run(capsys, *options, "--short", "4")) == short
    assert lengths(dry_run(capsys, "--method", "cCov-GAN")) == {"cCov-GAN": (100, 100)}


def test_a_dry_run_shows_the_options_and_the_first_points_and_writes_nothing(capsys):
    given = {"gpus_per_worker": 0.25, "num_finalists": 2, "early_stopping": False}
    given |= {"ray_train": False, "head": "centroid", "seed": 7, "num_trials": 9}
    options = ["--gpus-per-worker", "0.25", "--set", "num_finalists=2", "--no-early-stopping"]
    options += ["--no-ray-train", "--head", "centroid", "--seed", "7", "--trials", "9"]

    (shown,) = dry_run(capsys, "--episodes", "80", *options).values()

    assert shown["config"] == PRESETS["quick"].study_of("CP-AAN+").with_overrides(given).to_dict()
    assert shown["evaluated after episodes"] == [20, 40, 80]
    printed = {"cycle_weight": 5.0, "covariance_weight": 0.5}
    assert printed.items() <= shown["trial 0"].items()
    assert shown["all settings of these"]["trial 6"]["generator_loss"] == "minimax"
    assert shown["trial 6"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "5", "--workers-per-trial", "2"], "5 episodes cannot be divided among 2"),
        (["--set", "nonsense=1"], "unknown setting 'nonsense'"),
        (["--set", "cycle_weight=1000"], "cycle_weight is searched"),
        (["--short", "3"], "--short 3: the 100 episodes of CP-AAN+ are not a mul"),
        (["--set", "num_ways=75", "--set", "batch_size=1000"], "num_ways is 75, but can be at"),
        (["--study", "../x"], "a study name can only have letters"),
        (["--features", "nowhere.parquet"], "no such file: nowhere.parquet"),
        (["--resume"], "results/ has no study; start one with: python"),
        (["--resume", "nothing"], "results/nothing has no config.json"),
        (["--storage", "nosuchscheme://x"], "nosuchscheme://x/"),
        (["--method", "none,MN", "--head", "knn"], "--head is for one method"),
        (["--method", "none,MN", "--set", "MN.dropout=0.1"], "dropout is searched"),
        (["--method", "none,MN", "--set", "num_queries=1000"], "has 150 train rows"),
        (["--address", "ray://host:10001"], "ray://host:10001"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert message in refused(capsys, search, *arguments)
    assert not list(Path().rglob("config.json"))


@pytest.mark.parametrize("option", ["--storage", "--features", "--split"])
def test_credentials_on_the_command_line_are_refused_and_not_printed(capsys, option):
    for more in ([], ["--dry-run"], ["--cluster", "c.yaml"]):
        line = refused(capsys, search, option, "s3://KEY:HIDDEN@bucket/x", *more)
        assert "an address must not have credentials in it" in line
        assert "HIDDEN" not in line


def test_a_storage_with_a_study_or_that_cannot_be_written_is_refused(capsys):
    Path("shared/mine").mkdir(parents=True)
    Path("shared/mine/config.json").write_text("{}")

    line = refused(capsys, search, "--study", "mine", "--storage", "shared")
    assert "shared/mine already has a study; resume it with: python tune/search.py --res" in line
    assert Path("shared/mine/config.json").read_text() == "{}"
    line = refused(capsys, search, "--storage", "shared/mine/config.json")
    assert re.search(r"json/CP-AAN\+-.* cannot be written: .*Not a directory", line)


def test_an_address_without_a_ray_is_one_line(capsys, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        line = refused(capsys, search, "--address", address)
        assert f"cannot connect to Ray at {address}" in line
    monkeypatch.setattr(cluster, "_SECONDS_TO_BE_RAY", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert f"{address} is" in refused(capsys, search, "--address", address)


def test_rows_have_their_heads_and_their_settings(capsys):
    methods = ["none", "MN", "AWG", "c-GAN-PN"]
    sets = ["--set", "AWG.num_queries=3", "--set", "num_draws=2", "--study", "rows"]

    shown = dry_run(capsys, "--method", ",".join(methods), "--episodes", "8", *sets)

    assert list(shown) == methods
    for method, content in shown.items():
        assert content["folder"] == f"results/rows/{method}"
        assert content["config"]["head"] == ROWS[method].head
        assert content["evaluation"]["num_draws"] == 2
    steps = {method: content["evaluated after episodes"] for method, content in shown.items()}
    assert steps == {"none": [0], **{method: [2, 4, 8] for method in methods[1:]}}
    queries = {method: shown[method]["training"].get("num_queries") for method in ("MN", "AWG")}
    assert queries == {"MN": METHODS["MN"].config.num_queries, "AWG": 3}
    assert shown["c-GAN-PN"]["embedding"] is not None
    assert shown["MN"]["embedding"] is None
    assert shown["MN"]["all settings of these"]["trial 6"]["optimiser"] == "sgd"


def test_the_whole_table_can_be_searched_on_the_built_in_features(capsys):
    shown = dry_run(capsys, "--method", "table-1", "--trials", "3")

    assert list(shown) == [name for name in rows_of_table() if name != "AWG-cosine"]
    trials = {method: content["config"]["num_trials"] for method, content in shown.items()}
    # A row without searched parameters has a single trial.
    assert trials == {**dict.fromkeys(shown, 3), "none": 1, "none-PN": 1}


def test_a_row_on_cosine_trained_features_is_searched_on_these(capsys, study_features):
    table, data = open_features(study_features), ["--features", str(study_features)]
    changed = replace(table, features=2 * table.features)
    write_features(Path("cosine.parquet"), changed)
    write_features(Path("other.parquet"), in_other_order(changed))
    data += ["--method", "AWG,AWG-cosine", "--set", "episode_shots=1,2", "--cosine-features"]

    shown = dry_run(capsys, *data, "cosine.parquet")

    features = {method: content["data"]["features"] for method, content in shown.items()}
    assert features["AWG"] == [str(study_features)]
    assert features["AWG-cosine"] == [str(Path("cosine.parquet").absolute())]
    fingerprints = {content["data"]["fingerprint"] for content in shown.values()}
    assert len(fingerprints) == 2
    # Other processes sort the rows in the order of the other features.
    again = dry_run(capsys, *data, "other.parquet")
    assert again["AWG-cosine"]["data"]["in_order_of"] == [str(study_features)]
    assert {content["data"]["fingerprint"] for content in again.values()} == fingerprints

    write_features(Path("fewer.parquet"), in_other_order(open_features(study_features)))
    line = refused(capsys, search, "--method", "AWG-cosine", "--cosine-features", "fewer.parquet")
    assert "--cosine-features have different rows" in line
    assert "AWG-cosine" in refused(capsys, search, "--method", "AWG-cosine")


@pytest.fixture
def started(study_features) -> Path:
    """Write a study without trials, and return its folder."""
    request = StudyRequest(
        methods=("cCov-GAN",),
        features=[str(study_features)],
        settings=tuple(f"{name}={value}" for name, value in STUDY_SETTINGS.items()),
        episodes=8,
    )
    new_study(request, Path("results/mine"), None).write()
    return Path("results/mine")


def test_a_study_resumes_with_its_own_settings_only(capsys, started):
    for arguments, message in {
        "--episodes 9": "a resumed study keeps its settings; remove --episodes",
        "--preset paper": "a resumed study keeps its settings; remove --preset",
        "--set num_ways=4": "a resumed study keeps its settings; remove --set",
        "--method AWG": "a resumed study keeps its settings; remove --method",
        "--seed 1": "started with seed = 0 and cannot be resumed with 1",
        "--workers-per-trial 2": "started with workers_per_trial = 1",
        "--storage other": "has its storage in",
        "--study another": "remove --study",
    }.items():
        assert message in refused(capsys, search, "--resume", "mine", *arguments.split())
    line = refused(capsys, search, "--study", "mine")
    assert "results/mine already exists; resume it with: python tune/search.py --resume" in line


def test_a_study_resumes_on_its_own_data_wherever_they_are(
    capsys, started, study_features, gaussians
):
    for name in ("features.parquet", "split.json"):
        Path(name).write_bytes((study_features.parent / name).read_bytes())
    shown = dry_run(capsys, "--resume", "mine", "--features", "features.parquet")
    assert shown["cCov-GAN"]["data"]["features"] == [str(Path("features.parquet").absolute())]

    write_features(Path("features.parquet"), gaussians.table)
    line = refused(capsys, search, "--resume", "mine", "--features", "features.parquet")
    assert re.search("uses different data: fingerprint .*, but these features have", line)


def test_more_trials_may_be_wanted_and_the_folder_may_have_moved(capsys, started):
    Path("results").rename("elsewhere")

    shown = dry_run(capsys, "--resume", "elsewhere/mine", "--trials", "50")["cCov-GAN"]

    assert shown["config"]["num_trials"] == 50
    assert shown["folder"] == "elsewhere/mine"
    assert read_study(Path("elsewhere/mine")).storage == str(Path("elsewhere/mine").absolute())


def test_a_report_needs_a_result(capsys, started):
    line = refused(capsys, report)
    assert "the search of cCov-GAN has no result yet; resume it with: python tune/search" in line
    assert "results/other has no config.json" in refused(capsys, report, "other")


@pytest.mark.parametrize(
    ("options", "seconds", "expected"),
    [
        pytest.param(SMALL_STUDY, 250, r"about \d+ (s|min) of training", marks=pytest.mark.slow),
        # An episode of this size takes half a minute on a CPU.
        (["--preset", "paper"], 0, r"unknown: CP-AAN\+ was not timed within 0 s$"),
    ],
)
def test_a_dry_run_is_a_dozen_lines_with_the_time_if_it_is_quickly_known(
    capsys, monkeypatch, options, seconds, expected
):
    monkeypatch.setattr("cpaan.cli.search._SECONDS_OF_TIMING", seconds)

    assert search(["--dry-run", *options]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12
    assert re.search(f"^time: +{expected}", "\n".join(lines), re.M)
    assert max(map(len, lines)) <= 100


def test_a_search_ends_with_its_best_and_three_finalists_or_the_three_best_rows():
    def ended(method: str, *finalists: float) -> SimpleNamespace:
        of_trials = [{"trial": number, "score": x} for number, x in enumerate(finalists)]
        scores = {"novel_top5": 50.0, "all_top5": 60.0, "all_calibrated_top5": 61.0}
        scores["score"] = max(finalists)
        best = {**scores, "trial": finalists.index(max(finalists)), "finalists": of_trials}
        return SimpleNamespace(row=SimpleNamespace(method=method), best=best)

    one = describe_best([ended("FH", 53.0, 51.0, 55.0, 52.0)])
    many = describe_best([ended("FH", 53.0), ended("PN", 54.0, 51.0), ended("MN", 52.0)])

    best = "is best with score {} on new validation draws (LSL 50.00, GLSL 60.00, calibrated 61.00)"
    assert one[0] == f"FH, trial 2 {best.format('55.00')}"
    assert one[1:3] == ["  FH, trial 2  55.00", "  FH, trial 0  53.00"]
    assert many[0] == f"PN, trial 0 {best.format('54.00')}"
    assert many[1:] == ["  PN  54.00", "  FH  53.00", "  MN  52.00"]
    assert describe_best([SimpleNamespace(best=None)]) == []
