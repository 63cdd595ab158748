"""``python -m cpaan``."""

import sys

from cpaan.cli import main

sys.exit(main())
