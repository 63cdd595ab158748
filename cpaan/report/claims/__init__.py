"""The paper's claims and the verdicts of our measurements; and where our rows stand among all."""

from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.standing import Standing, reasons_behind, standing
from cpaan.report.claims.verdict import RULE, Claim

__all__ = ["RULE", "Claim", "Standing", "judge_claims", "reasons_behind", "standing"]
