"""Test the ``evaluate`` command: the table, the files, and a one-line message for each error."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cpaan import write_features
from cpaan.cli import main
from cpaan.core.provenance import TEST_READS
from cpaan.data.table import TRAIN
from cpaan.methods.registry import METHODS, ROWS, rows_of_table
from cpaan.protocol.config import HEADS, OWN
from cpaan.report.table_one import BY_PAPER, BY_VALIDATION
from helpers.commands import refused
from helpers.gaussians import GaussianClasses
from helpers.tables import in_other_order, write_data, write_hdf5

FEATURES, SPLIT = "features.parquet", "split.json"
ALL_HEADS = ("--heads", ",".join(HEADS))
SMALL_GAN = {
    **{"num_ways": "4", "episode_shots": "1,2", "batch_size": "20", "hidden_dim": "8"},
    **{"noise_dim": "2", "ky_fan_order": "3"},
}


def sets(**settings: str) -> list[str]:
    """Return ``--set`` options; two underscores stand for the dot after a method."""
    pairs = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    return [part for pair in pairs for part in ("--set", pair)]


QUICK = ["--shots", "1,5", "--heads", "centroid"]
QUICK += sets(num_draws="2", perplexity="4", linear_num_steps="5")


COMMAND = ["evaluate", "--features", FEATURES, *QUICK]


def gan(name: str = "cCov-GAN", **settings: str) -> list[str]:
    """Return options that train a GAN within a second."""
    return ["--methods", name, "--episodes", "3", *sets(**{**SMALL_GAN, **settings})]


def small_table(num_episodes: int = 2) -> list[str]:
    """Return options that keep every row of the table small."""
    of_all = {
        **SMALL_GAN,
        **{"num_synthetic": "5", "num_queries": "2", "num_clusters": "3", "num_tasks": "2"},
        **{"num_classifier_steps": "5", "num_augmented": "3", "num_samples": "5"},
        "linear_num_steps": "5",
    }
    names = ("PN", "MN", "PMN", "AWG", "MAML", "Proto-MAML", "FI-PN", "FI-PMN", "wDAE")
    of_rows = {f"{name}.episode_shots": "1,2" for name in names}
    return ["--episodes", str(num_episodes), *sets(**of_all, **of_rows)]


@pytest.fixture(autouse=True)
def files(gaussians: GaussianClasses, own_folder: Path) -> None:
    """Write the features and the split of the small synthetic set to the current folder."""
    write_data(own_folder, gaussians)


def evaluate(*arguments: str) -> int:
    return main([*COMMAND, *arguments])


def results(folder: str = "out") -> dict:
    return json.loads(Path(folder, "results.json").read_text())


def test_the_table_is_printed_and_written(capsys):
    status = evaluate("--methods", "none,copy", *ALL_HEADS, "--out", "out")

    output, progress = capsys.readouterr()
    assert status == 0
    assert "12 base and 12 novel classes, 240 queries, 2 draws" in output
    assert re.search(r"copy +linear", output)
    assert "Top-5 minus none, same head" in output
    assert "copy, seed 0: draws 1 to 2 of 2" in progress
    scores, content = pd.read_csv("out/results.csv"), results()
    columns = ["method", "head", "phase", "column", "shots", "draw", "seed", "top1", "top5"]
    assert list(scores.columns) == columns
    at_one_shot = scores[(scores["column"] == "novel") & (scores["shots"] == 1)]
    means = at_one_shot.groupby(["method", "head"])["top5"].mean()
    assert re.search(rf"none +centroid +{means['none', 'centroid']:.1f}±", output)
    assert content["rows"][0] == pytest.approx(scores.iloc[0].to_dict())
    assert content["config"]["perplexity"] == 4
    assert {"command", "commit", "torch"} <= set(content["run"])
    assert len(content["summary"]) == 2 * 4 * 5 * 2
    assert "<svg" in Path("out/accuracy.svg").read_text()


def test_few_shot_tasks_are_scored_printed_and_written(capsys):
    options = ["--protocol", "episodes", "--ways", "3", "--num-tasks", "4", "--shots", "1,2"]
    data = ["evaluate", "--features", FEATURES, "--methods", "none", "--heads", "cosine,knn"]
    command = [*data, *options, "--num-queries", "5", "--jobs", "2", "--out", "out"]

    assert main([*command, "--seeds", "2"]) == 0
    both = pd.read_csv("out/episodes.csv")
    assert main(command) == 0

    output, progress = capsys.readouterr()
    assert "1 of 1 parts loaded from the cache" in progress
    scores = pd.read_csv("out/episodes.csv")
    pd.testing.assert_frame_equal(scores, both[both["seed"] == 0])
    assert "4 tasks of 3 classes with 5 queries each, 1 training seed." in output
    assert len(scores) == 2 * 2 * 4
    mean = scores[(scores["head"] == "knn") & (scores["shots"] == 2)]["top1"].mean()
    assert re.search(rf"none +knn +\S+ +{mean:.2f}±", output)


def test_hdf5_with_the_benchmarks_files_gives_the_same_scores(gaussians, tmp_path):
    """Write the same table in the benchmark's format: HDF5 pair, label index, index files."""
    table, split = gaussians.table, gaussians.split
    names = list(reversed(table.class_names))
    folder = tmp_path / "hdf5"
    folder.mkdir()
    number_of = {name: number for number, name in enumerate(names)}
    label_of_row = np.array([number_of[table.class_names[label]] for label in table.labels])
    order = np.argsort(label_of_row, kind="stable")
    for name, is_part in (("train", table.is_train), ("val", ~table.is_train)):
        rows = order[is_part[order]]
        write_hdf5(folder / f"{name}.hdf5", table.features[rows], label_of_row[rows].tolist())
    groups = {
        f"{kind}_classes_{number}": [number_of[name] for name in getattr(phase, kind)]
        for number, phase in ((1, split.validation), (2, split.test))
        for kind in ("base", "novel")
    }
    (folder / "label_idx.json").write_text(json.dumps({"label_names": names, **groups}))
    position_of = {row: place for place, row in enumerate(order[table.is_train[order]].tolist())}
    draws, index_files = [], []
    for draw in range(2):
        rows = {n: table.rows_of(n, TRAIN)[draw : draw + 5].tolist() for n in names}
        draws.append({name: rows[name] for name in split.validation.novel})
        index_files.append(f"splitfile_{draw}.json")
        index = [[position_of[row] for row in rows[name]] for name in names]
        Path(index_files[-1]).write_text(json.dumps(index))
    Path("draws.json").write_text(json.dumps({"draws": draws}))
    options = ["--methods", "none", "--heads", "centroid,knn", "--shots", "1,5", "--out"]

    def scores(features: str, split: Path, draws: list[str], out: str) -> pd.DataFrame:
        data = ["--features", features, "--split", str(split), "--draws-file", *draws]
        assert main(["evaluate", *data, *options, out]) == 0
        return pd.read_csv(Path(out) / "results.csv")

    ours = scores(FEATURES, Path(SPLIT), ["draws.json"], "a")
    theirs = scores(str(folder), folder / "label_idx.json", index_files, "b")
    pd.testing.assert_frame_equal(ours, theirs)


def test_arrays_by_class_and_lists_of_classes_are_evaluated(gaussians, capsys):
    table, (base, novel) = gaussians.table, vars(gaussians.split.validation).values()
    for file, classes in (("a.npz", base), ("b.npz", novel)):
        rows = {name: table.labels == table.class_names.index(name) for name in classes}
        np.savez(file, **{name: table.features[rows[name]] for name in classes})
    Path("lists").mkdir()
    for file, classes in (("train.csv", base[:8]), ("val.csv", base[8:]), ("test.csv", novel)):
        Path("lists", file).write_text("\n".join(["label", *classes]))
    command = ["evaluate", "--features", "a.npz", "b.npz", "--split", "lists", "--shots", "1"]
    command += ["--methods", "none", "--heads", "centroid", "--draws", "2"]

    assert main(command) == 0  # a class has 35 rows, so 7 test rows
    assert "8 base and 4 novel classes, 84 queries, 2 draws" in capsys.readouterr().out
    assert main([*command, "--phase", "test"]) == 0
    assert "8 base and 12 novel classes, 140 queries, 2 draws" in capsys.readouterr().out


def test_the_test_phase_says_how_often_it_was_read(capsys):
    for times in ("1 time", "2 times"):
        evaluate("--phase", "test", "--methods", "none")
        assert f"was read {times} so far" in capsys.readouterr().out
    assert len(TEST_READS.read_text().splitlines()) == 2


def spoil_log() -> None:
    Path("results").mkdir()
    TEST_READS.write_text('{"features": "x"}\n[1]\n')


def spoil_checkpoint() -> None:
    Path("kept").mkdir()
    Path("kept", "cCov-GAN-seed0.pt").write_text("nonsense")


# The tests of files, splits, settings and methods cover the other errors.
BAD_INPUTS: list[tuple[Callable[[], object] | None, list[str], str]] = [
    (Path(FEATURES).unlink, [], r"no such file: .*features\.parquet"),
    (lambda: Path(FEATURES).write_bytes(b"PAR1"), [], "cannot be read; it may be truncated"),
    (spoil_log, ["--phase", "test"], r"line 2 of results/test-reads\.jsonl is not a log entry: '"),
    (spoil_checkpoint, [*gan(), "--checkpoints", "kept"], r"cannot resume from kept/cCov-GAN-see"),
    (Path("taken").touch, ["--out", "taken"], "cannot write to taken: Not a directory"),
    (None, ["--ways", "5"], "--ways needs --protocol episodes"),
    (None, ["--protocol", "episodes", "--draws", "3"], "--draws needs --protocol benchmark"),
    (None, ["--protocol", "episodes", "--shots", "26"], "26 are needed; use a smaller --shots"),
    (None, ["--shots", "26"], "has 25 train rows, but 26 shots are requested; use --shots"),
    (None, ["--shots", "1,x"], "'1,x' is not a list of positive whole numbers"),
    (None, ["--draws", "-3"], "'-3' is not a positive whole number"),
    (None, ["--draws-file", "nowhere.json"], r"no such file: nowhere\.json"),
    (None, ["--methods", "table-1", "--heads", "knn"], "table-1 also needs --heads centroid,"),
    (None, ["--against", "cCov-GAN"], "no row 'cCov-GAN'"),
    (None, ["--device", "abacus"], "device abacus cannot be used"),
    (None, sets(num_draws="1000000000000"), "not enough memory"),
    (None, gan(ky_fan_order="9"), "ky_fan_order is 9, but features have 8 dimensions"),
    (None, gan(hidden_dim="9" * 23), "hidden_dim (is too large|must be at most)"),
    (None, gan(generator_learning_rate="1e30"), "cCov-GAN diverged at episode 0: "),
    (None, ["--methods", "none,PN", *sets(MN__dropout="0.5")], "MN is not one of none, PN"),
    (None, ["--methods", "none,PN", *sets(PN__num_tasks="5")], "unknown setting 'num_tasks', did"),
    (None, ["--methods", "none,PN", *sets(num_tasks="5")], "num_tasks: .* for MAML, Proto-MAML"),
]


@pytest.mark.parametrize(("spoil", "arguments", "message"), BAD_INPUTS)
def test_bad_input_ends_in_one_clear_line(spoil, arguments, message, capsys):
    if spoil is not None:
        spoil()

    assert re.search(message, refused(capsys, main, *COMMAND, "--out", "never", *arguments))
    assert not Path("never").exists()


@pytest.mark.slow
def test_a_closed_pipe_loses_no_results():
    command = [sys.executable, "-m", "cpaan", "evaluate", "--features", FEATURES, *QUICK]
    command += ["--methods", "none", "--out", "out"]

    done = subprocess.run(f"{' '.join(command)} | true", shell=True, capture_output=True, text=True)

    assert "Traceback" not in done.stderr
    assert Path("out", "results.json").exists()


def test_an_interrupted_run_writes_nothing(monkeypatch, capsys):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("cpaan.cli.evaluate.evaluate", interrupt)

    assert evaluate("--out", "out") == 130
    assert "interrupted" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_failed_write_shows_the_results_all_the_same(monkeypatch, capsys):
    def fail(self, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", fail)

    assert evaluate("--methods", "none", "--out", "out") == 2
    output, errors = capsys.readouterr()
    assert re.search(r"none +centroid", output)
    assert "results.csv: No space left on device" in errors
    assert not list(Path("out").iterdir())


def test_gans_are_trained_beside_controls_and_their_settings_kept(capsys):
    assert evaluate(*gan("none,copy,c-GAN,cDeLi-GAN"), "--out", "out") == 0

    output, progress = capsys.readouterr()
    assert re.search(r"cDeLi-GAN +centroid", output)
    assert "Diversity: mean distance of two synthetic examples" in output
    assert "cDeLi-GAN: episode 3 of 3, 0 s left" in progress
    content = results()
    assert content["settings"]["cDeLi-GAN"]["num_episodes"] == 3
    assert content["settings"]["c-GAN"]["hidden_dim"] == 8
    perplexity = content["settings"]["cDeLi-GAN"]["perplexity"]
    assert perplexity == content["config"]["perplexity"] == 4
    diversity = pd.DataFrame(content["diversity"])
    assert set(diversity["method"]) == {"copy", "c-GAN", "cDeLi-GAN"}
    assert (diversity["ratio"] > 0).all()


def test_a_kept_gan_is_not_trained_again_and_serves_the_test_phase(capsys):
    options = [*gan(), "--checkpoints", "kept", "--out"]
    assert evaluate(*options, "first") == 0
    assert evaluate(*options, "second") == 0

    first, second = (Path(name, "results.csv").read_text() for name in ("first", "second"))
    assert first == second
    assert "cCov-GAN: resuming from episode 3" in capsys.readouterr().err
    assert [path.name for path in Path("kept").iterdir()] == ["cCov-GAN-seed0.pt"]
    assert evaluate(*options, "test", "--phase", "test") == 0
    origin = results("test")["went_on_from"]["cCov-GAN, seed 0"]
    assert origin["episode"] == 3
    assert "commit" in origin


def test_as_printed_methods_have_the_settings_of_the_papers():
    small = sets(**{f"cCov-GAN.{name}": value for name, value in SMALL_GAN.items()})
    small += sets(num_ways="4", episode_shots="2", MN__num_examples="5", num_draws="2")
    options = ["--methods", "cCov-GAN,MN", "--as-printed", "--episodes", "2", "--shots", "1,5"]

    assert main(["evaluate", "--features", FEATURES, *options, *small, "--out", "out"]) == 0

    content = results()
    assert content["settings"]["cCov-GAN"]["generator_loss"] == "minimax"
    assert content["settings"]["cCov-GAN"]["perplexity"] is None
    assert content["config"]["fill_to_capacity"]
    assert content["config"]["mixing_shots"] is None
    settings, published = content["settings"]["MN"], METHODS["MN"].published.to_dict()
    changed = {name for name in settings if settings[name] != published[name]}
    assert changed == {"num_episodes", "num_ways", "num_examples", "episode_shots"}


@pytest.mark.slow
def test_the_whole_table_is_made_by_two_processes_printed_and_written(capsys):
    options = ["--methods", "table-1", *ALL_HEADS, "--jobs", "2", "--out", "out", *small_table()]

    status = evaluate(*options)

    output, progress = capsys.readouterr()
    assert status == 0, progress
    names = [name for name in rows_of_table() if name != "AWG-cosine"]
    assert f"({len(names)} of {len(names)})" in progress
    by_paper, by_validation = (
        output.split(f"Top-5, %, {rule}")[1].split("\n\n")[0].splitlines()[2:]
        for rule in (BY_PAPER, BY_VALIDATION)
    )
    for lines in (by_paper, by_validation):
        assert len(lines) == len(names)
        assert [line.split()[0] for line in lines] == names
    assert [line.split()[1] for line in by_paper] == [ROWS[name].head for name in names]
    scores = pd.read_csv("out/results.csv")
    assert list(dict.fromkeys(scores["method"])) == names
    markdown, latex = (Path("out", f"table-1.{kind}").read_text() for kind in ("md", "tex"))
    cells = [line.split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    assert [row[3] for row in cells if row[3] != "row"] == 4 * names  # scores, differences; twice
    lines = [line.split(" & ") for line in latex.splitlines() if line.endswith(r"\\")]
    assert [row[3] for row in lines if len(row) > 5 and row[3] in names] == 2 * names
    (line, *_) = [line for line in markdown.splitlines() if " | cCov-GAN-PN | " in line]
    # The paper's LSL and GLSL at one and five shots.
    assert line.endswith("| 48.4 | 70.2 | 58.5 | 73.5 |")
    content = results()
    assert content["failed"] == {}
    assert {row["head"] for row in content["heads"]} == {*HEADS, OWN}

    # All parts are cached, so the same command repeats no work.
    assert evaluate(*options) == 0
    again, progress = capsys.readouterr()
    assert f"{len(names)} of {len(names)} parts loaded from the cache" in progress
    assert again == output


def test_the_table_is_kept_where_nobody_says(capsys):
    Path("results").touch()

    assert evaluate("--methods", "table-1", *ALL_HEADS) == 2
    assert "cannot write to results/table-1" in capsys.readouterr().err


def test_a_setting_is_for_all_methods_that_have_it_or_for_one_by_its_name():
    small = sets(dropout="0.25", PN__dropout="0.75", AWG__episode_shots="1,2")
    small += sets(PN__episode_shots="1", PN__hidden_dim="8", shots="1,5")
    options = ["--methods", "none,PN,AWG", "--episodes", "2", "--out", "out"]

    assert evaluate(*options, *small) == 0

    content = results()
    settings = content["settings"]
    assert (settings["PN"]["dropout"], settings["AWG"]["dropout"]) == (0.75, 0.25)
    assert (settings["PN"]["episode_shots"], settings["AWG"]["episode_shots"]) == ([1], [1, 2])
    assert settings["PN"]["num_episodes"] == settings["AWG"]["num_episodes"] == 2
    assert settings["none"] == {}
    assert content["config"]["shots"] == [1, 5], "those of an evaluation are not of an episode"


def test_the_embedding_of_methods_is_set_by_the_row_of_pn():
    embedding = sets(
        PN__episode_shots="1,2", PN__hidden_dim="8", PN__dropout="0.1", PN__num_episodes="4"
    )

    assert evaluate(*gan("c-GAN-PN"), *embedding, "--out", "out") == 0

    content = results()
    assert list(content["settings"]) == ["c-GAN-PN"]
    assert content["embedding"]["dropout"] == 0.1
    assert content["embedding"]["num_episodes"] == 4  # --episodes is not for the embedding
    assert {row["method"] for row in content["rows"]} == {"c-GAN-PN"}


def test_cosine_trained_features_are_for_their_row(gaussians):
    write_features(Path("cosine.parquet"), in_other_order(gaussians.table))
    options = ["--cosine-features", "cosine.parquet", "--methods", "AWG,AWG-cosine", "--out", "out"]
    small = sets(**{"AWG.episode_shots": "1,2", "AWG-cosine.episode_shots": "1,2"})

    assert evaluate(*options, "--episodes", "2", *small) == 0

    scores = pd.read_csv("out/results.csv")
    assert results()["features"]["cosine_fingerprint"] != gaussians.table.fingerprint
    plain, cosine = (
        scores[scores["method"] == name].drop(columns="method").reset_index(drop=True)
        for name in ("AWG", "AWG-cosine")
    )
    pd.testing.assert_frame_equal(plain, cosine)
