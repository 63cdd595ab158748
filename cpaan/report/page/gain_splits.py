"""Which gains the page takes apart: those of our rows, at the fewest shots."""

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION, PN, RESNET
from cpaan.report.gains import GainSplit, split_gain
from cpaan.report.page.contents import Contents
from cpaan.report.page.table_data import OURS, VALIDATION, TableData
from cpaan.report.table_one import heads_by_paper

_PLAIN, _CONTROL = "none", "Control"
_EMBEDDED = ("none-PN", "PN")
"""Rows of the embedding without augmentation. The first has the same one as our rows."""
_TAKEN_APART = ("CP-AAN+-PN", "CP-AAN+", "cCov-GAN-PN", "cCov-GAN")


def make_splits(contents: Contents, table: TableData, subject: str) -> list[GainSplit]:
    """Split the gains of the subject, of CP-AAN+ and of the paper's best GANs, on novel classes.

    A row is taken with the head that validation chose for it, or else that of the table's first
    view. The way begins with the paper's head where it was scored. Rows whose way lacks a score are
    left out.
    """
    methods = contents.methods
    ours = [name for name in methods if ROWS[methods[name]].group in OURS]
    known = [name for method in _TAKEN_APART for name in ours if methods[name] == method]
    splits = [
        _split(contents, table, name) for name in dict.fromkeys([subject, *known]) if name in ours
    ]
    return [split for split in splits if split is not None]


def _split(contents: Contents, table: TableData, name: str) -> GainSplit | None:
    methods, seeded = contents.methods, contents.seeded
    view = table.view(VALIDATION) if VALIDATION in table.rules else table.default
    head = view.head_of.get(name) or table.default.head_of.get(name)
    known = set(seeded[["method", "head"]].itertuples(index=False, name=None))
    is_embedded = ROWS[methods[name]].representation == PN
    bases = _EMBEDDED if is_embedded else (_PLAIN,)
    base = next((each for each in bases if (each, head) in known), None)
    if head is None or base is None or (name, head) not in known:
        return None
    plain = _PLAIN if _PLAIN in methods else base
    paper_head = heads_by_paper(methods)[name]
    if not {(plain, paper_head), (base, paper_head)} <= known:
        paper_head = head
    if (plain, paper_head) not in known:
        return None
    controls = [
        other
        for other, method in methods.items()
        if ROWS[method].group == _CONTROL
        and ROWS[method].representation == (PN if is_embedded else RESNET)
        and ROWS[method].generation != NO_GENERATION
        and (other, head) in known
    ]
    return split_gain(
        seeded,
        title=f"{name}, {head}",
        augmented=name,
        plain=plain,
        embedded=None if base == plain else base,
        head=head,
        paper_head=paper_head,
        controls=controls,
        shots=table.shots[0],
    )
