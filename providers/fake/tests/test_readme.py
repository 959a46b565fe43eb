"""The example of the first page runs as it stands there, in a project of its own, with the plugin that it names."""

import re
import subprocess
import sys
from pathlib import Path

from sandport_provider_fake import config as orders
from sandport_provider_fake.config import POINTS

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_of_the_first_page_passes_as_it_stands_there(tmp_path: Path) -> None:
    found = re.search(r"<!-- this block is run by .*? -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    (tmp_path / "test_mine.py").write_text(found[1])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_the_first_page_names_every_action_and_every_point() -> None:
    text = README.read_text()
    for kind in orders.AnyFault.__args__:
        tag = kind.__struct_config__.tag
        (row,) = re.findall(rf"^\| `{tag}` \|.*$", text, re.MULTILINE)
        members = set(kind.__struct_fields__) - set(orders.Fault.__struct_fields__)
        assert {name for name in members if f"`{name}`" not in row} == set(), tag
    names = re.search(r"^`NAME` is (.*)$", text, re.MULTILINE)
    assert names
    for point in POINTS:
        name, _, stage = point.partition(".")
        assert f"`{point}`" in text or (f"`{name}`" in names[1] and f"`NAME.{stage}`" in text), point


def test_the_helper_for_tests_needs_neither_pytest_nor_the_host() -> None:
    code = "import sys, sandport_provider_fake.testing; sys.exit(bool({'pytest', 'sandport'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
