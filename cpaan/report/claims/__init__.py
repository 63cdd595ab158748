"""The paper's claims, and the verdicts of our measurements."""
