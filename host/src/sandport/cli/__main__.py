"""`python -m sandport.cli` is the `sandport` command."""

import sys

from . import main

sys.exit(main())
