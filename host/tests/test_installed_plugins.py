"""Plugins that distributions bring: found as text, imported only once they are named."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandport.configuration import Configuration, HostSettings, load
from sandport.errors import ConfigurationInvalid, UsageError
from sandport.host import Host
from sandport.installed_plugins import find_plugin
from sandport.log import Log
from sandport.plugins import Plugins
from tests.integration.command import Command

pytestmark = pytest.mark.anyio

MODULES = {
    "quiet": "from sandport.hooks import hookimpl\n\n@hookimpl\ndef sandport_redact(text):\n    return text.upper()\n",
    "kinds": (
        "from sandport.hooks import hookimpl\n\nclass Kind:\n    @hookimpl\n"
        "    def sandport_redact(self, text):\n        return text + '!'\n\nmade = Kind()\n\nclass Needs:\n"
        "    def __init__(self, what):\n        pass\n"
    ),
    "fails": "raise RuntimeError('it never worked')\n",
    "empty": "",
}
CLOSED = (
    "from sandport.hooks import hookimpl\n\n@hookimpl\ndef sandport_authorise(action):\n"
    "    return 'come again tomorrow'\n"
)
ENTRIES = """[sandport.plugins]
quiet = house_of_tests.quiet
kind = house_of_tests.kinds:Kind
made = house_of_tests.kinds:made
needs = house_of_tests.kinds:Needs
absent = house_of_tests.kinds:there.is.none
fails = house_of_tests.fails
empty = house_of_tests.empty
"""


def plant(folder: Path, distribution: str, entries: str) -> None:
    """A distribution's metadata, as an installer writes it."""
    dist_info = folder / f"{distribution}-2.0.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 2.0\n")
    (dist_info / "entry_points.txt").write_text(entries)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a distribution that brings plugins."""
    folder = tmp_path / "installed"
    plant(folder, "house_of_tests", ENTRIES)
    package = folder / "house_of_tests"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, source in MODULES.items():
        (package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith("house_of_tests")]:
        del sys.modules[name]


def hung_in(*names: str) -> Plugins:
    return Plugins(names, Log(lambda *_: None))


@pytest.mark.parametrize(("name", "answer"), [("quiet", "WORD"), ("kind", "word!"), ("made", "word!")])
def test_a_module_an_object_and_a_class_of_one_are_plugins(name: str, answer: str, installed: Path) -> None:
    assert hung_in(name).redact("word") == answer


def test_those_that_are_named_are_called_in_that_order_and_no_other_is_imported(installed: Path) -> None:
    assert hung_in("kind", "quiet").redact("word") == "WORD!"
    assert "house_of_tests.fails" not in sys.modules
    assert find_plugin("fails").value == "house_of_tests.fails"
    assert "house_of_tests.fails" not in sys.modules


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fails", "(?s)'fails' .house_of_tests.fails, of house_of_tests 2.0.*RuntimeError: it never worked\nmend"),
        ("absent", "'absent'.*AttributeError"),
        ("needs", "'needs'.*TypeError"),
        ("empty", "the plugin empty implements no hook"),
        ("quite", "(?s)no plugin 'quite' is installed; did you mean 'quiet'.*there are: .*made.*\ninstall"),
    ],
)
def test_one_that_cannot_be_used_is_refused_with_what_to_do(name: str, why: str, installed: Path) -> None:
    with pytest.raises(UsageError, match=why):
        hung_in(name)


def test_a_name_that_two_distributions_claim_is_nobodys(installed: Path) -> None:
    plant(installed, "other", "[sandport.plugins]\nquiet = other.quiet\n")
    with pytest.raises(UsageError, match=r"(?s)two distributions.*house_of_tests 2.0.*other 2.0.*uninstall one"):
        hung_in("quiet")


async def test_settings_and_caller_name_them_and_one_that_both_name_is_there_once(
    installed: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "sandport.toml"
    settings.write_text('version = 1\n[host]\nplugins = ["kind"]\n')
    lines: list[str] = []
    log = Log(lambda _level, event, _fields: lines.append(event), threshold="debug")
    async with Host.open(settings, home=tmp_path / "home", log=log, plugins=["kind", "quiet"]) as host:
        host._log("warning", "word")
    assert "WORD!" in lines


async def test_a_host_does_not_open_without_a_plugin_that_its_settings_name(tmp_path: Path) -> None:
    settings = Configuration(host=HostSettings(plugins=("not-there",)))
    with pytest.raises(UsageError, match="no plugin 'not-there' is installed"):
        async with Host.open(settings, home=tmp_path / "home"):
            pytest.fail("it is open")


def test_a_file_that_only_lies_in_the_current_folder_names_none(tmp_path: Path) -> None:
    """A cloned repository must not run code of its choice in the host."""
    (tmp_path / "sandport.toml").write_text('version = 1\n[host]\nplugins = ["kind"]\n')
    with pytest.raises(ConfigurationInvalid, match=r"host\.plugins: a file that was only found"):
        load(environ={"HOME": str(tmp_path / "nobody")}, cwd=tmp_path)


def test_the_command_has_the_plugins_of_the_settings_and_doctor_looks_at_them(
    sandport: Command, installed: Path
) -> None:
    (installed / "house_of_tests" / "closed.py").write_text(CLOSED)
    plant(installed, "policy", "[sandport.plugins]\nclosed = house_of_tests.closed\n")
    settings = sandport.folder / "settings.toml"
    settings.write_text('version = 1\n[host]\nplugins = ["closed"]\n')
    words = ("--config", str(settings))
    environ = {"PYTHONPATH": str(installed)}
    refused = sandport(*words, "run", "-p", "fake", "--", "true", env=environ)
    assert (refused.code, refused.out) == (125, b"")
    assert refused.err == "sandport: lease fake: closed refuses: come again tomorrow\n"

    absent = sandport(*words, "run", "-p", "fake", "--", "true")
    assert absent.code == 2
    assert absent.err.startswith("sandport: no plugin 'closed' is installed; there are: none\n")
    looked = sandport(*words, "doctor", "--json")
    checks = {check["name"]: check for check in looked.object["checks"]}
    assert (looked.code, checks["plugin closed"]["state"]) == (1, "wrong")
    assert checks["plugin closed"]["fix"].startswith("install what brings it")
    assert "was not asked" in checks["provider fake"]["detail"]  # what redacts its log may be what is absent
