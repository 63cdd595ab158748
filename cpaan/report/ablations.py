"""Ablations: variants of a row that change one choice, by family and key."""

from dataclasses import dataclass

TERMS, NEIGHBOURS, IDEAS = "terms", "neighbours", "ideas"
WHOLE = "recommended-weight"
"""The ablation with every term; others of its family lack one and differ in nothing else."""
NUMBERS_OF_NEIGHBOURS = (1, 5, 20, 50)
LABELS = {
    TERMS: {
        WHOLE: "recommended weight of synthetic examples",
        "without-cycle": "without the cycle term",
        "without-mixture": "without mixture noise",
        "without-covariance": "without the covariance term",
    },
    NEIGHBOURS: {
        "all": "all base classes",
        "soft": "NBS-S",
        **{f"hard-{count}": f"NBS-H, k = {count}" for count in NUMBERS_OF_NEIGHBOURS},
    },
    IDEAS: {
        "without-prototype": "without the prototype term",
        "real-shots": "shots as real examples",
        "no-residual": "no residual start",
        "one-number-of-shots": "one number of episode shots",
        "as-if-real": "synthetic as if real",
        "fewer-examples": "a fifth of the synthetic examples",
        "half-training": "half of the training",
        "without-adversary": "without the adversary",
        "without-cycle": "without the cycle term",
        "without-covariance": "without the covariance term",
    },
}
"""The words of the page for ablations, by family and key."""


@dataclass(frozen=True)
class Ablation:
    """How a row differs from the row that it varies."""

    of: str
    """Name of the row that it varies."""
    family: str
    key: str

    @property
    def label(self) -> str:
        """The words of the page for this ablation."""
        return LABELS[self.family][self.key]

    @property
    def title(self) -> str:
        """The name of the row that it varies, and the words."""
        return f"{self.of}: {self.label}"
