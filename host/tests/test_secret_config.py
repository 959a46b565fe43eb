"""A config never holds a secret, and a worker that lacks its credential is told of with what grants it."""

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from sandport import Host
from sandport.cli.config_keys import keys_of
from sandport.configuration import Configuration, ProviderSettings
from sandport.errors import AuthenticationFailed, UsageError
from sandport.log import Log
from sandport.secret_keys import secret_keys
from tests.integration.command import Command
from tests.integration.stage import ROOT

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-v4lue"
REF = {"type": "string", "format": "secret-ref"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "size": {"type": "integer"},
        "plain": {"$ref": "#/$defs/Ref"},
        "maybe": {"anyOf": [REF, {"type": "null"}], "default": None},
        "inner": {"type": "object", "properties": {"token": REF}},
        "several": {"type": "array", "items": REF},
        "named": {"type": "object", "additionalProperties": REF},
    },
    "$defs": {"Ref": REF},
}
SETS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {"plain": SECRET}),
    ("maybe", {"maybe": SECRET}),
    ("inner.token", {"inner": {"token": SECRET}}),
    ("several[0]", {"several": [SECRET]}),
    ("named.x", {"named": {"x": SECRET}}),
)
WORKER = """
import json, os, sys
from tests.integration.workers.speaker import Refused, Speaker


def acquire(message):
    raise Refused(CODE, "no credential", dispatched="no")


speaker = Speaker()
speaker.facts = {
    "provider": {"name": "acme", "version": "1", "configSchema": json.loads(SCHEMA)},
    "wantsEnv": ["ACME_TOKEN", "ACME_REGION"],
}
if "ACME_TOKEN" not in os.environ:
    speaker.handlers["acquireLease"] = acquire
speaker.serve()
"""


def command(folder: Path) -> tuple[str, ...]:
    text = WORKER.replace("CODE", str(AuthenticationFailed.code)).replace("SCHEMA", repr(json.dumps(SCHEMA)))
    (folder / "acme.py").write_text(text)
    return ("env", f"PYTHONPATH={ROOT}", sys.executable, "-S", str(folder / "acme.py"))


def configuration(folder: Path, *grants: str) -> Configuration:
    return Configuration(providers={"acme": ProviderSettings(command=command(folder), env=grants)})


def written(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.parametrize(("key", "config"), SETS)
def test_a_key_that_names_a_secret_is_found_wherever_it_stands(key: str, config: dict[str, Any]) -> None:
    schema = json.dumps(SCHEMA).encode()
    assert secret_keys(schema, {"size": 3, "maybe": None} | config) == [key]
    assert secret_keys(schema, {"size": 3, "maybe": None, "inner": {}, "several": []}) == []
    assert secret_keys(b"[" * 100_000, config) == secret_keys(b"7", config) == []


def test_a_schema_that_leads_to_itself_has_an_end() -> None:
    schema = b'{"properties":{"a":{"$ref":"#"}},"additionalProperties":{"$ref":"#/properties/a"}}'
    deep: dict[str, Any] = {}
    for _ in range(50):
        deep = {"a": deep}
    assert secret_keys(schema, deep) == []


def test_the_list_of_keys_says_which_are_names_of_secrets() -> None:
    keys = keys_of(json.dumps(SCHEMA).encode())
    assert keys is not None
    assert (keys["plain"].type, keys["maybe"].type, keys["size"].type) == (
        "name of a secret",
        "name of a secret",
        "whole number",
    )


async def test_a_config_with_a_secret_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A user typed the token where the list of keys said `text`, and it lay in the journal in clear."""
    environ = {"ACME_TOKEN": "granted"}
    home = tmp_path / "home"
    log = Log(lambda *_: None)
    async with Host.open(configuration(tmp_path, "ACME_TOKEN"), home=home, environ=environ, log=log) as host:
        for key, config in SETS:
            with pytest.raises(UsageError) as raised:
                async with host.lease("acme", config=config):
                    pytest.fail("there is a lease")
            assert f"config {key} is the name of a secret" in str(raised.value)
            assert '[providers.acme] env = ["ACME_TOKEN", "ACME_REGION"]' in str(raised.value)
            assert SECRET not in str(raised.value)
        async with host.lease("acme", config={"size": 3}) as sandbox:
            assert sandbox.provider == "acme"
    with contextlib.closing(sqlite3.connect(home / "journal.db")) as db:
        assert db.execute("SELECT count(*) FROM sandbox").fetchone() == (1,)
    assert SECRET.encode() not in written(home)


async def test_a_worker_without_its_credential_is_told_with_the_line_that_grants_it(tmp_path: Path) -> None:
    log = Log(lambda *_: None)
    for environ, said in (({"ACME_TOKEN": "t", "ACME_REGION": "r"}, True), ({}, False)):
        async with Host.open(configuration(tmp_path), home=tmp_path / "home", environ=environ, log=log) as host:
            with pytest.raises(AuthenticationFailed) as raised:
                async with host.lease("acme"):
                    pytest.fail("there is a lease")
        assert ('[providers.acme] env = ["ACME_TOKEN", "ACME_REGION"]' in str(raised.value)) is said


def test_the_command_says_all_of_it_and_takes_a_provider_for_an_environment(sandport: Command) -> None:
    toml = sandport.folder / ".config" / "sandport" / "sandport.toml"
    toml.parent.mkdir(parents=True)
    toml.write_text(f"version = 1\n[providers.acme]\ncommand = {json.dumps(command(sandport.folder))}\n")
    listed = sandport("providers", "acme")
    assert b"name of a secret" in listed.out, listed.err
    run = sandport("run", "-p", "acme", "-c", f"plain={SECRET}", "--", "true")
    assert (run.code, "the name of a secret" in run.err) == (2, True), run.err
    add = sandport("env", "add", "x", "-p", "acme", "-c", f"plain={SECRET}")
    assert (add.code, "the name of a secret" in add.err) == (2, True), add.err
    assert SECRET not in toml.read_text()
    assert SECRET.encode() not in written(sandport.home)
    denied = sandport("run", "-e", "acme", "--", "true", env={"ACME_TOKEN": "t"})
    assert '[providers.acme] env = ["ACME_TOKEN"]' in denied.err
    taken = sandport("run", "-e", "fake", "--", "echo", "hello")
    assert (taken.code, taken.out) == (0, b"hello\n"), taken.err
    assert "there is no environment 'lcoal'" in sandport("run", "-e", "lcoal", "--", "true").err
