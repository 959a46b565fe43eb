"""L3: what a worker says of a config, and whether it means it."""

from __future__ import annotations

from typing import Any

from sandport_conformance import schema
from sandport_conformance.declaration import check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, Untestable, expect
from sandport_conformance.schema import Json

from .claims import expect_no_effect, field_of
from .l3_errors import canaries
from .leases import listed, settle

UNKNOWN = "conformanceNoSuchKey"


def _unknown_key(lab: Lab) -> Json:
    """The author's config, and a key that no provider knows."""
    return {**lab.settings.config, UNKNOWN: 1}


def _keys_of(config_schema: Any) -> Json:
    """The keys of a config by its JSON Schema, one level deep; empty where they cannot be found."""
    if not isinstance(config_schema, dict):
        return {}
    reference = config_schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = config_schema
        for part in reference[2:].split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        config_schema = target if isinstance(target, dict) else {}
    keys = config_schema.get("properties")
    return keys if isinstance(keys, dict) else {}


@check(
    "CONF-1",
    part="defaults",
    why="A host stores and shows what a sandbox is really made with, and sends it again later.",
    broken="answers the config as it came, or nothing",
    fix="Answer the config as you read it, with every default filled in.",
)
def a_good_config_comes_back_whole(lab: Lab) -> None:
    """The author's config has no issues, and comes back with its keys and the defaults of the schema."""
    given = lab.settings.config
    answered = lab.worker.call("validateConfig", lab.with_config())
    if answered.get("issues") and not given:
        raise Untestable(f"{lab.settings.no_config_works}: {answered['issues']!r:.300}")
    expect(not answered.get("issues"), f"the config has issues: {answered.get('issues')!r:.300}")
    config = answered.get("config", {})
    if not isinstance(config, dict):
        raise Failed(f"the config that was answered is {config!r:.100}, and must be an object")
    lost = sorted(set(given) - set(config))
    expect(not lost, f"keys of the config are not in the answer: {', '.join(lost)}")
    keys = _keys_of(lab.worker.hello["provider"].get("configSchema"))
    defaults = [name for name, rule in keys.items() if isinstance(rule, dict) and "default" in rule]
    missing = [name for name in defaults if name not in config]
    expect(not missing, f"the schema has defaults that the answer lacks: {', '.join(missing)}")
    again = lab.worker.call("validateConfig", lab.with_config(config=config))
    expect(not again.get("issues"), f"the answered config has issues itself: {again.get('issues')!r:.300}")
    expect(again.get("config") == config, "the answered config comes back as another one")


@check(
    "CONF-1",
    part="issues",
    why="Whoever edits a config is led to the line by this path.",
    broken="answers issues without a path, or with one of its own making",
    fix="Name each issue's key by its dotted path, as in `config.network.mode`.",
)
def issues_name_their_key(lab: Lab) -> None:
    """Each issue of a config with a fault names a dotted path below `config`."""
    issues = lab.worker.call("validateConfig", lab.with_config(config=_unknown_key(lab))).get("issues", [])
    for issue in issues:
        below = issue["field"].startswith("config.") and len(issue["field"]) > len("config.")
        expect(below, f"the field of an issue is {issue['field']!r:.100}, and must be a path below `config`")
        expect(issue["message"].strip(), f"the issue of {issue['field']!r:.100} has no message")


@check(
    "CONF-2",
    why="A config that was found at fault must not make a sandbox that nobody has asked for in this form.",
    broken="acquires with what it could use of the config, or refuses it as any other wrong param",
    fix="Hold the config of `acquireLease` to the same rules, and answer ConfigInvalid with `detail.field`.",
)
def a_wrong_config_makes_no_sandbox(lab: Lab) -> None:
    """A config with issues is refused by `acquireLease` with ConfigInvalid and the key, and makes nothing."""
    worker = lab.worker
    wrong = lab.with_config(config=_unknown_key(lab))
    found = worker.call("validateConfig", wrong).get("issues", [])
    expect(found, f"a config with the key {UNKNOWN!r} has no issues")
    sandbox_id = lab.new_sandbox_id()
    request_id = worker.request("acquireLease", {**wrong, "sandboxId": sandbox_id, "ttlMs": 600_000})
    error = worker.error_of(request_id)
    if error["code"] == schema.error_code("AuthenticationFailed"):
        raise Untestable(f"{lab.settings.no_config_works}: {error['message']!r:.200}")
    error = worker.error_of(request_id, "ConfigInvalid")
    expect_no_effect(error, "an acquire with a wrong config")
    field = field_of(error)
    expect(field.startswith("config."), f"detail.field is {field!r:.100}, and must be a path below `config`")
    settle(lab)
    expect(not listed(lab, sandbox_id), "the sandbox of a refused config is listed")


@check(
    "CONF-3",
    why="A key that is spelt wrong is a setting that silently does not hold.",
    broken="ignores keys that it does not know",
    fix="Decode the config strictly; name the key, and the nearest one that exists.",
)
def an_unknown_key_is_an_issue(lab: Lab) -> None:
    """A key that the provider does not know is named by an issue."""
    issues = lab.worker.call("validateConfig", lab.with_config(config=_unknown_key(lab))).get("issues", [])
    fields = [issue["field"] for issue in issues]
    expect(f"config.{UNKNOWN}" in fields, f"no issue names config.{UNKNOWN}; those that came name {fields!r:.200}")


@check(
    "CONF-4",
    why="A probe is sent often, by hosts that only look; what it left would be nobody's.",
    broken="makes a small sandbox to see whether it works, and leaves it",
    fix="Ask the vendor who you are and what you may; create nothing.",
)
def a_probe_creates_nothing(lab: Lab) -> None:
    """After probes the same sandboxes are listed as before."""
    settle(lab)  # else what was made before would seem to come from the probe
    before = listed(lab)
    for _ in range(2):
        lab.worker.call("probe", lab.with_config())
    settle(lab)
    added = set(listed(lab)) - set(before)
    expect(not added, f"a probe left sandboxes: {', '.join(sorted(added))}")


@check(
    "CONF-5",
    why="Results are stored and shown; a secret in one is a secret no longer.",
    broken="answers the config with the secrets filled in",
    fix="Leave secrets where they came: under their names in the config, their values nowhere.",
)
def no_result_holds_a_secret(lab: Lab) -> None:
    """No result of `validateConfig` or `listLeases` holds a secret that was passed to the worker."""
    story = lab.once(canaries)
    for value in (story.secret, *lab.settings.secrets.values()):
        for message in story.messages:
            results = message.kind == "answer" and "result" in message.body
            method = story.methods.get(message.body["id"]) if results else None
            if method in ("validateConfig", "listLeases") and value.encode() in message.line:
                raise Failed(f"a result holds a secret: {message.line[:300].replace(value.encode(), b'***')!r}")
