"""Search the hyper-parameters of a GAN on the validation phase: ``python tune/search.py --help``.

Thin on purpose: modules beside a script do not reach Ray's workers.
"""

import sys

from cpaan.cli import main

if __name__ == "__main__":
    sys.exit(main(command="search"))
