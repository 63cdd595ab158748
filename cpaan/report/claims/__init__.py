"""What the paper claims and what was found, claim by claim; and where a row stands among all."""

from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.reasons import reasons_behind
from cpaan.report.claims.standing import Ahead, Place, standing
from cpaan.report.claims.verdict import RULE, Claim, Verdict

__all__ = [
    "RULE",
    "Ahead",
    "Claim",
    "Place",
    "Verdict",
    "judge_claims",
    "reasons_behind",
    "standing",
]
