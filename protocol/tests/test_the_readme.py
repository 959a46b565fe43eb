"""The example on the first page runs."""

from __future__ import annotations

import re
from pathlib import Path

import sandport_protocol

README = Path(sandport_protocol.__file__).parents[2] / "README.md"


def test_every_example_of_the_readme_runs() -> None:
    examples = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
