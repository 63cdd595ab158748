"""Evaluate a study's best configuration on the test phase: ``python tune/report.py --help``.

The code is in ``cpaan``, because Ray's workers cannot import modules beside a script.
"""

import sys

from cpaan.cli import main

if __name__ == "__main__":
    sys.exit(main(command="report"))
