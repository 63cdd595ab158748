"""The command as a person meets it: the table, the files, and one line for every mistake."""

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpaan import FeatureTable, write_features
from cpaan.cli import main
from cpaan.core.provenance import TEST_READS
from cpaan.core.settings import parse_settings
from cpaan.data.synthetic import GaussianClasses
from cpaan.data.table import TRAIN
from cpaan.gan.config import TrainConfig
from cpaan.methods.registry import ROWS, rows_of_table
from cpaan.protocol.config import HEADS, OWN, EvaluationConfig
from cpaan.report.table_one import BY_PAPER, BY_VALIDATION
from cpaan.representation.config import BackboneConfig, EmbeddingConfig
from helpers.tables import in_other_order

QUICK = ["--shots", "1,5", "--set", "perplexity=4", "--set", "linear_num_steps=5"]
QUICK += ["--set", "num_draws=2", "--heads", "centroid"]
ALL_HEADS = ("--heads", ",".join(HEADS))

SMALL_GAN = {
    "num_ways": "4",
    "episode_shots": "1,2",
    "batch_size": "20",
    "hidden_dim": "8",
    "noise_dim": "2",
    "ky_fan_order": "3",
}


def gan(name: str = "cCov-GAN", **settings: str) -> list[str]:
    """Return options that train a GAN within a second."""
    values = {**SMALL_GAN, **settings}
    sets = [part for pair in values.items() for part in ("--set", "=".join(pair))]
    return ["--methods", name, "--episodes", "3", *sets]


def small_table(num_episodes: int = 2) -> list[str]:
    """Return options with which every row of the table takes a moment."""
    of_all = {
        **SMALL_GAN,
        **{"num_synthetic": "5", "num_queries": "2", "num_clusters": "3", "num_tasks": "2"},
        **{"num_classifier_steps": "5", "num_augmented": "3", "num_samples": "5"},
    }
    names = ("PN", "MN", "PMN", "AWG", "MAML", "Proto-MAML", "FI-PN", "FI-PMN", "wDAE")
    sets = [f"{name}={value}" for name, value in of_all.items()]
    sets += [f"{name}.episode_shots=1,2" for name in names]
    return ["--episodes", str(num_episodes), *(part for each in sets for part in ("--set", each))]


@pytest.fixture
def files(gaussians: GaussianClasses, tmp_path: Path) -> tuple[Path, Path]:
    """Features and split of the small synthetic set as files."""
    write_features(tmp_path / "features.parquet", gaussians.table)
    phases = {
        name: {"base": gaussians.split.phase(name).base, "novel": gaussians.split.phase(name).novel}
        for name in ("validation", "test")
    }
    (tmp_path / "split.json").write_text(json.dumps(phases))
    return tmp_path / "features.parquet", tmp_path / "split.json"


def evaluate(features: Path, split: Path, *arguments: str) -> int:
    return main(
        ["evaluate", "--features", str(features), "--split", str(split), *QUICK, *arguments]
    )


def test_the_table_is_printed_and_written(files, tmp_path, capsys):
    status = evaluate(*files, "--methods", "none,copy", *ALL_HEADS, "--out", str(tmp_path / "out"))

    output, progress = capsys.readouterr()
    assert status == 0
    assert "12 base and 12 novel classes, 240 queries, 2 draws" in output
    assert re.search(r"copy +linear", output)
    assert "Top-5 minus none, same head" in output
    assert "copy, seed 0: draws 1 to 2 of 2" in progress
    scores = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(scores.columns) == [
        *("method", "head", "phase", "column", "shots", "draw", "seed", "top1", "top5")
    ]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert content["rows"][0] == pytest.approx(scores.iloc[0].to_dict())
    assert content["config"]["perplexity"] == 4
    assert {"command", "commit", "torch"} <= set(content["run"])
    assert len(content["summary"]) == 2 * 4 * 5 * 2
    assert "<svg" in (tmp_path / "out" / "accuracy.svg").read_text()


def test_printed_means_are_those_of_the_file(files, tmp_path, capsys):
    evaluate(*files, "--methods", "none", "--heads", "centroid", "--out", str(tmp_path / "out"))

    scores = pd.read_csv(tmp_path / "out" / "results.csv")
    at_one_shot = scores[(scores["column"] == "novel") & (scores["shots"] == 1)]
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "±" in x and "none" in x]
    assert line.split()[2].startswith(f"{at_one_shot['top5'].mean():.1f}±")


def test_hdf5_with_the_benchmarks_files_gives_the_same_scores(files, gaussians, tmp_path, capsys):
    """The same table in the form of the benchmark: HDF5 pair, label index, index files."""
    table, split = gaussians.table, gaussians.split
    names = list(reversed(table.class_names))
    folder = tmp_path / "hdf5"
    folder.mkdir()
    number_of = {name: number for number, name in enumerate(names)}
    label_of_row = np.array([number_of[table.class_names[label]] for label in table.labels])
    order = np.argsort(label_of_row, kind="stable")
    for name, is_part in (("train", table.is_train), ("val", ~table.is_train)):
        rows = order[is_part[order]]
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            file["all_feats"], file["all_labels"] = table.features[rows], label_of_row[rows]
            file["count"] = [len(rows)]
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
        index_files.append(tmp_path / f"splitfile_{draw}.json")
        index = [[position_of[row] for row in rows[name]] for name in names]
        index_files[-1].write_text(json.dumps(index))
    (tmp_path / "draws.json").write_text(json.dumps({"draws": draws}))
    options = ["--methods", "none", "--heads", "centroid,knn", "--shots", "1,5", "--out"]

    def status(features: Path, split: Path, draws: list[Path], out: str) -> int:
        data = ["--features", str(features), "--split", str(split)]
        return main(["evaluate", *data, "--draws-file", *map(str, draws), *options, out])

    assert status(*files, [tmp_path / "draws.json"], "a") == 0
    assert status(folder, folder / "label_idx.json", index_files, "b") == 0

    ours, theirs = (pd.read_csv(Path(name) / "results.csv") for name in ("a", "b"))
    pd.testing.assert_frame_equal(ours, theirs)


def test_the_test_phase_says_how_often_it_was_read(files, capsys):
    options = ["--phase", "test", "--methods", "none", "--heads", "centroid"]

    evaluate(*files, *options)
    assert "was read 1 times so far" in capsys.readouterr().out
    evaluate(*files, *options)
    assert "was read 2 times so far" in capsys.readouterr().out
    assert len(TEST_READS.read_text().splitlines()) == 2


def test_the_split_beside_the_features_is_found(files, capsys):
    options = ["evaluate", "--features", str(files[0]), *QUICK, "--methods", "none"]
    assert main(options) == 0

    files[1].unlink()
    assert main(options) == 2
    assert "no split.json or label_idx.json in" in capsys.readouterr().err

    files[0].unlink()
    assert main(options) == 2
    assert "no such file" in capsys.readouterr().err


def rewrite(change: Callable[[dict], None]) -> Callable[[Path, Path], None]:
    """Return a change of the split file."""

    def apply(features: Path, split: Path) -> None:
        content = json.loads(split.read_text())
        change(content)
        split.write_text(json.dumps(content))

    return apply


def with_table(**changes) -> Callable[[Path, Path], None]:
    """Return a change of the feature file: some arguments of from_arrays by functions."""

    def apply(features: Path, split: Path) -> None:
        from cpaan import open_features

        table = open_features(features)
        names = [table.class_names[label] for label in table.labels]
        parts = {
            "features": np.array(table.features),
            "classes": names,
            "partitions": np.where(table.is_train, "train", "test").tolist(),
        }
        parts |= {name: change(parts) for name, change in changes.items()}
        write_features(features, FeatureTable.from_arrays(**parts))

    return apply


def truncate(features: Path, split: Path) -> None:
    features.write_bytes(features.read_bytes()[:-100])


def with_columns(**changes) -> Callable[[Path, Path], None]:
    """Return a change of the file that no table of ours could hold: columns by functions."""

    def apply(features: Path, split: Path) -> None:
        columns = pq.read_table(features).to_pydict()
        for name, change in changes.items():
            columns[name] = change(columns[name])
        kept = {name: column for name, column in columns.items() if column is not None}
        features.unlink()
        pq.write_table(pa.table(kept), features)

    return apply


def as_truncated_hdf5(features: Path, split: Path) -> None:
    """Replace the feature file by a folder with an HDF5 pair, one of them cut short."""
    features.unlink()
    features.mkdir()
    for name in ("train", "val"):
        with h5py.File(features / f"{name}.hdf5", "w") as file:
            file["all_feats"] = np.ones((500, 8), np.float32)
            file["all_labels"], file["count"] = np.zeros(500, np.int32), [500]
    content = (features / "val.hdf5").read_bytes()
    (features / "val.hdf5").write_bytes(content[: len(content) // 2])


NOVEL = "family00-validation-novel-0"

BAD_INPUTS = {
    "no such features": (
        lambda features, split: features.unlink(),
        [],
        r"no such file: .*features\.parquet",
    ),
    "no such split": (lambda features, split: split.unlink(), [], r"no such file: .*split\.json"),
    "truncated features": (truncate, [], r"features\.parquet cannot be read, truncated or damaged"),
    "a truncated HDF5 file": (
        as_truncated_hdf5,
        [],
        r"val\.hdf5 cannot be read, truncated or damaged",
    ),
    "a missing column": (
        with_columns(partition=lambda column: None),
        [],
        r"features\.parquet: column partition missing",
    ),
    "NaN in a feature": (
        with_columns(feature=lambda rows: [*rows[:-1], [float("nan")] * 8]),
        [],
        r"features\.parquet: NaN or infinity in the features of row 1679",
    ),
    "an odd partition": (
        with_columns(partition=lambda names: ["dev", *names[1:]]),
        [],
        "partition of row 0 is 'dev', but it must be 'train' or 'test'",
    ),
    "widths that differ": (
        with_columns(feature=lambda rows: [*rows[:-1], rows[-1][:3]]),
        [],
        "row 1679 has 3 dimensions, but the rows before it have 8",
    ),
    "a pickle": (
        lambda features, split: features.write_bytes(pickle.dumps([1.0])),
        [],
        r"features\.parquet is refused: pickles",
    ),
    "a class in two groups": (
        rewrite(lambda s: s["test"]["novel"].append(s["validation"]["base"][0])),
        [],
        "class family00-validation-base-0 is in the base classes of validation and in the novel",
    ),
    "an empty group": (
        rewrite(lambda s: s["test"].update(base=[])),
        [],
        "there are no base classes of test",
    ),
    "classes that the table lacks": (
        rewrite(lambda s: s["validation"]["novel"].extend(["yeti", "unicorn"])),
        [],
        "the features lack classes yeti, unicorn of the split",
    ),
    "no test rows": (
        with_table(partitions=lambda parts: ["train"] * len(parts["classes"])),
        [],
        r"no test rows for classes family00-validation-base-0, .* and 19 more",
    ),
    "fewer rows than shots": (
        lambda features, split: None,
        ["--shots", "26"],
        f"class {NOVEL} has 25 train rows, but 26 shots are wanted",
    ),
    "a trained novel class": (
        with_table(backbone_classes=lambda parts: [NOVEL]),
        [],
        rf"trained on 1 of 12 novel classes of the validation phase \(class {NOVEL}\)",
    ),
    "shots that are no number": (None, ["--shots", "1,x"], "'x' is not a positive whole number"),
    "no shots": (None, ["--shots", "0"], "'0' is not a positive whole number"),
    "negative draws": (None, ["--draws", "-3"], "'-3' is not a positive whole number"),
    "broken draws": (None, ["--draws", "2.5"], "'2.5' is not a positive whole number"),
    "an unknown method": (
        None,
        ["--methods", "none,copi"],
        "unknown method 'copi', did you mean copy",
    ),
    "an unknown head": (None, ["--heads", "svm"], "heads are centroid, cosine, knn, linear"),
    "an unknown setting": (None, ["--set", "speed=9"], "unknown setting 'speed'"),
    "an unknown phase": (None, ["--phase", "train"], "invalid choice: 'train'"),
    "an unknown row to compare with": (None, ["--against", "cCov-GAN"], "no row 'cCov-GAN'"),
    "an impossible perplexity": (
        None,
        ["--set", "perplexity=500", "--methods", "copy"],
        "perplexity must be above 1 and below the number of base classes, 24, got 500",
    ),
    "perplexity where the default is too much": (
        rewrite(lambda s: [phase.update(base=phase["base"][:4]) for phase in s.values()]),
        ["--set", "perplexity=10"],
        r"below the number of base classes, 8, got 10.0 \(--set perplexity=",
    ),
    "a Ky Fan order above the width": (
        None,
        gan(ky_fan_order="9"),
        "ky_fan_order is 9, but features have 8 dimensions",
    ),
    "more neighbours than base classes": (
        None,
        gan(neighbours="hard", num_neighbours="21"),
        "num_neighbours is 21, but there are 20 base classes",
    ),
    "more neighbours than base classes, for a control": (
        None,
        ["--methods", "copy", "--set", "neighbours=hard", "--set", "num_neighbours=25"],
        "num_neighbours is 25, but there are 24 base classes",
    ),
    "more shots in an episode than classes hold": (
        None,
        gan(episode_shots="26", batch_size="200"),
        "episode_shots go up to 26, but the smallest base class has 25 examples",
    ),
    "too many ways": (
        None,
        gan(num_ways="23", batch_size="200"),
        "num_ways is 23, but of 24 base classes at least 2 must be left",
    ),
    "a batch that shots fill": (
        None,
        gan(batch_size="8"),
        "batch_size must be above num_ways times the most episode_shots, 4 x 2, got 8",
    ),
    "a negative weight": (
        None,
        gan(covariance_weight="-1"),
        "covariance_weight must be finite and not negative, got -1.0",
    ),
    "an unknown kind of neighbours": (
        None,
        gan(neighbours="close"),
        "neighbours must be one of soft, hard, none, got 'close'",
    ),
    "a GAN without any term": (
        None,
        gan("c-GAN", adversarial_weight="0", prototype_weight="0"),
        "c-GAN has nothing to learn: adversarial_weight, prototype_weight are all zero",
    ),
    "a learning rate beyond all numbers": (
        None,
        gan(generator_learning_rate="1e300"),
        "generator_learning_rate must be positive and finite, got 1e\\+300",
    ),
    "a width beyond all machines": (None, gan(hidden_dim="9" * 23), "hidden_dim must be at most"),
    "more shots than capacity": (
        None,
        [*gan(), "--shots", "25", "--set", "fill_to_capacity=true"],
        "base classes have 25 examples on average: novel classes with 25 shots cannot be filled",
    ),
    "no episodes": (None, ["--episodes", "0"], "'0' is not a positive whole number"),
    "training that diverges": (
        None,
        gan(generator_learning_rate="1e30"),
        "cCov-GAN diverged: at episode 1, ",
    ),
    "a checkpoint that is none": (
        lambda features, split: (
            Path("kept").mkdir(),
            Path("kept", "cCov-GAN-seed0.pt").write_text("nonsense"),
        ),
        [*gan(), "--checkpoints", "kept"],
        r"cannot resume from kept/cCov-GAN-seed0\.pt",
    ),
    "no such device": (None, ["--device", "abacus"], "device abacus cannot be used"),
    "more than memory holds": (None, ["--set", "num_draws=1000000000000"], "not enough memory"),
    "more shots than there are": (None, ["--shots", "1000000000000"], "25 train rows, but 1000"),
    "a folder for a split": (
        lambda features, split: (split.unlink(), split.mkdir()),
        [],
        r"split\.json cannot be read: Is a directory",
    ),
    "a damaged log of test reads": (
        lambda features, split: (
            Path("results").mkdir(),
            TEST_READS.write_text('{"features": "x"}\n[1]\n'),
        ),
        ["--phase", "test"],
        r"line 2 of results/test-reads\.jsonl is no entry of the log: '\[1\]'",
    ),
    "the table without the heads of its rows": (
        None,
        ["--methods", "table-1", "--heads", "knn", *small_table()],
        "table-1 needs the heads centroid, linear too",
    ),
    "the table and a row of it": (
        None,
        ["--methods", "table-1,PN"],
        "each method is wanted once, got 'table-1, PN'",
    ),
    "no features for a row": (
        None,
        ["--methods", "AWG-cosine"],
        r"AWG-cosine needs features of .* \(--cosine-features\)",
    ),
    "a setting of a method that is not evaluated": (
        None,
        ["--methods", "none,PN", "--set", "MN.dropout=0.5"],
        "MN is not one of none, PN",
    ),
    "a setting that a method has not": (
        None,
        ["--methods", "none,PN", "--set", "PN.num_tasks=5"],
        "unknown setting 'num_tasks': the names are",
    ),
    "a setting of a method of another type": (
        None,
        ["--methods", "PN", "--set", "PN.dropout=much"],
        "setting dropout needs a number, got 'much'",
    ),
    "episodes that base classes are too small for": (
        None,
        ["--methods", "MN", "--set", "MN.episode_shots=21"],
        "has 25 train rows, but 2 classes with as many as the most shots",
    ),
    "no such draws": (None, ["--draws-file", "nowhere.json"], r"no such file: nowhere\.json"),
    "an output folder that is a file": (
        lambda features, split: Path("taken").write_text("mine"),
        ["--out", "taken"],
        "cannot write to taken: Not a directory",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_ends_in_one_clear_line(name, files, capsys):
    spoil, arguments, message = BAD_INPUTS[name]
    if spoil is not None:
        spoil(*files)

    try:
        status = evaluate(*files, "--out", "never", *arguments)
    except SystemExit as stop:  # argparse's own way
        status = stop.code

    output, errors = capsys.readouterr()
    assert status == 2
    lines = [line for line in errors.splitlines() if not line.startswith("[")]  # progress
    assert len(lines) == 1, errors
    assert re.search(message, lines[0]), lines[0]
    assert output == ""
    assert not Path("never").exists()


def test_a_trained_novel_class_is_evaluated_when_the_user_insists(files, capsys):
    with_table(backbone_classes=lambda parts: [NOVEL])(*files)

    assert evaluate(*files, "--methods", "none", "--allow-trained-novel") == 0


@pytest.mark.slow
def test_a_closed_pipe_loses_no_results(files, tmp_path):
    command = [sys.executable, "-m", "cpaan", "evaluate", "--features", str(files[0])]
    command += ["--split", str(files[1]), *QUICK, "--methods", "none", "--out", "out"]

    done = subprocess.run(
        f"{' '.join(command)} | true", shell=True, cwd=tmp_path, capture_output=True, text=True
    )

    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "results.json").exists()


def test_an_interrupted_run_writes_nothing(files, tmp_path, monkeypatch, capsys):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("cpaan.cli.evaluate.evaluate", interrupt)

    assert evaluate(*files, "--out", "out") == 130
    assert "interrupted" in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_damaged_log_does_not_matter_to_validation(files, capsys):
    Path("results").mkdir()
    TEST_READS.write_text("damaged")

    assert evaluate(*files, "--methods", "none") == 0


def test_a_failed_write_shows_the_results_all_the_same(files, monkeypatch, capsys):
    def fail(self, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", fail)

    assert evaluate(*files, "--methods", "none", "--out", "out") == 2
    output, errors = capsys.readouterr()
    assert re.search(r"none +centroid", output)
    assert "results.csv: No space left on device" in errors
    assert not list(Path("out").iterdir())


def test_one_method_is_compared_with_nothing(files, capsys):
    evaluate(*files, "--methods", "none")

    assert "paired by draw" not in capsys.readouterr().out


def test_help_teaches_with_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "--help"])

    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "novel queries among the novel classes (LSL)" in text


def test_gans_are_trained_beside_controls_and_their_settings_kept(files, tmp_path, capsys):
    status = evaluate(*files, *gan("none,copy,c-GAN,cDeLi-GAN"), "--out", "out")

    output, progress = capsys.readouterr()
    assert status == 0
    assert re.search(r"cDeLi-GAN +centroid", output)
    assert "Diversity: mean distance of two synthetic examples" in output
    assert "cDeLi-GAN: episode 3 of 3, 0 s left" in progress
    content = json.loads(Path("out", "results.json").read_text())
    assert content["settings"]["cDeLi-GAN"]["num_episodes"] == 3
    assert content["settings"]["c-GAN"]["hidden_dim"] == 8
    perplexity = content["settings"]["cDeLi-GAN"]["perplexity"]
    assert perplexity == content["config"]["perplexity"] == 4
    diversity = pd.DataFrame(content["diversity"])
    assert set(diversity["method"]) == {"copy", "c-GAN", "cDeLi-GAN"}
    assert (diversity["ratio"] > 0).all()


def test_a_kept_gan_is_not_trained_again(files, capsys):
    options = [*gan(), "--checkpoints", "kept", "--out"]
    assert evaluate(*files, *options, "first") == 0
    assert evaluate(*files, *options, "second") == 0

    first, second = (Path(name, "results.csv").read_text() for name in ("first", "second"))
    assert first == second
    assert "cCov-GAN: resuming from episode 3" in capsys.readouterr().err
    assert [path.name for path in Path("kept").iterdir()] == ["cCov-GAN-seed0.pt"]


def test_a_kept_gan_of_other_settings_is_refused(files, capsys):
    evaluate(*files, *gan(), "--checkpoints", "kept")

    assert evaluate(*files, *gan(cycle_weight="1"), "--checkpoints", "kept") == 2
    assert "trained with cycle_weight = 5.0 and not 1.0" in capsys.readouterr().err


def test_the_seed_decides_a_gan(files):
    for seed, out in (("0", "a"), ("0", "b"), ("1", "c")):
        evaluate(*files, *gan(), "--heads", "centroid", "--seed", seed, "--out", out)

    same, again, other = (
        pd.read_csv(Path(out, "results.csv")).drop(columns="seed") for out in ("a", "b", "c")
    )
    pd.testing.assert_frame_equal(same, again)
    assert not same["top5"].equals(other["top5"])


def test_as_printed_trains_and_fills_as_the_paper_does(files, tmp_path):
    small = {**SMALL_GAN, "episode_shots": "2"}
    sets = [part for pair in small.items() for part in ("--set", "=".join(pair))]
    options = ["--methods", "cCov-GAN", "--as-printed", "--episodes", "2", *sets]

    status = main(
        ["evaluate", "--features", str(files[0]), "--shots", "1,5", "--out", "out", *options]
    )

    content = json.loads(Path("out", "results.json").read_text())
    assert status == 0
    assert content["settings"]["cCov-GAN"]["generator_loss"] == "minimax"
    assert content["settings"]["cCov-GAN"]["perplexity"] is None
    assert content["config"]["fill_to_capacity"]
    assert content["config"]["mixing_shots"] is None


def test_a_gan_is_trained_once_for_both_phases(files, capsys):
    """The validation phase chooses the priors of the test phase, with the same generator."""
    assert evaluate(*files, *gan(), "--phase", "test", "--out", "out") == 0

    progress = capsys.readouterr().err
    assert progress.count("cCov-GAN: episode 3 of 3") == 1
    assert progress.count("cCov-GAN, seed 0: draws") == 2


def test_a_gan_kept_from_validation_serves_the_test_phase(files, capsys):
    evaluate(*files, *gan(), "--checkpoints", "kept")

    assert evaluate(*files, *gan(), "--checkpoints", "kept", "--phase", "test", "--out", "out") == 0
    content = json.loads(Path("out", "results.json").read_text())
    origin = content["went_on_from"]["cCov-GAN, seed 0"]
    assert origin["episode"] == 3
    assert "commit" in origin


@pytest.mark.slow
def test_the_whole_table_is_made_by_two_processes_printed_and_written(files, capsys):
    options = ["--methods", "table-1", *ALL_HEADS, "--jobs", "2", "--out", "out", *small_table()]

    status = evaluate(*files, *options)

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
        for name, line in zip(names, lines, strict=True):
            assert f" {name} " in line
    for name, line in zip(names, by_paper, strict=True):
        assert line.rpartition(f" {name} ")[2].split()[0] == ROWS[name].head
    scores = pd.read_csv("out/results.csv")
    assert list(dict.fromkeys(scores["method"])) == names
    markdown, latex = (Path("out", f"table-1.{kind}").read_text() for kind in ("md", "tex"))
    cells = [line.split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    assert [row[3] for row in cells if row[3] != "row"] == 4 * names  # ours, minus the best; twice
    lines = [line.split(" & ") for line in latex.splitlines() if line.endswith(r"\\")]
    assert [row[3] for row in lines if len(row) > 5 and row[3] in names] == 2 * names
    (line, *_) = [line for line in markdown.splitlines() if " | cCov-GAN-PN | " in line]
    # At one and at five shots, LSL and GLSL, as the paper prints them.
    assert line.endswith("| 48.4 | 70.2 | 58.5 | 73.5 |")
    content = json.loads(Path("out/results.json").read_text())
    assert content["failed"] == {}
    assert {row["head"] for row in content["heads"]} == {*HEADS, OWN}

    # All of it is kept: the same command does nothing again.
    assert evaluate(*files, *options) == 0
    again, progress = capsys.readouterr()
    assert f"{len(names)} of {len(names)} parts were measured before" in progress
    assert again == output


def test_the_table_is_kept_where_nobody_says(files, capsys):
    Path("results").touch()

    assert evaluate(*files, "--methods", "table-1") == 2
    assert "cannot write to results/table-1" in capsys.readouterr().err


def test_a_setting_is_for_all_methods_that_have_it_or_for_one_by_its_name(files):
    sets = ["--set", "dropout=0.25", "--set", "PN.dropout=0.75", "--set", "AWG.episode_shots=1,2"]
    sets += ["--set", "PN.episode_shots=1", "--set", "PN.hidden_dim=8", "--set", "shots=1,5"]

    status = evaluate(*files, "--methods", "none,PN,AWG", "--episodes", "2", "--out", "out", *sets)

    content = json.loads(Path("out", "results.json").read_text())
    settings = content["settings"]
    assert status == 0
    assert (settings["PN"]["dropout"], settings["AWG"]["dropout"]) == (0.75, 0.25)
    assert (settings["PN"]["episode_shots"], settings["AWG"]["episode_shots"]) == ([1], [1, 2])
    assert settings["PN"]["num_episodes"] == settings["AWG"]["num_episodes"] == 2
    assert settings["none"] == {}
    assert content["config"]["shots"] == [1, 5], "those of an evaluation are not of an episode"


def test_the_embedding_of_methods_is_set_by_the_row_of_pn(files):
    embedding = [
        "--set",
        "PN.episode_shots=1,2",
        "--set",
        "PN.hidden_dim=8",
        "--set",
        "PN.dropout=0.1",
    ]

    status = evaluate(*files, *gan("c-GAN-PN"), *embedding, "--out", "out")

    content = json.loads(Path("out", "results.json").read_text())
    assert status == 0
    assert list(content["settings"]) == ["c-GAN-PN"]
    assert content["embedding"]["dropout"] == 0.1
    assert content["embedding"]["num_episodes"] == 3
    assert {row["method"] for row in content["rows"]} == {"c-GAN-PN"}


def test_as_printed_a_baseline_has_the_settings_of_its_source(files):
    sets = ["--set", "MN.episode_shots=1,2", "--set", "num_ways=5", "--set", "num_examples=5"]

    status = evaluate(
        *files, "--methods", "MN", "--as-printed", "--episodes", "2", "--out", "out", *sets
    )

    settings = json.loads(Path("out", "results.json").read_text())["settings"]["MN"]
    assert status == 0
    published = ROWS["MN"].published.to_dict()
    changed = {name for name in settings if settings[name] != published[name]}
    assert changed == {"num_episodes", "num_ways", "num_examples", "episode_shots"}


def test_cosine_trained_features_are_for_their_row(files, gaussians):
    write_features(Path("cosine.parquet"), in_other_order(gaussians.table))
    sets = [
        "--set",
        "AWG.episode_shots=1,2",
        "--set",
        "AWG-cosine.episode_shots=1,2",
        "--episodes",
        "2",
    ]

    status = evaluate(
        *files,
        *("--cosine-features", "cosine.parquet", "--methods", "AWG,AWG-cosine", "--out", "out"),
        *sets,
    )

    assert status == 0
    scores = pd.read_csv("out/results.csv")
    plain, cosine = (
        scores[scores["method"] == name].drop(columns="method").reset_index(drop=True)
        for name in ("AWG", "AWG-cosine")
    )
    pd.testing.assert_frame_equal(plain, cosine)


def test_settings_are_listed_with_values_and_meanings(capsys):
    assert main(["settings"]) == 0

    text = capsys.readouterr().out
    assert "  cycle_weight=5.0\n" in text
    assert "  residual=identity    (as printed: none)\n      What a generator's output is" in text
    assert "  perplexity=10.0    (as printed: none)\n      NBS-S: how many base classes" in text
    assert "  episode_shots=1,2,5,10,20    (as printed: 10)\n" in text
    names = {*EvaluationConfig().to_dict(), *TrainConfig().to_dict()}
    assert all(f"  {name}=" in text for name in names)


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("Evaluation", EvaluationConfig()),
        ("Meta-training", TrainConfig()),
        ("Backbone", BackboneConfig()),
        ("Embedding", EmbeddingConfig()),
    ],
)
def test_every_listed_value_can_be_set(title, config, capsys):
    main(["settings"])
    sections = capsys.readouterr().out.split("\n\n")
    (section,) = [each for each in sections if each.startswith(title)]
    assignments = [x.split()[0] for x in section.splitlines() if re.match(r"  \w+=", x)]

    (settings,) = parse_settings(assignments, config)

    assert set(settings) == set(config.to_dict())
    assert type(config)(**settings) == config
