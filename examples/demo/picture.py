"""`./dev picture`: run the demo in a terminal of a fixed size, and keep what a person sees there as a picture.

The picture is `demo.svg`, beside this file. Its text is text: it can be selected, searched and read aloud. It asks for
nothing from outside, its font is the reader's own. Everything on it was printed by the run that was recorded: the times
are those of that run.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from examples.demo.source import PINNED, REPOSITORY, project

PICTURE = Path(__file__).with_name("demo.svg")
COMMAND = "./dev demo"
COLUMNS, ROWS = 92, 40
TITLE = "A terminal that runs ./dev demo"
DESCRIPTION = (
    "Sandport leases a sandbox on this machine, copies a project in, runs the project's own tests inside with live "
    "output, brings the report home, and shows that nothing is left. The text of the terminal is in the picture."
)

# A terminal is dark, on a light page and on a dark one. What is behind, what is written, and the colours that programs
# choose from by their number.
THEME = TerminalTheme(
    (22, 27, 34),
    (214, 221, 229),
    [
        (110, 118, 129),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (214, 221, 229),
    ],
)
FORM = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc">
<title id="title">TITLE</title>
<desc id="desc">DESCRIPTION</desc>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
}}
.{unique_id}-title {{ font-family: system-ui, sans-serif; font-size: 16px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def recorded(command: Sequence[str]) -> str:
    """What a command writes to a terminal; it must end well.

    Raises:
        SystemExit: It failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
    environ |= {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    pieces = []
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as running:
        os.close(theirs)
        while piece := read(ours):
            pieces.append(piece)
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    os.close(ours)
    if running.returncode != 0:
        raise SystemExit(f"{COMMAND} ended with {running.returncode}; the picture is left as it was")
    return b"".join(pieces).decode().replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    """The next piece; none once the last program has closed the terminal, which Linux tells as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def drawn(text: str) -> str:
    """The picture of a terminal that shows this.

    Raises:
        ValueError: There is something in it that must not be shown, or that cannot be drawn without a screen.
    """
    if found := re.search(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f]", text):
        raise ValueError(f"at {found.start()}: {found[0]!r} moves the cursor")
    if found := re.search(rf"(?<!\w)({'|'.join(map(re.escape, private()))})(?!\w)", text):
        raise ValueError(f"{found[0]!r} is of this machine")
    shown = Text.from_ansi(f"\x1b[32m$ \x1b[0m\x1b[1m{COMMAND}\x1b[0m\n{text.rstrip()}")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(shown, soft_wrap=False)
    form = FORM.replace("TITLE", TITLE).replace("DESCRIPTION", DESCRIPTION)
    picture = console.export_svg(title="sandport", theme=THEME, code_format=form, unique_id="demo")
    # A copied blank is to be a blank; only of several side by side would a browser make one.
    picture = re.sub(r"(?<!&#160;)(?<!>)&#160;(?!&#160;|<)", " ", picture)
    return re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE)


def private() -> list[str]:
    """What only this machine has."""
    return [str(REPOSITORY), str(Path.home()), os.uname().nodename, tempfile.gettempdir()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record a run and draw it."""
    parser = argparse.ArgumentParser(prog="./dev picture", description="Draw a run of the demo: examples/demo/demo.svg")
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        # What is fetched once is no part of the picture.
        if project(Path(folder), offline=False).title != PINNED:
            raise SystemExit("the demo's project cannot be fetched; the picture is left as it was")
    text = recorded([str(REPOSITORY / "dev"), "demo"])
    if re.search(r"^(note|dev): ", text, re.MULTILINE):
        raise SystemExit("this run was not all that the demo can show, or more; the picture is left as it was")
    PICTURE.write_text(drawn(text), encoding="utf-8")
    print(f"\n{PICTURE.relative_to(REPOSITORY)} is drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
