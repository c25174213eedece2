"""`python -m hotset` is the command `hotset`."""

import sys

from hotset.cli import main

sys.exit(main())
