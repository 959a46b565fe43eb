"""A pytest plugin that proves which source was tested: a bug that was not imported could not be found.

`SANDPORT_PLANTED_IN` is the copy of the workspace, `SANDPORT_WITNESS` the file in which the modules of ours are named.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

PACKAGES = ("sandport", "sandport_protocol", "sandport_sdk", "sandport_provider_local", "sandport_provider_fake")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down the file of each module of ours, and fail where one is not of the copy."""
    copy = Path(os.environ["SANDPORT_PLANTED_IN"])
    ours = [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] in PACKAGES]
    files = [Path(module.__file__) for module in ours if module.__file__ is not None]
    strangers = [str(file) for file in files if not file.is_relative_to(copy)]
    lines = [str(file.relative_to(copy)) for file in files if file.is_relative_to(copy)]
    Path(os.environ["SANDPORT_WITNESS"]).write_text("\n".join(lines), encoding="utf-8")
    if strangers:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        raise pytest.UsageError(f"not of the copy: {', '.join(strangers)}")
