"""Test every row of the table: its method, its errors and its search space."""

from itertools import product

import pytest

from cpaan.gan.config import TrainConfig
from cpaan.methods.controls import CONTROLS
from cpaan.methods.registry import (
    METHODS,
    ROWS,
    TABLE_1,
    expand_methods,
    num_episodes_of,
    rows_of_table,
    with_episodes,
)
from cpaan.methods.table_row import FEATURES, IN_PN
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.report.published import TABLE_1 as PRINTED
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import PRESETS
from cpaan.study.row import AS_PRINTED, RECOMMENDED
from helpers.runs import QUICK
from helpers.studies import row_of_preset

OF_THE_PAPER = [
    *("LR", "SN", "MAML", "PN", "MN", "PMN", "AWG", "FH", "P-FH", "FI-PN", "FI-PMN"),
    *("cCov-GAN", "c-GAN-PN", "cCyc-GAN-PN", "cDeLi-GAN-PN", "cCov-GAN-PN"),
]
OURS = {
    *CONTROLS,
    *(f"{name}-PN" for name in CONTROLS),
    *("Proto-MAML", "AWG-cosine", "DC", "wDAE", "CP-AAN+", "CP-AAN+-PN"),
}
NUM_ROWS = {f"class{number:02d}": 24 if number == 5 else 25 for number in range(24)}


def test_the_table_has_the_sixteen_rows_of_the_paper_in_its_order_and_ours_beside_them():
    rows = rows_of_table()

    assert [name for name in rows if name in OF_THE_PAPER] == OF_THE_PAPER == list(PRINTED)
    assert {name for name in ROWS if ROWS[name].is_printed} == set(OF_THE_PAPER)
    assert set(rows) - set(OF_THE_PAPER) == OURS


def test_rows_of_the_paper_have_nothing_that_goes_past_it_and_cp_aan_plus_is_beside_them():
    past = {"episode_shots", "real_examples", "residual", "prototype_weight"}
    for name in ("", IN_PN):
        faithful, extended = ROWS[f"cCov-GAN{name}"], ROWS[f"CP-AAN+{name}"]
        settings, more = (row.method.config.to_dict() for row in (faithful, extended))

        assert {key for key in settings if settings[key] != more[key]} == past
        assert settings["prototype_weight"] == 0
        assert (faithful.generation, faithful.head) == (extended.generation, extended.head)


def test_the_final_classifier_is_the_paper_s():
    """The head is a centroid in PN's embedding, linear on ResNet-10 features, or a method's own."""
    heads = {name: ROWS[name].head for name in OF_THE_PAPER}

    in_embedding = {"PN", *(name for name in heads if name.endswith("GAN-PN"))}
    linear = {"LR", "FH", "P-FH", "cCov-GAN"}
    assert {name for name, head in heads.items() if head == "centroid"} == in_embedding
    assert {name for name, head in heads.items() if head == "linear"} == linear
    for name, row in ROWS.items():
        assert row.head in row.heads, name
    assert ROWS["FI-PN"].heads_among(("knn",)) == [OWN, "knn"]


def test_the_name_of_the_table_stands_for_the_rows_whose_features_there_are():
    plain = [name for name in rows_of_table() if name != "AWG-cosine"]

    assert expand_methods(["c-GAN", TABLE_1]) == ["c-GAN", *rows_of_table()]
    assert expand_methods([TABLE_1], [FEATURES]) == plain
    with pytest.raises(ValueError, match=r"AWG-cosine needs features of .* \(--cosine-features\)"):
        expand_methods(["AWG-cosine"], [FEATURES])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["meanshift"], r"^unknown method 'meanshift', did you mean mean-shift\?; `cpaan"),
        (["ccov-gan"], r"did you mean cCov-GAN\?"),
        (["table1"], r"^unknown method 'table1', did you mean table-1\?"),
        (["none", "none"], "^each method can be given only once, got 'none, none'$"),
        ([TABLE_1, "PN"], "^each method can be given only once, got 'table-1, PN'$"),
        ([], "^no method is given; `cpaan methods` lists them"),
    ],
)
def test_names_that_are_no_methods_are_refused_with_what_there_is(names, message):
    with pytest.raises(ValueError, match=message):
        expand_methods(names)


def test_length_of_training_is_set_where_there_is_training():
    untrained = [name for name, method in METHODS.items() if not num_episodes_of(method.config)]

    assert set(untrained) == {*CONTROLS, *(f"{name}-PN" for name in CONTROLS), "LR", "DC"}
    for name, method in METHODS.items():
        assert num_episodes_of(with_episodes(method.config, 7)) == (7, 0)[name in untrained], name


@pytest.mark.parametrize(
    ("name", "overrides", "evaluation", "message"),
    [
        ("MN", {"episode_shots": (24,)}, {}, r"^class class05, the smallest of 24, has 24 train "),
        ("cCov-GAN", {"ky_fan_order": 9}, {}, "ky_fan_order is 9, but features have 8 dimensions"),
        ("copy", {}, {"perplexity": 30.0}, "below the number of base classes, 24, got 30"),
        ("LR", {}, {"heads": (OWN,)}, "^LR has the heads centroid, .*, got own$"),
        ("copy", {}, {"fill_to_capacity": True, "shots": (25,)}, "25 shots cannot be filled"),
        ("copy-PN", {}, {}, r"class class05, .* has 24 train rows"),
    ],
)
def test_settings_that_do_not_suit_the_base_classes_are_refused(
    name, overrides, evaluation, message
):
    sizes = {"num_ways": 4, "batch_size": 60} if name == "cCov-GAN" else {}
    config = METHODS[name].config.with_overrides({**sizes, **overrides})
    embedding = EmbeddingConfig(episode_shots=(24,))  # of rows that work in one

    with pytest.raises(ValueError, match=message):
        ROWS[name].check(config, QUICK.with_overrides(evaluation), NUM_ROWS, 8, embedding)


def test_settings_of_another_method_are_refused():
    with pytest.raises(ValueError, match=r"^MN needs MatchingConfig, got TrainConfig$"):
        ROWS["MN"].check(TrainConfig(), QUICK, NUM_ROWS, 8)


def test_published_points_have_the_numbers_of_their_sources():
    """Of the sources' files: steps, first rate and its schedule, decay, and sizes."""
    sgd, nesterov = ("sgd", "thirds"), ("nesterov", "last-third")
    of_training = ("num_episodes", "learning_rate", "weight_decay", "optimiser", "schedule")
    published = {
        name: tuple(getattr(METHODS[name].published, key) for key in of_training)
        for name in ("MN", "FH", "AWG", "wDAE")
    }

    assert published == {
        "MN": (60_000, 0.1, 1e-3, *sgd),
        "FH": (120_000, 0.1, 1e-4, *sgd),
        "AWG": (24_000, 0.01, 5e-4, *nesterov),
        "wDAE": (15_000, 0.01, 5e-4, *nesterov),
    }
    wdae, matching, fh = (METHODS[name].published for name in ("wDAE", "MN", "FH"))
    assert (wdae.episodes_per_step, wdae.episode_shots, wdae.num_queries) == (4, (1,), 1)
    assert round(wdae.novel_share * 389) == 200
    assert wdae.corrections == (1.0, 1.0, 0.6, 0.4, 0.2)
    assert (matching.episodes, matching.num_ways, matching.num_queries) == ("uneven", 389, 1)
    assert matching.episode_shots == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert (fh.num_clusters, fh.batch_size, fh.max_per_class, fh.seeds) == (100, 128, 20, "random")


def test_every_row_can_be_searched_with_every_preset_on_the_built_in_features():
    """The built-in features have at least 150 train rows for every base class."""
    num_rows = {f"class{number:02d}": 150 for number in range(76)}
    for name, preset in product(METHODS, PRESETS):
        method, space = METHODS[name], row_of_preset(name, preset, num_base=38)
        of_training = set(method.config.to_dict())

        assert method.published != method.config, name
        assert {*method.quick, *method.full} <= of_training, name
        assert set(method.space) <= of_training | set(EvaluationConfig().to_dict()), name
        assert set(space.point(RECOMMENDED)) <= set(method.space), name
        assert (AS_PRINTED in space.points) == (method.published is not None), name
        embedding = PRESETS[preset].embedding(name)
        assert (embedding is not None) == ROWS[name].is_embedded, name
        for whose in space.points:
            tried = space.settings_of(whose)
            ROWS[name].check(tried.training, tried.evaluation, num_rows, 512, embedding)
