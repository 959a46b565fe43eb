"""Workers that misbehave towards a host: each does one thing wrong, once, and is a healthy worker from then on.

So what the host does next can be judged too: the call after the accident must work. What an impostor saw of its host
is in its journal, one JSON object a line.
"""

from __future__ import annotations

import sys
from pathlib import Path


def command_of(name: str, journal: Path) -> tuple[str, ...]:
    """What starts an impostor, `module:Class`, that writes this journal."""
    return (sys.executable, "-S", "-E", str(Path(__file__).with_name("__main__.py")), name, str(journal))
