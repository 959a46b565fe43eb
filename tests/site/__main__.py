"""`./dev site`: build the documentation, and judge what came out.

Sphinx's warnings are errors. A link that leads nowhere, and anything that a page would fetch from another machine, is
told by the page that has it, and the build fails.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.site.audit import audit
from tests.site.contents import ROOT, assemble, read_table

PLACE = ROOT / "build" / "site"


def build(place: Path) -> int:
    """Build the whole site anew below `place`; the exit code."""
    work = place.with_name(f"{place.name}-work")
    shutil.rmtree(place, ignore_errors=True)
    assemble(work, read_table())
    options = ["-b", "html", "--fresh-env", "--write-all", "--fail-on-warning", "--quiet", "--jobs", "auto"]
    folders = ["--conf-dir", str(Path(__file__).parent), "--doctree-dir", f"{work}-read", str(work), str(place)]
    done = subprocess.run([sys.executable, "-m", "sphinx", *options, *folders], cwd=ROOT, check=False)
    shutil.rmtree(work)
    shutil.rmtree(f"{work}-read", ignore_errors=True)
    if done.returncode != 0:
        return done.returncode
    faults = audit(place)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 where the site is whole."""
    parser = argparse.ArgumentParser(prog="./dev site", description="Build the documentation into build/site.")
    parser.add_argument("--quiet", action="store_true", help="say nothing of a site that is whole")
    options = parser.parse_args(arguments)
    status = build(PLACE)
    if status == 0 and not options.quiet:
        print(f"open {PLACE}/index.html")
    return status


if __name__ == "__main__":
    sys.exit(main())
