"""`python -m sandport_conformance` is the command `sandport-conformance`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
