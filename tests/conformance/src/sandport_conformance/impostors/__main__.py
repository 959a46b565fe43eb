"""Serves one impostor, found without site-packages."""

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Import the module that the argument names and serve its class."""
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    module, _, name = sys.argv[1].partition(":")
    getattr(importlib.import_module(f"sandport_conformance.impostors.{module}"), name)(sys.argv[2]).main()


if __name__ == "__main__":
    main()
