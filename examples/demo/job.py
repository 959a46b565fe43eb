"""The main job with the host's public API: lease, files in, tests with live output, report out, release."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from examples.demo.source import Project, project
from sandport import Host


def step(text: str) -> None:
    """A heading."""
    print(f"\n== {text}", flush=True)


async def run(work: Project, report: Path) -> int:
    """Run the project's tests in a sandbox and bring the report home; answers the tests' exit code."""

    async def show(stream: str, data: bytes) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()

    async with Host.open() as host:
        step("lease a sandbox from provider 'local'")
        started = time.monotonic()
        async with host.lease("local", run="demo") as sandbox:
            print(f"{sandbox.id} after {time.monotonic() - started:.2f} s")
            for note in sandbox.lease.notes:
                print(f"note: {note}")

            step(f"sync {work.title} in")
            moved = await sandbox.sync_in(work.tree, "project")
            print(f"{moved.files} files, {moved.total_bytes} bytes")

            step("run its own tests inside, live")
            outcome = await sandbox.execute(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "--junitxml=report/junit.xml",
                    *work.tests,
                ],
                cwd="project",
                env={"PYTHONPATH": work.python_path, "PYTHONDONTWRITEBYTECODE": "1"},
                timeout_s=120,
                on_output=show,
            )
            print(f"ended: {outcome.ended}, exit code {outcome.exit_code}, {outcome.duration_s:.2f} s")

            step("sync the report out")
            inside = await sandbox.execute(["sha256sum", "project/report/junit.xml"])
            await sandbox.sync_out("project/report", report)
        print(f"the lease has ended after {time.monotonic() - started:.2f} s")

    content = (report / "junit.xml").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if not inside.stdout.decode().startswith(digest):
        raise SystemExit("the report is not the file that the tests wrote")
    suite = next(ET.fromstring(content).iter("testsuite"))
    counts = f"{suite.get('tests')} tests, {suite.get('failures')} failures"
    print(f"junit.xml, sha256 {digest[:16]}... on both sides: {counts}")
    return outcome.shell_code


def main() -> int:
    """Get the project, do the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offline", action="store_true", help="use this repository's protocol/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        return asyncio.run(run(project(Path(folder), offline=options.offline), Path(folder, "report")))


if __name__ == "__main__":
    sys.exit(main())
