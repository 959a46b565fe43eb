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

CHANGE = 'printf "tested in a sandbox\n" >>"$1"'


def step(text: str) -> None:
    """A heading, which a terminal shows in bold."""
    line = f"== {text}"
    print(f"\n\033[1m{line}\033[0m" if sys.stdout.isatty() else f"\n{line}", flush=True)


async def run(work: Project, home: Path) -> int:
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

            step(f"sync {work.title} in")
            moved = await sandbox.sync_in(work.tree, "project")
            print(f"{moved.files} files, {moved.total_bytes} bytes")

            step("ask the sandbox for a way out")
            routes = await sandbox.execute(["cat", "/proc/net/route"])
            # The first line is a heading.
            ways = routes.stdout.decode().splitlines()[1:]
            print(f"{len(ways)} routes: the network of this machine" if ways else "no route: it has no network")

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
                env={
                    "PYTHONPATH": work.python_path,
                    "PYTHONDONTWRITEBYTECODE": "1",
                    # What this environment brings for pytest may come from folders that the sandbox does not see.
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                },
                timeout_s=120,
                on_output=show,
            )
            print(f"ended: {outcome.ended}, exit code {outcome.exit_code}, {outcome.duration_s:.2f} s")

            step("change a file inside, sync it and the report out")
            changed = await sandbox.execute(["sh", "-c", CHANGE, "change", work.changed], cwd="project")
            if changed.exit_code != 0:
                raise SystemExit(f"{work.changed} could not be changed: {changed.stderr.decode(errors='replace')}")
            inside = await sandbox.execute(["sha256sum", "project/report/junit.xml", f"project/{work.changed}"])
            await sandbox.sync_out("project/report", home / "report")
            await sandbox.sync_out(f"project/{work.changed}", home / work.changed)
        print(f"the lease has ended after {time.monotonic() - started:.2f} s")

    digests = [line.split()[0] for line in inside.stdout.decode().splitlines()]
    for path, digest in zip((home / "report" / "junit.xml", home / work.changed), digests, strict=True):
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{path.name} is not the file that was in the sandbox")
        print(f"{path.name}, sha256 {digest[:16]}... on both sides")
    if (home / work.changed).read_bytes() == (work.tree / work.changed).read_bytes():
        raise SystemExit(f"{work.changed} came back as it was sent")
    suite = next(ET.fromstring((home / "report" / "junit.xml").read_bytes()).iter("testsuite"))
    print(f"junit.xml tells of {suite.get('tests')} tests, {suite.get('failures')} failures")
    return outcome.shell_code


def main() -> int:
    """Get the project, do the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--offline", action="store_true", help="use this repository's protocol/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        return asyncio.run(run(project(Path(folder), offline=options.offline), Path(folder, "home")))


if __name__ == "__main__":
    sys.exit(main())
