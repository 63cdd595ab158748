"""Test the table of claims."""

from itertools import pairwise

from cpaan.methods.registry import ROWS
from cpaan.report.ablations import LABELS
from cpaan.report.claims.claim import CLAIMS, REAL, Contrast, Pick
from cpaan.report.published import CELLS, TABLE_1

BY_NAME = {claim.name: claim for claim in CLAIMS}
BEST = "cCov-GAN-PN"


def test_claims_name_rows_and_ablations_that_exist():
    keys = {key for family in LABELS.values() for key in family}
    rows = {row for claim in CLAIMS for pair in claim.contrasts for row in pair[:2]}
    names = {name for row in rows for name in (row.among if isinstance(row, Pick) else [row])}

    assert {name.partition("/")[0] for name in names} - ROWS.keys() == {REAL}
    assert {name.partition("/")[2] for name in names} - keys == {""}
    assert len(BY_NAME) == len(CLAIMS)
    assert {claim.kind for claim in CLAIMS} == {"control", "primary", "paper", "further"}
    assert {claim.flag for claim in CLAIMS} == {"", "partial", "headline"}


def test_a_line_is_compared_row_by_row_in_every_column_and_for_all_numbers_of_shots():
    gans, order = ["c-GAN-PN", "cCyc-GAN-PN", "cDeLi-GAN-PN", BEST], BY_NAME["order of the GANs"]
    assert order.contrasts == tuple(
        Contrast(better, worse, "novel", shots)
        for worse, better in pairwise(gans)
        for shots in ("fewest", "mean")
    )
    earlier = BY_NAME["gain over earlier augmentation"].contrasts
    assert earlier[:2] == (
        Contrast(BEST, "FH", "novel", "every"),
        Contrast(BEST, "FH", "glsl", "every"),
    )
    assert [contrast.worse for contrast in earlier[::2]] == ["FH", "P-FH", "FI-PN", "FI-PMN"]


def test_neighbours_of_the_paper_s_gans_are_claims_of_the_paper_and_of_ours_a_question():
    ours, theirs = (BY_NAME[f"neighbours help ({name})"] for name in ("CP-AAN+", BEST))

    assert (ours.kind, theirs.kind) == ("further", "paper")
    assert ours.contrasts[0][:2] == ("CP-AAN+/soft", "CP-AAN+/all")


def test_the_paper_s_best_row_is_compared_with_all_of_its_other_rows():
    claim = BY_NAME["first or second"]
    places = [
        1 + sum(row.get(cell, 0.0) > TABLE_1[BEST][cell] for row in TABLE_1.values())
        for cell in CELLS
    ]

    assert set(claim.contrasts[0].worse.among) == TABLE_1.keys() - {BEST}
    assert [places.count(place) for place in (1, 2)] == [8, 2], "as the text says"
