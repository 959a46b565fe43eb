"""The author's file: what it may say, and that what it cannot mean is refused by name."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from sandport_conformance.commands import DEFAULT_COMMANDS
from sandport_conformance.outcomes import Misuse, Untestable
from sandport_conformance.settings import load, parse

WHOLE = """
[worker]
config = { region = "eu", nested = { deep = [1] } }
secrets = { token = "MYCLOUD_TOKEN" }
env = ["MYCLOUD_URL"]

[run]
scale = 2.5
name_prefix = "ci"

[commands]
print = ["cmd", "/c", "echo {text}"]
flood = false

[[known_failures]]
check = "FRAME-2"
reason = "the runtime's line reader"
expires = 2027-01-31
"""
ENVIRON = {"MYCLOUD_TOKEN": "s3cret-value", "MYCLOUD_URL": "https://x", "PATH": "/bin", "OTHER_SECRET": "no"}


def test_a_whole_file_means_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "conformance.toml"
    file.write_text(WHOLE, encoding="utf-8")
    settings = load(file, ENVIRON)
    assert settings.config == {"region": "eu", "nested": {"deep": [1]}}
    assert settings.secrets == {"token": "s3cret-value"}
    assert settings.with_config == {"config": settings.config, "secrets": {"token": "s3cret-value"}}
    assert settings.environ == {"MYCLOUD_URL": "https://x", "PATH": "/bin"}
    assert (settings.scale, settings.name_prefix) == (2.5, "ci")
    assert settings.commands.argv("print", text="{code} $x") == ["cmd", "/c", "echo {code} $x"]
    known = settings.known_failures["FRAME-2"]
    assert (known.reason, known.expires) == ("the runtime's line reader", datetime.date(2027, 1, 31))


def test_without_a_file_everything_has_a_default() -> None:
    settings = load(None, {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "hidden"})
    assert settings.with_config == {"config": {}, "secrets": {}}
    assert settings.environ == {"PATH": "/bin"}
    assert all(settings.commands.has(name) for name in DEFAULT_COMMANDS)


def test_a_command_that_cannot_be_done_is_untestable() -> None:
    commands = parse({"commands": {"flood": False}}, {}).commands
    assert not commands.has("flood")
    with pytest.raises(Untestable, match=r"commands\.flood is false"):
        commands.argv("flood", bytes=1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"wroker": {}}, r"nothing reads \[wroker\]"),
        ({"worker": {"cofnig": {}}}, r"nothing reads worker\.cofnig; it may hold config, env, secrets"),
        ({"worker": 1}, "worker must be a table"),
        ({"worker": {"config": []}}, "worker.config must be a table"),
        ({"worker": {"env": "HOME"}}, "worker.env must be a list of strings"),
        ({"worker": {"secrets": {"token": "NOT_SET"}}}, "the variable NOT_SET is not set"),
        ({"worker": {"secrets": {"token": 1}}}, "must be the name of a variable"),
        ({"run": {"scale": 0}}, "run.scale must be a number above 0"),
        ({"run": {"scale": True}}, "run.scale must be a number above 0"),
        ({"run": {"name_prefix": "CI"}}, "a-z and 2-7"),
        ({"run": {"name_prefix": "muchtoolong"}}, "8 characters"),
        ({"commands": {"prnit": []}}, r"no check runs commands\.prnit"),
        ({"commands": {"print": []}}, "needs a program"),
        ({"commands": {"print": "echo"}}, "must be a list of strings"),
        ({"known_failures": {"check": "A-1"}}, r"written as \[\[known_failures\]\]"),
        ({"known_failures": [{"check": "FRAME-2"}]}, "names its check and gives a reason"),
        ({"known_failures": [{"check": "FRAME-2", "reason": " "}]}, "gives a reason"),
        ({"known_failures": [{"check": "FRAME-2", "reason": "x", "expires": "soon"}]}, "must be a date"),
        ({"known_failures": [{"check": "FRAME-2", "reason": "x", "until": 1}]}, "has `check`, `reason`"),
        ({"known_failures": [{"check": "FRAME-2", "reason": "x"}] * 2}, "is listed twice"),
    ],
)
def test_what_the_file_cannot_mean_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        parse(raw, {})


def test_a_file_that_is_no_toml_is_refused_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[worker", encoding="utf-8")
    with pytest.raises(Misuse, match=r"broken\.toml: "):
        load(file, {})
    with pytest.raises(Misuse, match=r"absent\.toml: "):
        load(tmp_path / "absent.toml", {})
