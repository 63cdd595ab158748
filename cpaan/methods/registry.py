"""Every method by its name, with its place in the paper's table: what to make, and what to search.

A row is written out once, here. Whatever evaluates, searches or reports asks no more of a method
than its row says.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from cpaan.core.settings import Choice, Range, SearchSpace, Settings
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import check_training
from cpaan.gan.gans import GANS, Gan, check_objective
from cpaan.methods import (
    denoising_weights,
    distribution_calibration,
    hallucination,
    imagination,
    logistic_regression,
    maml,
    matching,
    matching_imagination,
    prototype_matching,
    prototypical,
    siamese,
    weight_generator,
)
from cpaan.methods.adversarial import Adversarial
from cpaan.methods.base import Keeping, LowShotMethod, Progress
from cpaan.methods.controls import Control
from cpaan.methods.embedded import Embedded
from cpaan.methods.table_row import NO_GENERATION, PN, RESNET, Make, Row, own_row
from cpaan.protocol.augmentation import (
    Translation,
    copy,
    half_mean_shift,
    mean_shift,
    num_synthetic_of,
)
from cpaan.protocol.config import HEADS, OWN, EvaluationConfig
from cpaan.protocol.neighbours import check_neighbours
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.few_shot_episodes import check_rows
from cpaan.training.learning import EpisodeSettings, LearningSettings

CONTROLS: dict[str, Translation | None] = {
    "none": None,
    "mean-shift": mean_shift,
    "half-mean-shift": half_mean_shift,
    "copy": copy,
}
"""What every trained generator has to beat."""

IN_PN = "-PN"
"""Ends the names of rows that are those of the same name without it, in a PN embedding."""

TABLE_1 = "table-1"
"""Stands for all rows of the paper's table, and those that we set beside them."""


def _control(translation: Translation | None) -> Make:
    return lambda config, evaluation, keeping: Control(translation, evaluation)


def _gan(gan: Gan) -> Make:
    return lambda config, evaluation, keeping: Adversarial(gan, evaluation, config, keeping)


def _control_row(name: str, translation: Translation | None, *, is_embedded: bool) -> Row:
    return Row(
        group="Control",
        representation=PN if is_embedded else RESNET,
        generation=name if translation else NO_GENERATION,
        head=_head_by_paper(is_embedded=is_embedded),
        make=_control(translation),
        space=_MIXING if translation else {},
        is_embedded=is_embedded,
    )


def _gan_row(gan: Gan, *, is_printed: bool, is_embedded: bool) -> Row:
    return Row(
        group="CP-AAN",
        representation=PN if is_embedded else RESNET,
        generation=gan.name,
        is_printed=is_printed,
        head=_head_by_paper(is_embedded=is_embedded),
        config=TrainConfig.faithful(),
        published=TrainConfig.as_printed(),
        space={"mixing_shots": _MIXING["mixing_shots"]},
        make=_gan(gan),
        is_embedded=is_embedded,
    )


def _extended_row(*, is_embedded: bool) -> Row:
    """Return cCov-GAN with what goes past the paper."""
    faithful = _gan_row(GANS["cCov-GAN"], is_printed=False, is_embedded=is_embedded)
    return replace(
        faithful,
        group="CP-AAN+",
        config=TrainConfig(),
        space={
            **faithful.space,
            "prototype_weight": Range(0.5, 100.0, log=True),
            "residual": Choice("identity", "mean-shift"),
        },
    )


def _head_by_paper(*, is_embedded: bool) -> str:
    return "centroid" if is_embedded else "linear"


def _hallucination_row(*, is_embedded: bool) -> Row:
    return Row(
        group="P-FH" if is_embedded else "FH",
        representation=PN if is_embedded else RESNET,
        generation="LR w/ A.",
        is_printed=True,
        head="linear",
        config=hallucination.HallucinationConfig(),
        published=hallucination.PUBLISHED,
        space=hallucination.SPACE,
        quick={"num_episodes": 100, "num_clusters": 10},
        make=lambda config, evaluation, keeping: hallucination.Hallucination(
            config, evaluation, keeping
        ),
        is_embedded=is_embedded,
    )


_FEW_SHORT = {"num_episodes": 20, "num_ways": 20, "episode_shots": (1, 2)}
_MIXING: SearchSpace = {
    "perplexity": Range(1.5, 30.0, log=True),
    "mixing_shots": Range(0.2, 20.0, log=True),
    "num_synthetic": Range(10, 500, log=True),
}

ROWS: dict[str, Row] = {
    **{
        f"{name}{suffix}": _control_row(name, translation, is_embedded=bool(suffix))
        for suffix in ("", IN_PN)
        for name, translation in CONTROLS.items()
    },
    "LR": Row(
        group="Baseline",
        is_printed=True,
        head="linear",
        space=logistic_regression.SPACE,
        make=lambda config, evaluation, keeping: logistic_regression.LogisticRegression(evaluation),
    ),
    "SN": own_row(
        siamese,
        siamese.Siamese,
        siamese.SiameseConfig(),
        representation="SN",
        quick={"num_episodes": 100},
    ),
    "MAML": own_row(
        maml, maml.MAML, maml.MAMLConfig(), representation="MAML", quick={"num_episodes": 40}
    ),
    "Proto-MAML": own_row(
        maml,
        maml.MAML,
        maml.PROTOTYPE,
        representation="Proto-MAML",
        is_printed=False,
        published=maml.PUBLISHED.with_overrides({"head": maml.PROTOTYPE.head}),
        quick={"num_episodes": 40},
    ),
    "PN": Row(
        group="Baseline",
        representation=PN,
        is_printed=True,
        head="centroid",
        config=EmbeddingConfig(),
        published=prototypical.PUBLISHED,
        space=prototypical.SPACE,
        quick={"num_episodes": 60, "num_ways": 40, "episode_shots": (1, 2, 5), "hidden_dim": 128},
        make=lambda config, evaluation, keeping: prototypical.Prototypical(
            Control(None, evaluation), config, keeping
        ),
    ),
    "MN": own_row(
        matching,
        matching.Matching,
        matching.MatchingConfig(),
        representation="MN",
        quick=_FEW_SHORT,
    ),
    "PMN": own_row(
        prototype_matching,
        prototype_matching.PrototypeMatching,
        prototype_matching.PrototypeMatchingConfig(),
        representation="PMN",
        quick=_FEW_SHORT,
    ),
    "AWG": own_row(
        weight_generator,
        weight_generator.WeightGenerator,
        weight_generator.WeightGeneratorConfig(),
        representation="AWG",
        quick={"num_episodes": 100},
    ),
    "AWG-cosine": own_row(
        weight_generator,
        weight_generator.WeightGenerator,
        weight_generator.WeightGeneratorConfig(),
        representation="AWG, cosine",
        is_printed=False,
        wants_cosine=True,
        quick={"num_episodes": 100},
    ),
    "FH": _hallucination_row(is_embedded=False),
    "P-FH": _hallucination_row(is_embedded=True),
    "FI-PN": Row(
        group="FI",
        representation=PN,
        generation="meta-learned LR",
        is_printed=True,
        head=OWN,
        heads=(OWN, *HEADS),
        config=imagination.ImaginationConfig(),
        published=imagination.PUBLISHED,
        space=imagination.SPACE,
        quick={"num_episodes": 40, "num_ways": 30, "episode_shots": (1, 2, 5), "hidden_dim": 128},
        make=lambda config, evaluation, keeping: imagination.Imagination(
            config, evaluation, keeping
        ),
    ),
    "FI-PMN": Row(
        group="FI",
        representation="PMN",
        generation="meta-learned LR",
        is_printed=True,
        head=OWN,
        heads=(OWN,),
        config=matching_imagination.MatchingImaginationConfig(),
        published=matching_imagination.PUBLISHED,
        space=matching_imagination.SPACE,
        quick=_FEW_SHORT,
        make=lambda config, evaluation, keeping: matching_imagination.MatchingImagination(
            config, keeping
        ),
    ),
    **{
        name: _gan_row(gan, is_printed=name == "cCov-GAN", is_embedded=False)
        for name, gan in GANS.items()
    },
    **{
        f"{name}{IN_PN}": _gan_row(gan, is_printed=True, is_embedded=True)
        for name, gan in GANS.items()
    },
    **{f"CP-AAN+{suffix}": _extended_row(is_embedded=bool(suffix)) for suffix in ("", IN_PN)},
    "DC": Row(
        group="Later",
        generation="calibration",
        head="linear",
        config=distribution_calibration.DistributionCalibrationConfig(),
        published=distribution_calibration.PUBLISHED,
        space=distribution_calibration.SPACE,
        make=lambda config, evaluation, keeping: distribution_calibration.DistributionCalibration(
            config, evaluation
        ),
    ),
    "wDAE": own_row(
        denoising_weights,
        denoising_weights.DenoisingWeights,
        denoising_weights.DenoisingWeightsConfig(),
        representation="wDAE",
        group="Later",
        is_printed=False,
        quick={"num_episodes": 100},
    ),
}
"""In the order of the table."""

METHODS = tuple(ROWS)


def rows_of_table() -> list[str]:
    """Return the names of all rows of the table: the paper's, and those that we set beside them."""
    return [name for name, row in ROWS.items() if row.is_printed or row.group != "CP-AAN"]


def expand_methods(names: Sequence[str], *, has_cosine: bool = True) -> list[str]:
    """Return names with "table-1" replaced by all rows of the table.

    Args:
        names: Of methods, or that.
        has_cosine: Whether there are features of a backbone with a cosine classifier; rows of the
            table that want them are left out otherwise.

    Raises:
        ValueError: With the nearest name that exists, if one is no method; or if one stands twice,
            or wants features that there are not.
    """
    of_table = [each for each in rows_of_table() if has_cosine or not ROWS[each].wants_cosine]
    expanded = [each for name in names for each in (of_table if name == TABLE_1 else [name])]
    for name in expanded:
        if name not in ROWS:
            close = difflib.get_close_matches(name, METHODS, n=1)
            hint = f", did you mean {close[0]}?" if close else "."
            raise ValueError(
                f"unknown method {name!r}{hint} The methods are {', '.join(METHODS)}; {TABLE_1} "
                "is all of the paper's table"
            )
        if ROWS[name].wants_cosine and not has_cosine:
            raise ValueError(
                f"{name} wants features of a backbone that was trained with a cosine classifier "
                "(--cosine-features)"
            )
    if not expanded:
        raise ValueError(f"no method is named; there are {', '.join(METHODS)}")
    if len(set(expanded)) < len(expanded):
        raise ValueError(f"each method is wanted once, got {', '.join(names)!r}")
    return expanded


def num_episodes_of(config: Settings) -> int:
    """Return how long a method with these settings is trained; zero where there is no training."""
    return config.num_episodes if isinstance(config, TrainConfig | LearningSettings) else 0


def with_episodes(config: Settings, num_episodes: int) -> Settings:
    """Return settings with another length of training, where there is any."""
    if not num_episodes_of(config):
        return config
    return config.with_overrides({"num_episodes": num_episodes})


def heads_of(name: str, evaluation: EvaluationConfig) -> list[str]:
    """Return the heads that a method is scored with."""
    return [head for head in ROWS[name].heads if head == OWN or head in evaluation.heads]


def check_method(
    name: str,
    config: Settings,
    evaluation: EvaluationConfig,
    num_rows: Mapping[str, int],
    num_dims: int,
    embedding: EmbeddingConfig | None = None,
) -> None:
    """Refuse settings that do not suit the base classes, before any work is done.

    Args:
        name: Of the method.
        config: Of its training.
        evaluation: Of the rest.
        num_rows: Train rows by base class.
        num_dims: Of the features.
        embedding: Of the embedding, where it has one; by default the recommended settings.

    Raises:
        ValueError: With the setting, and both numbers.
    """
    row, counts = ROWS[name], torch.tensor(list(num_rows.values()))
    if not isinstance(config, type(row.config)):
        raise ValueError(f"{name} has {type(row.config).__name__}, got {type(config).__name__}")
    if not heads_of(name, evaluation):
        raise ValueError(
            f"{name} has the heads {', '.join(row.heads)}, got {', '.join(evaluation.heads)}"
        )
    if row.is_embedded:
        check_rows(num_rows, embedding or EmbeddingConfig())
    if isinstance(config, TrainConfig):
        gan = GANS[row.generation]
        check_training(config, counts, num_dims, with_covariances=gan.has_covariance)
        check_objective(gan, config)
    if isinstance(config, EpisodeSettings):
        check_rows(num_rows, config)
    is_control = CONTROLS.get(name.removesuffix(IN_PN)) is not None
    if is_control:
        check_neighbours(evaluation, len(counts))
    if is_control or isinstance(config, TrainConfig):
        num_synthetic_of(counts, max(evaluation.shots), evaluation)


def make_method(
    name: str,
    evaluation: EvaluationConfig,
    config: Settings | None = None,
    *,
    embedding: EmbeddingConfig | None = None,
    folder: Path | None = None,
    embeddings: Path | None = None,
    seed: int = 0,
    progress: Progress = lambda message: None,
) -> LowShotMethod:
    """Return a new, unfitted method.

    Args:
        name: One of `METHODS`.
        evaluation: Heads and their settings.
        config: Of its training; by default what its row recommends.
        embedding: Of the embedding, where the method has one; by default the recommended settings.
        folder: Where its training is kept, and taken up again; None: nowhere.
        embeddings: Where embeddings are kept, which methods share; by default the same folder.
        seed: That it will be given, for the name of the file.
        progress: Called with a line now and then while it trains.
    """
    row = ROWS[name]

    def keeping(place: Path | None, of: str) -> Keeping:
        return Keeping(None if place is None else place / f"{of}-seed{seed}.pt", progress)

    method = row.make(row.config if config is None else config, evaluation, keeping(folder, name))
    if row.is_embedded:
        return Embedded(method, embedding or EmbeddingConfig(), keeping(embeddings or folder, PN))
    return method
