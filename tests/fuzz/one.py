"""`python -m tests.fuzz.one TARGET CORPUS [LIBFUZZER_OPTION...]`: one target in one process, guided by coverage."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["sandport", "sandport_protocol"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until the options say that it is enough, or something is found."""
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
