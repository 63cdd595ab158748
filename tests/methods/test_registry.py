"""Every row of the table by its name: what it is, what it refuses, and that it runs."""

from dataclasses import fields
from itertools import product

import pytest
import torch

from cpaan import EvaluationConfig
from cpaan.core.randomness import new_rng
from cpaan.core.settings import Settings
from cpaan.gan.config import TrainConfig
from cpaan.methods.registry import (
    CONTROLS,
    IN_PN,
    METHODS,
    ROWS,
    TABLE_1,
    check_method,
    expand_methods,
    heads_of,
    make_method,
    num_episodes_of,
    rows_of_table,
    with_episodes,
)
from cpaan.protocol.config import HEADS, OWN
from cpaan.protocol.tasks import read_phase
from cpaan.report.published import TABLE_1 as PRINTED
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import PRESETS
from cpaan.study.gan_space import GanSpace
from cpaan.study.space import AS_PRINTED, RECOMMENDED, RowSpace, Space
from cpaan.training.learning import LearningSettings
from helpers.tasks import shots_of

OF_THE_PAPER = [
    "LR",
    "SN",
    "MAML",
    "PN",
    "MN",
    "PMN",
    "AWG",
    "FH",
    "P-FH",
    "FI-PN",
    "FI-PMN",
    "cCov-GAN",
    "c-GAN-PN",
    "cCyc-GAN-PN",
    "cDeLi-GAN-PN",
    "cCov-GAN-PN",
]
OURS = {
    "none",
    "mean-shift",
    "half-mean-shift",
    "copy",
    "Proto-MAML",
    "AWG-cosine",
    "DC",
    "wDAE",
    "CP-AAN+",
    "CP-AAN+-PN",
    *(f"{name}-PN" for name in CONTROLS),
}
QUICK = EvaluationConfig(
    shots=(1, 5), num_draws=1, perplexity=4, num_synthetic=6, linear_num_steps=5
)
TINY = {
    "num_episodes": 2,
    "num_ways": 4,
    "episode_shots": (1, 2),
    "num_queries": 2,
    "hidden_dim": 8,
    "num_pairs": 8,
    "num_tasks": 2,
    "batch_size": 20,
    "num_clusters": 3,
    "num_classifier_steps": 5,
    "num_augmented": 3,
    "num_examples": 5,
    "num_exemplars": 5,
    "num_samples": 6,
    "noise_dim": 2,
    "ky_fan_order": 2,
}


def tiny(config: Settings) -> Settings:
    """Return settings with all sizes that they have made tiny."""
    known = {field.name for field in fields(config)}
    return config.with_overrides({name: TINY[name] for name in TINY if name in known})


def test_the_table_has_the_sixteen_rows_of_the_paper_in_its_order_and_ours_beside_them():
    rows = rows_of_table()

    assert [name for name in rows if name in OF_THE_PAPER] == OF_THE_PAPER == list(PRINTED)
    assert {name for name in ROWS if ROWS[name].is_printed} == set(OF_THE_PAPER)
    assert set(rows) - set(OF_THE_PAPER) == OURS


def test_rows_of_the_paper_have_nothing_that_goes_past_it_and_cp_aan_plus_is_beside_them():
    past = {"episode_shots", "real_examples", "residual", "prototype_weight"}
    for name in ("", IN_PN):
        faithful, extended = ROWS[f"cCov-GAN{name}"], ROWS[f"CP-AAN+{name}"]
        settings, more = faithful.config.to_dict(), extended.config.to_dict()

        assert {each for each in settings if settings[each] != more[each]} == past
        assert settings["prototype_weight"] == 0
        assert (faithful.generation, faithful.head) == (extended.generation, extended.head)


def test_the_final_classifier_is_the_paper_s():
    """Nearest centroid in the embedding of PN, linear on ResNet-10 features, or a method's own."""
    heads = {name: ROWS[name].head for name in OF_THE_PAPER}

    in_embedding = {"PN", *(name for name in heads if name.endswith("GAN-PN"))}
    assert {name for name, head in heads.items() if head == "centroid"} == in_embedding
    assert {name for name, head in heads.items() if head == "linear"} == {
        *("LR", "FH", "P-FH", "cCov-GAN")
    }
    for name, row in ROWS.items():
        assert row.head in row.heads, name


def test_the_name_of_the_table_stands_for_its_rows():
    assert expand_methods([TABLE_1]) == rows_of_table()
    assert expand_methods(["c-GAN", TABLE_1]) == ["c-GAN", *rows_of_table()]


def test_without_cosine_trained_features_the_table_does_without_their_row():
    assert expand_methods([TABLE_1], has_cosine=False) == [
        name for name in rows_of_table() if name != "AWG-cosine"
    ]
    with pytest.raises(ValueError, match=r"AWG-cosine wants features of .* \(--cosine-features\)"):
        expand_methods(["AWG-cosine"], has_cosine=False)
    assert [name for name, row in ROWS.items() if row.wants_cosine] == ["AWG-cosine"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["meanshift"], r"^unknown method 'meanshift', did you mean mean-shift\? The methods are "),
        (["table1"], r"^unknown method 'table1'\. The methods are none, .*; table-1 is all of "),
        (["none", "none"], "^each method is wanted once, got 'none, none'$"),
        ([TABLE_1, "PN"], "^each method is wanted once, got 'table-1, PN'$"),
        ([], "^no method is named; there are none, mean-shift,"),
    ],
)
def test_names_that_are_no_methods_are_refused_with_what_there_is(names, message):
    with pytest.raises(ValueError, match=message):
        expand_methods(names)


@pytest.fixture(scope="module")
def problem(gaussians):
    table, split = gaussians.table, gaussians.split
    shot_rows = shots_of(table, split, num_draws=1)
    return read_phase(table, split, "validation", shot_rows, (1, 5), torch.device("cpu"))


@pytest.mark.parametrize("name", METHODS)
def test_a_row_learns_novel_classes_with_the_heads_it_names(name, problem):
    task, queries = problem
    embedding = tiny(EmbeddingConfig())
    config = tiny(ROWS[name].config)
    num_rows = dict(zip(task.base.names, task.base.counts.tolist(), strict=True))
    check_method(name, config, QUICK, num_rows, 8, embedding)
    method = make_method(name, QUICK, config, embedding=embedding)

    method.fit(task, new_rng(0))
    scores = method.predict(queries.features[:7])

    assert list(scores) == heads_of(name, QUICK)
    for head, values in scores.items():
        assert values.shape == (2, 7, 24), head
        assert values.isfinite().all(), head
        assert values.std() > 0, head


def test_length_of_training_is_set_where_there_is_training():
    assert num_episodes_of(ROWS["copy"].config) == num_episodes_of(ROWS["DC"].config) == 0
    assert with_episodes(ROWS["DC"].config, 7) == ROWS["DC"].config
    for name, row in ROWS.items():
        if isinstance(row.config, LearningSettings | TrainConfig):
            assert num_episodes_of(with_episodes(row.config, 7)) == 7, name


NUM_ROWS = {f"class{number:02d}": 25 for number in range(24)}


@pytest.mark.parametrize(
    ("name", "overrides", "evaluation", "message"),
    [
        (
            "MN",
            {"episode_shots": (24,)},
            {},
            r"^class class00, the smallest of 24, has 25 train .* 26, ",
        ),
        ("PN", {"num_queries": 24}, {}, "has 25 train rows"),
        ("cCov-GAN", {"ky_fan_order": 9}, {}, "ky_fan_order is 9, but features have 8 dimensions"),
        ("copy", {}, {"perplexity": 30.0}, "below the number of base classes, 24, got 30"),
        ("LR", {}, {"heads": (OWN,)}, "^LR has the heads centroid, .*, got own$"),
        ("copy", {}, {"fill_to_capacity": True, "shots": (25,)}, "25 shots cannot be filled"),
    ],
)
def test_settings_that_do_not_suit_the_base_classes_are_refused(
    name, overrides, evaluation, message
):
    config = tiny(ROWS[name].config).with_overrides(overrides)

    with pytest.raises(ValueError, match=message):
        check_method(name, config, QUICK.with_overrides(evaluation), NUM_ROWS, 8)


def test_an_embedding_that_does_not_suit_the_base_classes_is_refused():
    config = tiny(ROWS["c-GAN-PN"].config)
    few = {**NUM_ROWS, "class05": 6}

    check_method("c-GAN-PN", config, QUICK, few, 8, EmbeddingConfig(episode_shots=(1,)))
    with pytest.raises(ValueError, match=r"class class05, .* has 6 train rows"):
        check_method("c-GAN-PN", config, QUICK, few, 8, EmbeddingConfig(episode_shots=(2,)))


def test_settings_of_another_method_are_refused():
    with pytest.raises(ValueError, match=r"^MN has MatchingConfig, got TrainConfig$"):
        check_method("MN", TrainConfig(), QUICK, NUM_ROWS, 8)


def space_of(name: str, preset: str) -> Space:
    """What a study of the built-in features searches: 512 dimensions, 76 base classes."""
    training, evaluation = PRESETS[preset].recommended(name)
    if isinstance(training, TrainConfig):
        return GanSpace(name, training, evaluation, num_dims=512, num_base=76, wide=False)
    return RowSpace(name, training, evaluation, num_base=76)


def test_the_settings_of_a_source_are_other_settings_of_the_same_method():
    published = {name: row.published for name, row in ROWS.items() if row.published is not None}

    assert {"MN", "MAML", "Proto-MAML", "FH", "cCov-GAN"} <= set(published)
    for name, settings in published.items():
        assert type(settings) is type(ROWS[name].config), name
        assert settings != ROWS[name].config, name
    # Only the head tells these two rows apart.
    assert published["MAML"].head != published["Proto-MAML"].head


def test_every_row_can_be_searched_with_every_preset_on_the_built_in_features():
    """They have 150 train rows or more of every base class."""
    num_rows = {f"class{number:02d}": 150 for number in range(76)}
    for name, preset in product(METHODS, PRESETS):
        row, space = ROWS[name], space_of(name, preset)
        of_training = set(row.config.to_dict())

        assert set(row.quick) <= of_training, name
        assert set(row.space) <= of_training | set(EvaluationConfig().to_dict()), name
        # What is recommended lies inside of what is searched.
        point = space.point(RECOMMENDED)
        space.check_point(point)
        if isinstance(space, RowSpace):
            assert set(point) == set(row.space), name
        assert (AS_PRINTED in space.points) == (row.published is not None), name
        embedding = PRESETS[preset].embedding(name)
        assert (embedding is not None) == row.is_embedded, name
        for whose in space.points:
            tried = space.around(whose)
            check_method(name, tried.training, tried.evaluation, num_rows, 512, embedding)


def test_a_row_has_a_head_of_its_own_or_those_that_are_asked_for():
    only_knn = QUICK.with_overrides({"heads": ("knn",)})
    kinds = {"AWG": ([OWN], [OWN]), "copy": (list(HEADS), ["knn"])}
    kinds["FI-PN"] = ([OWN, *HEADS], [OWN, "knn"])

    for name, (all_heads, asked_for) in kinds.items():
        assert (heads_of(name, QUICK), heads_of(name, only_knn)) == (all_heads, asked_for)
