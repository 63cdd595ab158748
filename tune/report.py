"""Take a study's best configuration to the test phase: ``python tune/report.py --help``.

Thin on purpose: modules beside a script do not reach Ray's workers.
"""

import sys

from cpaan.cli import main

if __name__ == "__main__":
    sys.exit(main(command="report"))
