"""Test rows as published, and the ablations, which change one design choice at a time."""

from dataclasses import replace

import pytest

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.methods.registry import METHODS, num_episodes_of
from cpaan.report.ablations import IDEAS, LABELS, NEIGHBOURS, TERMS, WHOLE
from cpaan.study.report_rows import MeasuredRow, ReportSettings, ablations_of, as_published
from helpers.studies import best_row


def family(row: MeasuredRow, name: str) -> dict[str, MeasuredRow]:
    """Return the ablations of the best row of a study, by key."""
    ablations = ablations_of([row], 1)
    return {row.ablation.key: row for row in ablations if row.ablation.family == name}


def test_neighbours_are_of_every_kind_and_of_every_number_there_is_room_for():
    every = family(best_row("cCov-GAN"), NEIGHBOURS)
    few = family(best_row("cCov-GAN", num_base=13), NEIGHBOURS)

    kinds = [row.resolved.training.neighbours for row in every.values()]
    assert kinds == ["none", "soft"] + ["hard"] * 4
    assert [*every] == [*LABELS[NEIGHBOURS]]
    assert every["hard-20"].resolved.training.num_neighbours == 20
    # There are 26 base classes, of which 20 are meta-novel in an episode.
    assert [*few][2:] == ["hard-1", "hard-5"]


def test_what_the_best_has_already_is_not_trained_again():
    soft = family(best_row("cCov-GAN"), NEIGHBOURS)
    hard = best_row("cCov-GAN", neighbours="hard", num_neighbours=5, perplexity=3.0)
    of_hard = family(hard, NEIGHBOURS)

    assert {key for key, row in soft.items() if row.same_as} == {"soft"}
    assert {key for key, row in of_hard.items() if row.same_as} == {"hard-5"}
    # The search did not set a perplexity.
    assert of_hard["soft"].resolved.training.perplexity == TrainConfig().perplexity


def test_an_idea_is_taken_away_at_a_time_and_nothing_else_changes():
    row = best_row("CP-AAN+")
    whole = {**row.resolved.evaluation.to_dict(), **row.resolved.training.to_dict()}
    changed = {}
    for key, variant in family(row, IDEAS).items():
        part = {**variant.resolved.evaluation.to_dict(), **variant.resolved.training.to_dict()}
        changed[key] = {name for name in whole if part[name] != whole[name]}
    assert changed == {
        "without-prototype": {"prototype_weight"},
        "real-shots": {"real_examples"},
        "no-residual": {"residual"},
        "one-number-of-shots": {"episode_shots"},
        "as-if-real": set(META_TESTING_AS_PRINTED),
        "fewer-examples": {"num_synthetic"},
        "half-training": {"num_episodes"},
        "without-adversary": {"adversarial_weight"},
        "without-cycle": {"cycle_weight"},
        "without-covariance": {"covariance_weight"},
    }
    assert [*changed] == [*LABELS[IDEAS]]


def test_a_table_has_neighbours_of_the_paper_s_best_row_and_ideas_of_ours():
    names = ("PN", "cCov-GAN", "cCov-GAN-PN", "CP-AAN+")
    ablations = ablations_of([best_row(name) for name in names], 2)

    families = {(row.ablation.family, row.ablation.of) for row in ablations}
    terms, others = ablations[:2], ablations[2:]
    assert families == {(NEIGHBOURS, "cCov-GAN-PN"), (IDEAS, "CP-AAN+"), (TERMS, "cCov-GAN-PN")}
    assert len({row.name for row in ablations}) == len(ablations)
    assert {row.seeds for row in others} == {(3, 4)}, "the first seeds of the rows themselves"
    assert {(term.ablation.family, term.seeds) for term in terms} == {
        (TERMS, best_row("cCov-GAN-PN").seeds)
    }
    assert ablations_of([best_row("PN")], 1) == []
    assert not family(best_row("cCov-GAN"), IDEAS)


def test_rows_as_published_have_the_length_and_the_classifier_of_their_sources():
    names = ("none", "LR", "FH", "wDAE", "cCov-GAN-PN", "CP-AAN+-PN")
    published = {row.method: row for row in as_published([best_row(name) for name in names], 1)}

    # Others have no source of their own.
    assert list(published) == ["LR", "FH", "wDAE", "cCov-GAN-PN"]
    for name, row in published.items():
        assert (row.name, row.seeds, row.trial) == (f"{name}, as published", (3,), None)
        assert row.resolved.training == (METHODS[name].published or METHODS[name].config)
    steps = {name: num_episodes_of(row.resolved.training) for name, row in published.items()}
    assert steps == {"LR": 0, "FH": 120_000, "wDAE": 15_000, "cCov-GAN-PN": 100_000}
    heads = [published[name].resolved.evaluation for name in ("LR", "FH")]
    assert [head.linear_num_steps for head in heads] == [10_000, 10_000]
    assert [head.linear_weight_decay for head in heads] == [0.01, 0.001]
    assert published["wDAE"].resolved.evaluation == published["wDAE"].source.evaluation
    gan = published["cCov-GAN-PN"].resolved.evaluation
    assert (gan.fill_to_capacity, gan.mixing_shots) == (True, None)
    assert as_published([best_row("FH")], 0) == []


def test_workers_share_the_episodes_of_a_source_evenly():
    row = best_row("wDAE")
    config = row.source.config.with_overrides({"workers_per_trial": 7})

    (shared,) = as_published([replace(row, source=replace(row.source, config=config))], 2)

    assert shared.resolved.training.num_episodes == 14_994  # 7 times 2,142
    assert shared.seeds == (3, 4)


def test_a_report_has_at_most_as_many_seeds_of_its_other_rows():
    with pytest.raises(ValueError, match=r"--published-seeds must be from 0 to 3, .* got 4"):
        ReportSettings(num_published_seeds=4)


def test_a_claim_about_a_term_has_the_same_row_with_and_without_it_with_all_seeds():
    names = ("cCyc-GAN-PN", "cDeLi-GAN-PN", "cCov-GAN-PN", "c-GAN-PN")
    rows = [best_row(name) for name in names]
    usual = {"mixing_shots": 2.0, "num_synthetic": 40, "fill_to_capacity": False}
    rows[0] = replace(rows[0], resolved=rows[0].resolved.with_overrides(usual))
    ablations = ablations_of(rows, 0)

    changes = {"cycle_weight": 0.0}, {}, {"covariance_weight": 0.0}
    pairs = zip(ablations[::2], ablations[1::2], strict=True)
    for row, (whole, without), change in zip(rows, pairs, changes, strict=False):
        assert whole.ablation.key == WHOLE
        assert whole.resolved == row.resolved.with_overrides(usual)
        assert whole.same_as == (row.name if row is rows[0] else None)
        assert without.resolved == whole.resolved.with_overrides(change)
        assert whole.seeds == without.seeds == row.seeds
    noise, covariance = ablations[3], ablations[5]
    assert covariance.name == "cCov-GAN-PN: without-covariance"
    # The kind of noise is not a setting: it is what cDeLi-GAN and cCyc-GAN differ in.
    assert (noise.method, noise.ablation.of) == ("cCyc-GAN-PN", "cDeLi-GAN-PN")
