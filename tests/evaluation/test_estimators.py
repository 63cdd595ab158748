"""Estimators on arrays: equal to the evaluation, with scikit-learn's conventions."""

import doctest

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestCentroid
from sklearn.utils.estimator_checks import parametrize_with_checks

import cpaan
from cpaan import Augmenter, EvaluationConfig, FeatureTable, LowShotClassifier, Phase, Split
from cpaan.data.splits import draw_shots
from cpaan.evaluation import estimators
from cpaan.methods.registry import METHODS, ROWS, num_episodes_of
from cpaan.representation.config import EmbeddingConfig
from helpers.runs import TINY

BASE, NOVEL = [f"a{number:02d}" for number in range(16)], [f"n{number}" for number in range(5)]


def new_table() -> FeatureTable:
    rng = np.random.default_rng(0)
    names = [*BASE, *NOVEL, "z"]
    classes = np.repeat(names, 20)
    features = rng.normal(size=(len(names), 6)).repeat(20, axis=0) * 2
    features += rng.normal(size=features.shape)
    partitions = np.tile(["train"] * 12 + ["test"] * 8, len(names))
    return FeatureTable.from_arrays(features.astype(np.float32), classes, partitions)


TABLE = new_table()
SPLIT = Split(Phase(tuple(BASE[:8]), tuple(NOVEL)), Phase(tuple(BASE[8:]), ("z",)))


def rows(names: list[str], partition: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the features and labels of some classes."""
    numbers = [TABLE.rows_of(name, partition) for name in names]
    labels = np.repeat(names, [len(of_class) for of_class in numbers])
    return TABLE.features[np.concatenate(numbers)], labels


TRAIN = rows(BASE, "train")


def tiny(name: str) -> dict[str, object]:
    return {key: value for key, value in TINY.items() if key in METHODS[name].config.to_dict()}


def shots_of(num_shots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the shots of draw 0, as `evaluate` draws them."""
    drawn = draw_shots(TABLE, SPLIT.validation, num_draws=1, max_shots=num_shots, seed=0)[0]
    return TABLE.features[drawn.flatten()], np.repeat(NOVEL, num_shots)


def top1_of(name: str, head: str) -> float:
    """Return LSL top-1 accuracy with two shots, by `evaluate`."""
    config = EvaluationConfig(shots=(2,), num_draws=1, heads=(head,))
    training = METHODS[name].config.with_overrides({**METHODS[name].quick, **tiny(name)})
    settings = {"PN": EmbeddingConfig().with_overrides(METHODS["PN"].quick), name: training}
    results = cpaan.evaluate(TABLE, SPLIT, methods=[name], config=config, settings=settings)
    return float(results.scores.query("column == 'novel'")["top1"].iloc[0])


@pytest.mark.parametrize(
    ("name", "head"),
    [
        *(("none", "knn"), ("copy", "cosine"), ("cCov-GAN", "centroid"), ("DC", "knn")),
        *(("AWG", "own"), ("PN", "centroid"), ("P-FH", "knn"), ("c-GAN-PN", "centroid")),
    ],
)
def test_classifier_scores_as_evaluate(name: str, head: str) -> None:
    model = LowShotClassifier(name, head=head, among="novel", settings=tiny(name))
    model.fit(*TRAIN).adapt(*shots_of(2))
    assert 100 * model.score(*rows(NOVEL, "test")) == top1_of(name, head)


def test_weighted_centroids_of_augmented_examples_score_as_evaluate() -> None:
    augmenter = Augmenter("mean-shift").fit(*TRAIN)
    features, labels, weight = augmenter.augment(*shots_of(2), n_synthetic=100)
    centroids = np.stack(
        [np.average(features[labels == name], 0, weight[labels == name]) for name in NOVEL]
    )
    queries, truth = rows(NOVEL, "test")
    nearest = np.square(queries[:, None] - centroids).sum(-1).argmin(1)
    accuracy = 100 * (np.array(NOVEL)[nearest] == truth).mean()
    assert accuracy == top1_of("mean-shift", "centroid")


def test_synthetic_examples_together_count_as_mixing_shots() -> None:
    augmenter = Augmenter("copy", settings={"mixing_shots": 3.0}).fit(*TRAIN)
    shots, labels = shots_of(4)
    uneven = [0, 1, 4, 8, 12, 16]  # two shots of the first class, one of the others
    _, y, weight = augmenter.augment(shots[uneven], labels[uneven], n_synthetic=10)
    for name, num_shots in zip(NOVEL, (2, 1, 1, 1, 1), strict=True):
        assert (y == name).sum() == num_shots + 10
        assert weight[y == name].sum() == pytest.approx(num_shots + 3.0)


@pytest.mark.parametrize("head", ["centroid", "linear"])
def test_classes_may_have_different_numbers_of_shots(head: str) -> None:
    base, (novel, names) = rows(BASE, "train"), rows(NOVEL, "train")
    uneven = np.r_[0:12, 12:17, 24:29, 36:38, 48:49]
    shots = novel[uneven], names[uneven]
    model = LowShotClassifier("none", head=head).fit(*base).adapt(*shots)
    queries, truth = rows([*BASE, *NOVEL], "test")
    assert model.classes_.tolist() == [*BASE, *NOVEL]
    assert model.predict_proba(queries).sum(axis=1) == pytest.approx(1, abs=1e-5)
    examples = zip(base, shots, strict=True)
    theirs = NearestCentroid().fit(*(np.concatenate(both) for both in examples))
    if head == "centroid":
        assert np.array_equal(model.predict(queries), theirs.predict(queries))
    assert model.score(queries, truth) == pytest.approx(theirs.score(queries, truth), abs=0.05)


@pytest.mark.parametrize("name", ["copy", "cCov-GAN-PN", "SN"])
def test_saved_estimators_give_the_same_scores(tmp_path, name) -> None:
    model = LowShotClassifier(name, settings=tiny(name)).fit(*TRAIN)
    model.save(tmp_path / "model.zip")
    loaded = LowShotClassifier.load(tmp_path / "model.zip")
    queries, shots = rows(NOVEL, "test")[0], shots_of(2)
    expected = model.adapt(*shots).predict_proba(queries)
    assert np.array_equal(loaded.adapt(*shots).predict_proba(queries), expected)
    with pytest.raises(ValueError, match="has a LowShotClassifier, not a Augmenter"):
        Augmenter.load(tmp_path / "model.zip")


GENERATORS = [name for name, row in ROWS.items() if row.generation != "-"]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_makes_the_requested_number_of_examples(name: str) -> None:
    lines: list[str] = []
    augmenter = Augmenter(name, settings=tiny(name), progress=lines.append)
    augmenter.fit(*TRAIN)
    features, labels, weight = augmenter.augment(*shots_of(2), n_synthetic=7)
    assert features.shape == (5 * (2 + 7), 6)
    assert np.isfinite(features).all()
    assert (weight > 0).all()
    assert labels[:4].tolist() == ["n0", "n0", "n1", "n1"]
    assert augmenter.transform(features[:3] * 0).shape == (3, 6)
    assert bool(lines) == bool(num_episodes_of(METHODS[name].config) or ROWS[name].is_embedded)


def test_mistakes_are_explained() -> None:
    shots, labels = shots_of(1)
    for estimator, message in [
        (Augmenter("cCov-GANN"), "did you mean cCov-GAN"),
        (Augmenter("PN"), "generates no examples; use one of mean-shift"),
        (Augmenter(preset="fast"), "preset must be 'quick' or 'paper'"),
        (LowShotClassifier(among="base"), "among must be 'all' or 'novel'"),
        (LowShotClassifier("SN", head="knn"), "SN has no head 'knn'; use one of own"),
        (Augmenter("copy", settings={"mixing": 1}), "unknown settings: mixing"),
    ]:
        with pytest.raises(ValueError, match=message):
            estimator.fit(*TRAIN)
    with pytest.raises(NotFittedError, match="call fit first"):
        Augmenter().augment(shots, labels)
    model = LowShotClassifier("none").fit(*TRAIN)
    with pytest.raises(NotFittedError, match="call adapt first"):
        model.predict(shots)
    with pytest.raises(ValueError, match="must not be base classes: class a00"):
        model.adapt(shots[:1], ["a00"])
    with pytest.raises(ValueError, match="X has 3 features, but LowShotClassifier is expecting 6"):
        model.adapt(shots[:, :3], labels)


class Adapted(LowShotClassifier):
    """A classifier that `fit` adapts to novel classes, with base classes of its own.

    scikit-learn's checks predict after `fit` alone.
    """

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Adapted":
        self._check(X, y, reset=True)
        base = np.random.default_rng(0).normal(size=(6, self.n_features_in_))
        super().fit(base, ["#0", "#1"] * 3)
        return self.adapt(X, y)


@parametrize_with_checks(
    [
        Augmenter("copy", settings={"neighbours": "none"}),
        Adapted("none", head="centroid", among="novel"),
    ]
)
@pytest.mark.filterwarnings("ignore")
def test_estimators_follow_the_conventions_of_scikit_learn(estimator, check) -> None:
    check(estimator)


def test_docstrings_show_real_results() -> None:
    assert doctest.testmod(estimators).failed == 0
