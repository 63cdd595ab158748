"""Rows that the pictures of a report single out, from the most important to the least."""

LINES = ("cCov-GAN-PN", "copy-PN", "CP-AAN+-PN", "copy", "CP-AAN+", "cCov-GAN", "FH")
"""Rows whose gains have coloured lines; with few rows, all have them."""
EXAMPLES = ("P-FH", "FI-PN", "cCov-GAN-PN", "CP-AAN+-PN")
"""Rows whose synthetic examples are shown."""
CONTROLS = ("copy", "mean-shift", "copy-PN", "mean-shift-PN")
"""Rows that are shown beside the synthetic examples of a study of one row."""
