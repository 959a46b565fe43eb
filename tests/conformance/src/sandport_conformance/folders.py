"""Removing folders in which programs have run."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as this user may; directories in it may be closed to writing."""
    for below, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(below, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
