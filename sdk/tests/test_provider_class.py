"""What the class statement of a provider accepts, and what it says where it does not."""

from typing import Any

import pytest

from sandport_protocol.methods import METHODS
from sandport_sdk.dispatch import Dispatcher
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Call, Capabilities, Config, Provider, extension, types

MANDATORY = ("probe", "acquire_lease", "attach_lease", "list_leases", "destroy_lease", "execute")
PROCESS = ("start_process", "write_process", "signal_process", "wait_process")
SYNC = ("sync_in", "sync_out")


async def handler(self: Provider, params: Any, call: Call) -> Any:
    return None


def define(*, without: Any = (), base: Any = Provider, **members: Any) -> type[Provider]:
    body = {"name": "made", "version": "1", **dict.fromkeys(MANDATORY, handler), **members}
    return type("Made", (base,), {name: value for name, value in body.items() if name not in without})


def test_what_is_defined_is_advertised() -> None:
    made = define(**dict.fromkeys(PROCESS + SYNC, handler))
    served = {name for name, method in METHODS.items() if method.group != "session"}
    assert set(made.handlers) == served
    optional = {"startProcess", "writeProcess", "signalProcess", "waitProcess", "syncIn", "syncOut"}
    assert set(define().handlers) == served - optional
    assert set(define(**dict.fromkeys(SYNC, handler)).handlers) == served - optional | {"syncIn", "syncOut"}


def test_a_missing_mandatory_method_is_named() -> None:
    with pytest.raises(TypeError, match="these methods are missing: attach_lease, execute"):
        define(without=("execute", "attach_lease"))


def test_a_group_in_part_is_refused_by_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"'process' is served as a whole or not at all; missing: .*wait_process"):
        define(start_process=handler)
    with pytest.raises(TypeError, match=r"'sync' is served as a whole or not at all; missing: sync_out"):
        define(sync_in=handler)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("start_proces", "start_process"),
        ("acquireLease", "acquire_lease"),
        ("list_lease", "list_leases"),
        ("prepares", "prepare"),
        ("validate_configs", "validate_config"),
    ],
)
def test_a_method_that_looks_misspelt_is_refused(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"'{wrong}' looks like '{right}' misspelt"):
        define(**{wrong: handler})


def test_helpers_of_other_names_are_nobodys_business() -> None:
    made = define(_start_proces=handler, connect=handler, region="eu", start_proces="no method")
    assert "startProcess" not in made.handlers


def test_a_draft_is_refused_so_that_nobody_waits_for_its_calls() -> None:
    with pytest.raises(TypeError, match="renewLease is a draft"):
        define(renew_lease=handler)


def test_a_base_may_be_abstract() -> None:
    class Half(Provider, abstract=True):
        execute = handler

    assert Half.abstract
    whole = define(without=("execute",), base=Half)
    assert not whole.abstract
    assert "execute" in whole.handlers
    with pytest.raises(TypeError, match="misspelt"):

        class Wrong(Provider, abstract=True):
            excute = handler


async def _serve_abstract() -> None:
    class Half(Provider, abstract=True):
        """Nothing yet."""

    Dispatcher(Half, lambda data: None)


@pytest.mark.anyio
async def test_an_abstract_class_cannot_be_served() -> None:
    with pytest.raises(TypeError, match="is abstract"):
        await _serve_abstract()


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ({"name": ""}, "'name' must be a text"),
        ({"version": 1}, "'version' must be a text"),
        ({"Config": dict}, "'Config' must be a class derived from"),
        ({"capabilities": {"kill": "tree"}}, "'capabilities' must be Capabilities"),
        (
            {"capabilities": Capabilities(kill="all")},  # type: ignore[arg-type]
            r"'capabilities': kill='all' must be one of 'tree', 'group', 'none'$",
        ),
        (
            {"capabilities": Capabilities(egress="all", pty=1)},  # type: ignore[arg-type]
            r"pty=1 must be of type bool; .*egress='all' must be a tuple with some of 'all', 'none', 'listed'",
        ),
        ({"wants_env": "TOKEN"}, "'wants_env' must be a tuple"),
        ({"execute": lambda self, params: None}, "'execute' must take .self, params, call."),
        ({"prepare": lambda self, more: None}, "'prepare' must take .self."),
    ],
)
def test_a_wrong_declaration_is_refused(member: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        define(**member)


def test_all_faults_of_a_class_are_told_at_once() -> None:
    with pytest.raises(TypeError) as caught:
        define(without=("probe",), name="", acquire_leases=handler)
    for text in ("probe", "'name'", "'acquire_leases'"):
        assert text in str(caught.value)


@pytest.mark.parametrize("name", ["echo", "x-/echo", "x-made", "x-made/", "y-made/echo", ""])
def test_an_extension_has_the_name_of_one(name: str) -> None:
    with pytest.raises(ValueError, match="x-<provider>/<name>"):
        extension(name)


@pytest.mark.anyio
async def test_an_extension_is_a_feature_and_is_inherited() -> None:
    class Base(Provider, abstract=True):
        @extension("x-made/echo")
        async def echo(self, params: Any, call: Call) -> Any:
            return [call.method, params]

    made = define(base=Base, capabilities=Capabilities(kill="group"))
    async with HostInMemory(made) as host:
        assert host.hello.features == ("x-made/echo",)
        assert "x-made/echo" not in host.hello.supported_methods
        assert host.hello.capabilities.kill == "group"
        assert await host.call("x-made/echo", {"a": 1}) == ["x-made/echo", {"a": 1}]


class Nested(Config, frozen=True, kw_only=True):
    mode: str = "none"


class MadeConfig(Config, frozen=True, kw_only=True):
    image: str
    network: Nested = Nested()
    mounts: tuple[Nested, ...] = ()
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("config", "issues"),
    [
        ({"image": "x"}, []),
        ({}, [("config.image", "this key is needed")]),
        (
            {"imag": "x"},
            [("config.imag", "unknown key; did you mean 'image'?"), ("config.image", "this key is needed")],
        ),
        ({"image": "x", "zzz": 1}, [("config.zzz", "unknown key; known are image, network, mounts, size")]),
        ({"image": 1}, [("config.image", "Expected `str`, got `int`")]),
        ({"image": "x", "network": {"mood": "all"}}, [("config.network.mood", "unknown key; did you mean 'mode'?")]),
        (
            {"image": "x", "mounts": [{}, {"mod": 1}]},
            [("config.mounts[1].mod", "unknown key; did you mean 'mode'?")],
        ),
        ({"image": "x", "network": []}, [("config.network", "Expected `object`, got `array`")]),
        ({"image": "x", "size": -1}, [("config", "size must not be negative")]),
        ([], [("config", "Expected `object`, got `array`")]),
    ],
)
async def test_a_fault_of_the_config_names_its_key(config: Any, issues: list[tuple[str, str]]) -> None:
    async with HostInMemory(define(Config=MadeConfig)) as host:
        result: types.ValidateConfigResult = await host.call("validateConfig", {"config": config})
        assert [(issue.field, issue.message) for issue in result.issues] == issues


@pytest.mark.anyio
async def test_a_good_config_comes_back_with_its_defaults() -> None:
    async with HostInMemory(define(Config=MadeConfig)) as host:
        result: types.ValidateConfigResult = await host.call("validateConfig", {"config": {"image": "x"}})
        assert bytes(result.config) == b'{"image":"x","network":{"mode":"none"},"mounts":[],"size":1}'
        assert b'"additionalProperties":false' in bytes(host.hello.provider.config_schema)
