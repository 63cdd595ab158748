"""Every method of the table as an estimator on arrays, in the manner of scikit-learn.

`Augmenter` returns real and synthetic examples with weights, for any classifier.
`LowShotClassifier` is the whole method. Both give the numbers of `cpaan.evaluate`.

Shapes: R = examples, D = feature dimension, S = synthetic examples of a class, C = classes.
"""

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from cpaan.core.files import replacing
from cpaan.core.randomness import new_rng
from cpaan.core.settings import Settings, suggestion
from cpaan.data.table import as_feature_block, name_some
from cpaan.methods.base import Fitted
from cpaan.methods.registry import METHODS, ROWS, make_method
from cpaan.methods.table_row import NO_GENERATION, PN, TableRow
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.drive import train_to_end

_QUERIES_PER_BLOCK = 1024
_ABOUT, _FEATURES, _LABELS, _OWN_RUN = "about.json", "features.npy", "labels.npy", "method.pt"
_EMBEDDING = "PN-seed0.pt"


@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """Training on base classes, and low-shot tasks from arrays."""

    method: str = "cCov-GAN"
    _: KW_ONLY
    preset: Literal["quick", "paper"] = "quick"
    settings: Mapping[str, Any] | None = None
    device: str = "auto"
    random_state: int = 0
    progress: Callable[[str], None] | None = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the method on base classes, which have many examples.

        Args:
            X: Features of base examples, shape (R, D).
            y: Their labels, shape (R,), of any type that can be sorted.

        Raises:
            ValueError: If the arrays do not match, or are too small for the settings.
        """
        features, labels = self._check(X, y, reset=True)
        order = np.argsort(labels, kind="stable")
        with tempfile.TemporaryDirectory() as folder:
            self._train(features[order], labels[order], Path(folder))
            self._checkpoints = {file.name: file.read_bytes() for file in Path(folder).glob("*.pt")}
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a ZIP file of JSON, NumPy arrays and PyTorch weights.

        The file has the base examples, which methods also need for novel classes. It has no shots:
        call `augment` or `adapt` after `load`. The ``progress`` function is not saved.
        """
        self._refuse_unfitted()
        names = np.array(self.base_classes_.tolist())  # strings rather than objects
        labels = np.repeat(names, self._base.counts.cpu())
        parameters = {**self.get_params(), "progress": None}
        about = {"class": type(self).__name__, "parameters": parameters}
        with replacing(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_ABOUT, json.dumps(about))
            arrays = {_FEATURES: self._base.features.cpu().numpy(), _LABELS: labels}
            for name, array in arrays.items():
                buffer = io.BytesIO()
                np.save(buffer, array, allow_pickle=False)
                archive.writestr(name, buffer.getvalue())
            for name, content in self._checkpoints.items():
                archive.writestr(name, content)

    @classmethod
    def load(cls, path: str | Path, **changes: Any) -> Self:
        """Read an estimator from a file of `save`, for example with another ``device``.

        Raises:
            ValueError: If the file has another class of estimator.
        """
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            about = json.loads(archive.read(_ABOUT))
            if about["class"] != cls.__name__:
                raise ValueError(f"{path} has a {about['class']}, not a {cls.__name__}")
            estimator = cls(**{**about["parameters"], **changes})
            features, labels = (
                np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in (_FEATURES, _LABELS)
            )
            estimator._checkpoints = {
                name: archive.read(name) for name in archive.namelist() if name.endswith(".pt")
            }
            for name, content in estimator._checkpoints.items():
                (Path(folder) / Path(name).name).write_bytes(content)
            estimator.n_features_in_ = features.shape[1]
            estimator._train(features, labels, Path(folder))
        return estimator

    def _train(self, features: NDArray[Any], labels: NDArray[Any], folder: Path) -> None:
        """Train on examples grouped by class; resume from checkpoints in the folder."""
        row, training, evaluation, embedding = self._resolve()
        progress = self.progress or (lambda message: None)
        classes, counts = np.unique(labels, return_counts=True)
        num_rows = dict(zip(map(str, classes), map(int, counts), strict=True))
        row.check(training, evaluation, num_rows, features.shape[1], embedding)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        device = device if self.device == "auto" else self.device
        base = BaseSet(torch.from_numpy(features).to(device), torch.from_numpy(counts).to(device))
        base.check_finite()
        method = make_method(
            self.method,
            evaluation,
            training,
            embedding=embedding,
            embedding_path=folder / _EMBEDDING,
            progress=progress,
        )
        run = method.begin(base, new_rng(self.random_state))
        train_to_end(run, folder / _OWN_RUN if run.num_episodes else None, progress=progress)
        self.base_classes_, self._base, self._method = classes, base, method
        self._fitted: list[Fitted] = []

    def _resolve(self) -> tuple[TableRow, Settings, EvaluationConfig, EmbeddingConfig | None]:
        """Return the row, and the settings of method, evaluation and embedding."""
        if self.method not in ROWS:
            raise ValueError(f"unknown method {self.method!r}{suggestion(self.method, METHODS)}")
        if self.preset not in ("quick", "paper"):
            raise ValueError(f"preset must be 'quick' or 'paper', got {self.preset!r}")
        row, is_quick = ROWS[self.method], self.preset == "quick"
        training = row.method.at_size(is_quick=is_quick)
        given, known = dict(self.settings or {}), training.to_dict()
        of_method = {name: given.pop(name) for name in list(given) if name in known}
        evaluation = EvaluationConfig(heads=(self._head(row),)).with_overrides(given)
        embedding = None
        if row.is_embedded:
            embedding = EmbeddingConfig().with_overrides(METHODS[PN].quick if is_quick else {})
        return row, training.with_overrides(of_method), evaluation, embedding

    def _head(self, row: TableRow) -> str:
        return row.head

    def _tasks(self, X: ArrayLike, y: ArrayLike) -> Iterator[tuple[NDArray[Any], LowShotTask]]:
        """Yield a task for each number of shots, with its classes."""
        self._refuse_unfitted()
        features, labels = self._check(X, y)
        known = np.intersect1d(labels, self.base_classes_)
        if len(known):
            raise ValueError(
                f"novel classes must not be base classes: {name_some('class', known.tolist())}"
            )
        classes, counts = np.unique(labels, return_counts=True)
        for num_shots in np.unique(counts):
            group = classes[counts == num_shots]
            shots = np.stack([features[labels == name] for name in group])
            on_device = torch.from_numpy(shots).float().to(self._base.features.device)
            problems = (Problem(int(num_shots), 0),)
            yield group, LowShotTask(self._base, len(self.base_classes_), on_device[None], problems)

    def _queries(self, X: ArrayLike) -> tuple[Tensor, ...]:
        """Return examples in blocks on the device."""
        self._refuse_unfitted()
        (features,) = self._check(X)
        rows = torch.from_numpy(features).float().to(self._base.features.device)
        return rows.split(_QUERIES_PER_BLOCK)

    def _check(self, X: ArrayLike, *y: Any, reset: bool = False) -> list[NDArray[Any]]:
        """Return features as float16 or float32, and labels if they are given.

        ``reset`` sets the dimension of the features; otherwise it must be that of the base classes.
        """
        kinds = [np.float32, np.float16, np.float64]
        checked = validate_data(self, X, *y, reset=reset, dtype=kinds)
        features, *labels = checked if y else [checked]
        with warnings.catch_warnings():
            # One shot of each class is not a mistake here.
            warnings.filterwarnings("ignore", "The number of unique classes")
            for targets in labels:
                check_classification_targets(targets)
        return [as_feature_block(features, first_row=0), *labels]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _refuse_unfitted(self) -> None:
        if not hasattr(self, "_method"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")


class Augmenter(TransformerMixin, _Estimator):  # type: ignore[misc]
    """Synthetic examples of novel classes, with the weights that the evaluation gives them.

    Args:
        method: Name of a row that generates examples; ``cpaan methods`` lists them.
        preset: "quick" trains for seconds on two CPU cores, "paper" at the paper's scale.
        settings: Settings of the method and of `EvaluationConfig` that replace those of the preset.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        random_state: Seed of the training and of the synthetic examples.
        progress: Function that is called with lines about the training.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X_base, y_base = rng.normal(size=(200, 8)), np.repeat(np.arange(20), 10)
        >>> X_shots, y_shots = rng.normal(size=(3, 8)), ["cat", "cat", "dog"]
        >>> augmenter = Augmenter("copy").fit(X_base, y_base.astype(str))
        >>> X, y, weight = augmenter.augment(X_shots, y_shots, n_synthetic=4)
        >>> X.shape, y[:5].tolist(), weight[:5].tolist()
        ((11, 8), ['cat', 'cat', 'dog', 'cat', 'cat'], [1.0, 1.0, 1.0, 0.5, 0.5])
    """

    def augment(
        self,
        X: ArrayLike,
        y: ArrayLike,
        n_synthetic: int = 40,
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.float64]]:
        """Return the shots of novel classes and ``n_synthetic`` more examples of each class.

        A shot has weight 1. All synthetic examples of a class together count as few shots (see
        ``mixing_shots``), because they are less reliable. Give the weights to the classifier.

        Args:
            X: Features of the shots, shape (R, D). Classes may have different numbers of shots.
            y: Their labels, shape (R,); no base class is among them.
            n_synthetic: Number S of synthetic examples per class.

        Returns:
            Features of shots and synthetic examples in the space of `transform`, labels, weights.
        """
        if n_synthetic < 1:
            raise ValueError(f"n_synthetic must be positive, got {n_synthetic}")
        self._refuse_unfitted()
        method, parts = self._method, {}
        for classes, task in self._tasks(X, y):
            fitted = method.fit(task, new_rng(self.random_state), keep=n_synthetic)
            assert fitted.synthetic is not None, "the row generates examples"
            num_shots = task.problems[0].num_shots
            share = method.real_share(num_shots, n_synthetic)
            weight = (1 - share) / share * num_shots / n_synthetic if share else 1.0
            for name, examples in zip(classes, fitted.synthetic[0].cpu().numpy(), strict=True):
                parts[name] = examples, np.repeat(name, n_synthetic), np.full(n_synthetic, weight)
        _, labels = self._check(X, y)
        shots = self.transform(X), labels, np.ones(len(labels))
        columns = zip(shots, *(parts[name] for name in sorted(parts)), strict=True)
        features, labels, weights = (np.concatenate(column) for column in columns)
        return features, labels, weights

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Map features, shape (R, D), into the space of the augmented examples.

        Only rows with an embedding or a transformation (``-PN``, FI-PN, DC) change the features.
        """
        blocks = self._queries(X)
        # The space is the same for any shots, so a row of a base class serves as a shot.
        shot = self._base.features[None, None, :1].float()
        task = LowShotTask(self._base, len(self.base_classes_), shot, (Problem(1, 0),))
        fitted = self._method.fit(task, new_rng(self.random_state), keep=1)
        return torch.cat([fitted.represent(block) for block in blocks]).cpu().numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _resolve(self) -> tuple[TableRow, Settings, EvaluationConfig, EmbeddingConfig | None]:
        resolved = super()._resolve()
        if resolved[0].generation == NO_GENERATION:
            names = [name for name, row in ROWS.items() if row.generation != NO_GENERATION]
            raise ValueError(f"{self.method} generates no examples; use one of {', '.join(names)}")
        return resolved

    def _head(self, row: TableRow) -> str:
        return row.head if row.head == OWN else "centroid"  # the heads of a fit are not used


@dataclass(eq=False, repr=False)
class LowShotClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A method of the table as a classifier: `fit` on base classes, then `adapt` to novel ones.

    Args:
        method: Name of a row; ``cpaan methods`` lists them.
        head: Classifier on top of the features: "centroid", "cosine", "knn", "linear", or "own"
            for the method's built-in one. None: the paper's choice for this row.
        among: Classes to choose from: "all" (GLSL) or "novel" (LSL).
        preset: "quick" trains for seconds on two CPU cores, "paper" at the paper's scale.
        settings: Settings of the method and of `EvaluationConfig` that replace those of the preset.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        random_state: Seed of the training and of the synthetic examples.
        progress: Function that is called with lines about the training.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X_base, y_base = rng.normal(size=(200, 8)), np.repeat(np.arange(20), 10)
        >>> X_shots, y_shots = [[3.0] * 8, [-3.0] * 8], [100, 101]
        >>> model = LowShotClassifier("copy", head="centroid").fit(X_base, y_base)
        >>> model = model.adapt(X_shots, y_shots)
        >>> model.predict([[4.0] * 8, [-4.0] * 8])
        array([100, 101])
    """

    method: str = "PN"
    _: KW_ONLY
    head: str | None = None
    among: Literal["all", "novel"] = "all"

    def adapt(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn novel classes from a few examples each; the training does not change.

        Each call replaces the novel classes of the last one. Classes with different numbers of
        shots are learnt in groups, each together with all base classes.

        Args:
            X: Features of the shots, shape (R, D).
            y: Their labels, shape (R,); no base class is among them.
        """
        groups = list(self._tasks(X, y))
        self._fitted = [self._method.fit(task, new_rng(self.random_state)) for _, task in groups]
        base = [] if self.among == "novel" else [self.base_classes_]
        classes = np.concatenate([*base, *(novel for novel, _ in groups)])
        self._order = np.argsort(classes)
        self.classes_ = classes[self._order]
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the probability of every class of ``classes_``: the softmax of the scores."""
        return self._scores(X).softmax(dim=1).cpu().numpy()

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each example, shape (R,)."""
        best = self._scores(X).argmax(dim=1).cpu().numpy()
        return self.classes_[best]

    def _scores(self, X: ArrayLike) -> Tensor:
        """Return the score of every class of ``classes_``, shape (R, C)."""
        self._refuse_unfitted()
        if not self._fitted:
            raise NotFittedError("this LowShotClassifier knows no novel classes; call adapt first")
        blocks, head = self._queries(X), self._head(ROWS[self.method])
        base, of_groups = None, []
        for fitted in self._fitted:
            scores = torch.cat([fitted.predict(block)[head][0] for block in blocks])
            its_base, novel = scores.tensor_split([len(self.base_classes_)], dim=1)
            base = its_base if base is None else base
            # Groups are comparable by their scores relative to the base classes.
            shift = base.logsumexp(1, keepdim=True) - its_base.logsumexp(1, keepdim=True)
            of_groups.append(novel + shift)
        assert base is not None, "there is a group"
        scores = torch.cat(of_groups if self.among == "novel" else [base, *of_groups], dim=1)
        return scores[:, torch.from_numpy(self._order)]

    def _resolve(self) -> tuple[TableRow, Settings, EvaluationConfig, EmbeddingConfig | None]:
        if self.among not in ("all", "novel"):
            raise ValueError(f"among must be 'all' or 'novel', got {self.among!r}")
        resolved = super()._resolve()
        if self._head(resolved[0]) not in resolved[0].heads:
            heads = ", ".join(resolved[0].heads)
            raise ValueError(f"{self.method} has no head {self.head!r}; use one of {heads}")
        return resolved

    def _head(self, row: TableRow) -> str:
        return self.head or row.head
