"""L2: whether what the hello declares is well formed, and true."""

from __future__ import annotations

import re

from sandport_conformance import schema
from sandport_conformance.declaration import check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.schema import Json

from .claims import expect_no_effect

_EXTENSION = re.compile(r"x-[^/]+/.+", re.DOTALL)


def _hello(lab: Lab) -> Json:
    """The answer to the hello, whatever is in it."""
    return lab.worker.hello


def _words(value: object) -> list[str]:
    """The strings of a list that a worker sent; empty for anything else, which other checks judge."""
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


@check(
    "HELLO-6",
    why="A host plans by this list: it never sends what is not in it, and counts on what must be.",
    broken="leaves out a mandatory method that it serves, or lists names of its own beside those of the protocol",
    fix="List every method of the schema that you serve; list your own methods in `features`.",
)
def the_list_of_methods_is_the_schemas(lab: Lab) -> None:
    """`supportedMethods` holds every mandatory method, and no name that the schema does not have."""
    hello = _hello(lab)
    listed = _words(hello.get("supportedMethods"))
    expect(listed == hello.get("supportedMethods"), f"supportedMethods is {hello.get('supportedMethods')!r:.200}")
    missing = [name for name in schema.mandatory_methods() if name not in listed]
    expect(not missing, f"supportedMethods lacks {', '.join(missing)}")
    foreign = [name for name in listed if name not in schema.protocol()["methods"]]
    expect(not foreign, f"supportedMethods has names that the schema does not have: {', '.join(foreign):.200}")


@check(
    "HELLO-7",
    why="A process that can be started and not ended is worse than none: a group is only useful as a whole.",
    broken="advertises some methods of a group and not the others",
    fix="Serve the whole group, or take all of it out of `supportedMethods`.",
    source="kubernetes-csi/csi-test#564",
)
def groups_are_advertised_whole(lab: Lab) -> None:
    """Of each optional group either every method is advertised or none."""
    for group, methods in schema.optional_groups().items():
        missing = [name for name in methods if name not in lab.facts.methods]
        expect(
            len(missing) in (0, len(methods)),
            f"the group {group} is advertised in part: {', '.join(missing)} missing",
        )


@check(
    "HELLO-8",
    why="Every error, log and listing names the provider; every form for its config is made from the schema.",
    broken="leaves name or version empty, or sends its JSON Schema as a string",
    fix="Send a name, a version, and the schema of your config as a JSON object.",
)
def the_provider_has_a_name(lab: Lab) -> None:
    """`provider` has a name, a version, and a `configSchema` that is an object."""
    provider = _hello(lab).get("provider")
    expect(isinstance(provider, dict), f"provider is {provider!r:.100}")
    members = provider if isinstance(provider, dict) else {}
    for member in ("name", "version"):
        value = members.get(member)
        expect(isinstance(value, str) and value.strip(), f"provider.{member} is {value!r:.100}, and must be a text")
    config = members.get("configSchema", {})
    expect(isinstance(config, dict), f"provider.configSchema is {config!r:.100}, and must be an object")


@check(
    "HELLO-9",
    why="A name without the provider's prefix may get another meaning in a later version of the protocol.",
    broken="lists a word of its own among its features",
    fix="Name what is your own `x-<provider>/<name>`.",
    also=("EVO-3",),
)
def features_have_the_providers_prefix(lab: Lab) -> None:
    """Every feature has the form `x-<provider>/<name>`."""
    features = _hello(lab).get("features", [])
    expect(_words(features) == features, f"features is {features!r:.200}, and must be a list of names")
    foreign = [name for name in _words(features) if not _EXTENSION.fullmatch(name)]
    expect(not foreign, f"features without the form x-<provider>/<name>: {', '.join(foreign):.200}")


@check(
    "HELLO-24",
    why="What is advertised and not there is found out in the middle of a run.",
    broken="advertises a method and answers it with MethodNotFound",
    fix="Make the list of the methods from the table that serves them.",
    source="kubernetes-csi/csi-test#564",
)
def what_is_advertised_is_served(lab: Lab) -> None:
    """No advertised method is answered with MethodNotFound; the calls are such that nothing can come of them."""
    for method in lab.facts.methods:
        rule = schema.protocol()["methods"].get(method)
        if rule is None or rule["group"] == "session":
            continue
        harmless = rule["group"] == "config" or method == "listLeases"
        params = lab.with_config() if harmless else {"sandboxId": "conformance: no id"}
        answer = lab.worker.answer(lab.worker.unthrottled(lab.worker.request(method, params)))
        if "error" in answer.body:
            error = lab.worker.error_of(answer.body["id"])
            expect(error["code"] != schema.error_code("MethodNotFound"), f"{method} is advertised and not served")


@check(
    "MSG-10",
    why="A host that meets an older worker must be told that the method is missing, and that nothing has happened.",
    broken="falls silent, or answers another error, on a method that it does not advertise",
    fix="Look the method up before anything else, and answer MethodNotFound with `dispatched` `no`.",
    source="kubernetes-csi/csi-test#564",
)
def what_is_not_advertised_is_refused(lab: Lab) -> None:
    """What is not advertised is MethodNotFound: unknown names, drafts, groups, notifications sent as requests."""
    known = schema.protocol()
    drafts = [method for methods in known["drafts"].values() for method in methods]
    host_notes = [name for name, note in known["notifications"].items() if note["sender"] == "host"]
    foreign = ["conformance/noSuchMethod", "x-conformance/none", "", "Ping"]
    names = [*foreign, *known["methods"], *known["reserved"], *drafts, *host_notes]
    served = {*lab.facts.methods, *_words(_hello(lab).get("features"))}
    for method in names:
        if method not in served:
            error = lab.worker.refused(method, {"sandboxId": 7}, "MethodNotFound")
            expect_no_effect(error, method or "a method without a name")


@check(
    "CAP-1",
    why="A host chooses by these values; one that it does not know is as good as none.",
    broken="declares a capability with a value of its own",
    fix="Use the values that the schema lists, and leave out what you are not sure of.",
)
def capabilities_have_known_values(lab: Lab) -> None:
    """Each declared capability has a value that the schema lists."""
    declared = _hello(lab).get("capabilities", {})
    faults = schema.faults(declared, {"$ref": "#/$defs/Capabilities"}, schema.protocol(), "capabilities")
    expect(not faults, "; ".join(faults[:3]))


@check(
    "EVO-4",
    why="What a reserved name will mean is not settled; a worker that uses it now will be misread later.",
    broken="advertises or serves a method whose name a later version will use",
    fix="Give the method a name of your own: `x-<provider>/<name>`.",
)
def reserved_names_are_not_used(lab: Lab) -> None:
    """Reserved names are neither advertised nor served."""
    reserved: list[str] = schema.protocol()["reserved"]
    hello = _hello(lab)
    used = {*_words(hello.get("supportedMethods")), *_words(hello.get("features"))} & set(reserved)
    expect(not used, f"reserved names are advertised: {', '.join(sorted(used))}")
    for method in reserved:
        lab.worker.refused(method, {}, "MethodNotFound")
