"""`python -m sandport` is the `sandport` command."""

import sys

from .cli import main

sys.exit(main())
