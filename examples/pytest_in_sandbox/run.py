"""Runs a project's tests in a sandbox, and brings the report home; the exit code is pytest's own.

    python examples/pytest_in_sandbox/run.py PROJECT
    python examples/pytest_in_sandbox/run.py PROJECT --junit report.xml -- -k parser -x

What the project's .gitignore names stays at home. Nothing in the project is changed: the tests see a copy. A `local`
sandbox has the interpreter that runs this, with all that it imports, so a virtual environment with the project's
requirements and pytest is all it needs; what else the tests read (models, data) is named by --expose.

Exit codes beside pytest's own: 2 wrong use, 124 timed out, 125 a failure of the sandbox's, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandport import SandportError, blocking
from sandport.errors import SourceMissingError, UsageError

REPORT = ".sandbox-report/junit.xml"


def show(stream: str, data: bytes) -> None:
    """Live output."""
    target = sys.stderr if stream == "stderr" else sys.stdout
    target.buffer.write(data)
    target.buffer.flush()


def imported_from_elsewhere() -> list[str]:
    """Folders that this interpreter imports from and that are not its own: editable installs."""
    own = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    folders = [Path(entry).resolve() for entry in sys.path[1:] if entry and Path(entry).is_dir()]
    return [str(folder) for folder in folders if not own & {folder, *folder.parents}]


def run(
    project: Path,
    junit: Path | None,
    arguments: Sequence[str],
    *,
    environment: str,
    config: dict[str, Any],
    timeout_s: float,
) -> int:
    """Run the tests; answers the exit code that a shell would give."""
    with blocking.Host.open() as host, host.lease(environment, config=config, ttl_s=timeout_s + 300) as sandbox:
        sent = sandbox.sync_in(project, "project", gitignore=True, exclude=[".git"])
        print(f"{sent.files} files, {sent.total_bytes} bytes, {sent.excluded} left at home", file=sys.stderr)
        outcome = sandbox.execute(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={REPORT}", *arguments],
            cwd="project",
            timeout_s=timeout_s,
            on_output=show,
        )
        if outcome.ended != "exited":
            print(f"the tests did not end by themselves: {outcome.ended}", file=sys.stderr)
        elif junit is not None:
            try:
                sandbox.sync_out(f"project/{REPORT}", junit)
            except SourceMissingError:
                print("pytest wrote no report; what it says above is why", file=sys.stderr)
    return outcome.shell_code


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # What follows the first -- is pytest's, options and all.
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        usage="%(prog)s [OPTIONS] PROJECT [-- PYTEST_ARGUMENT...]", description="Run a project's tests in a sandbox."
    )
    parser.add_argument("project", type=Path)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="where to put the report")
    parser.add_argument("--environment", default="local", help="a provider, or an environment of sandport.toml")
    parser.add_argument("--expose", action="append", default=[], metavar="DIR", help="what else the tests may read")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    chosen = parser.parse_args(words[:end])
    if not chosen.project.is_dir():
        parser.error(f"{chosen.project} is no folder; give that of the project")
    if chosen.timeout <= 0:
        parser.error("--timeout: give seconds above 0")
    exposed = chosen.expose + (imported_from_elsewhere() if chosen.environment == "local" else [])
    try:
        return run(
            chosen.project,
            chosen.junit,
            words[end + 1 :],
            environment=chosen.environment,
            config={"expose": exposed} if exposed else {},
            timeout_s=chosen.timeout,
        )
    except SandportError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 125
    except KeyboardInterrupt:
        print("interrupted; the sandbox has ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
