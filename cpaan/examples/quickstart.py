"""Augmentation in your own code: features in, accuracy with and without, and a picture.

Run ``python -m cpaan.examples.quickstart``, or open the file as a notebook. It takes less than a
minute on two idle CPU cores, and writes ``quickstart.png`` to the current folder.
"""

# %% Take features as arrays. Base classes have many examples, novel classes have few.
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import cpaan

# scikit-learn takes one example per class for a regression.
warnings.filterwarnings("ignore", "The number of unique classes")
NUM_DRAWS = 3
table, split = cpaan.builtin_features()
phase = split.phase("validation")  # The test phase is for final reports alone.


def examples(
    classes: tuple[str, ...], partition: str, most: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    """Return the features (R, D) and labels (R,) of the first examples of some classes."""
    rows = [table.rows_of(name, partition)[:most] for name in classes]
    labels = np.repeat(classes, [len(each) for each in rows])
    return table.features[np.concatenate(rows)].astype(np.float32), labels


X_base, y_base = examples(phase.base, "train")
X_some, y_some = examples(phase.base, "train", most=40)  # so that GLSL takes seconds
X_novel, y_novel = examples(phase.novel, "train")
X_test, y_test = examples(phase.base + phase.novel, "test")
is_novel = np.isin(y_test, phase.novel)

# %% Train the augmenters on the base classes. Copies of related base examples need no training.
augmenters = {name: cpaan.Augmenter(name).fit(X_base, y_base) for name in ("copy", "CP-AAN+")}


# %% Use any classifier that takes weights: for novel classes (LSL), and for all classes (GLSL).
def accuracies(
    X: NDArray[np.float32], y: NDArray[np.str_], weight: NDArray[np.float64]
) -> dict[tuple[str, str], float]:
    """Return top-1 accuracies in percent of two classifiers."""
    X_all, y_all = np.concatenate([X_some, X]), np.concatenate([y_some, y])
    weight_all = np.concatenate([np.ones(len(y_some)), weight])
    scores = {}
    for problem, X_train, y_train, its_weight, asked in (
        ("LSL", X, y, weight, is_novel),
        ("GLSL", X_all, y_all, weight_all, np.ones_like(is_novel)),
    ):
        # With the default C=1, logistic regression stops before it converges, and augmentation
        # costs accuracy even with weights: copies 17.5 -> 15.0 (LSL) and 31.1 -> 24.1 (GLSL).
        # With equal priors and variances, naive Bayes is a nearest centroid that takes weights.
        priors = np.full(len(set(y_train)), 1 / len(set(y_train)))
        for name, classifier in {
            "logistic regression": LogisticRegression(C=0.01, class_weight="balanced"),
            "nearest centroid": GaussianNB(priors=priors, var_smoothing=1e3),
        }.items():
            classifier.fit(X_train, y_train, sample_weight=its_weight)
            scores[problem, name] = 100 * classifier.score(X_test[asked], y_test[asked])
    return scores


# %% Compare on several draws of one shot per novel class.
found = []
for draw in range(NUM_DRAWS):
    rng = np.random.default_rng(draw)
    shots = np.array([rng.choice(np.flatnonzero(y_novel == name)) for name in phase.novel])
    X_shots, y_shots = X_novel[shots], y_novel[shots]
    found.append(("shots alone", accuracies(X_shots, y_shots, np.ones(len(shots)))))
    for name, augmenter in augmenters.items():
        X, y, weight = augmenter.augment(X_shots, y_shots, n_synthetic=40)
        found.append((f"{name}, with weights", accuracies(X, y, weight)))
        if name == "copy":
            found.append((f"{name}, all weights 1", accuracies(X, y, np.ones(len(y)))))

scores = pd.DataFrame([each for _, each in found], index=[name for name, _ in found])
scores.columns = pd.MultiIndex.from_tuples(found[0][1])
means = scores.groupby(level=0, sort=False).mean()
print(f"Top-1 accuracy, %, one shot per class, mean of {NUM_DRAWS} draws")
print(means.round(1).to_string())
spread = scores.groupby(level=0).std().to_numpy().max()
print(f"Largest standard deviation between draws: {spread:.1f}")

# %% Draw the same numbers.
axes = means.T.plot.bar(figsize=(9, 4), rot=0, ylabel="top-1 accuracy, %")
axes.set_xticklabels([f"{name}\n{problem}" for problem, name in found[0][1]])
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.savefig("quickstart.png", dpi=150, bbox_inches="tight")
print("Written: quickstart.png")
