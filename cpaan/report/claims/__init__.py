"""The paper's claims and the verdicts of our measurements."""

from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.verdict import RULE, Claim, Mark

__all__ = ["RULE", "Claim", "Mark", "judge_claims"]
