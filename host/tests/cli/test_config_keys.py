"""The keys of a provider's config, and what `-c` says in its words."""

from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.cli.config_keys import fitted, keys_of
from sandport.errors import ConfigurationInvalid


class Config(msgspec.Struct, forbid_unknown_fields=True):
    isolation: Literal["require", "none"] = "none"
    network: Annotated[bool, msgspec.Meta(description="Whether\n  there is one.")] = False
    memory_bytes: Annotated[int, msgspec.Meta(ge=1, description="All together.")] | None = None
    image: str | None = None
    pids: int = 7


SCHEMA = msgspec.json.encode(msgspec.json.schema(Config))


def test_each_key_is_told_with_its_default_and_its_meaning() -> None:
    keys = keys_of(SCHEMA)
    assert keys is not None
    told = [(key.name, key.type, key.default, key.description) for key in keys.values()]
    assert told == [
        ("isolation", "none|require", '"none"', ""),
        ("network", "true or false", "false", "Whether there is one."),
        ("memory_bytes", "whole number", "", "All together."),
        ("image", "text", "", ""),
        ("pids", "whole number", "7", ""),
    ]


@pytest.mark.parametrize(
    ("text", "size"),
    [("64M", 64_000_000), ("64Mi", 64 << 20), ("1.5GiB", 3 << 29), ("512kB", 512_000), ("2 T", 2 * 10**12)],
)
def test_a_size_may_be_written_as_people_do(text: str, size: int) -> None:
    assert fitted({"memory_bytes": text, "image": text}, SCHEMA) == {"memory_bytes": size, "image": text}


@pytest.mark.parametrize(
    ("given_", "complaint"),
    [
        ({"memory": "64M"}, "-c memory: unknown key; did you mean 'memory_bytes'?"),
        ({"netwrok": True}, "-c netwrok: unknown key; did you mean 'network'?"),
        ({"zzz": 1}, "-c zzz: unknown key; there is: isolation, network, memory_bytes, image, pids"),
        ({"network": "yes"}, "-c network=yes: expected true or false"),
        ({"memory_bytes": "lots"}, "-c memory_bytes=lots: expected a number of bytes, as in 67108864, 64M or 64Mi"),
    ],
)
def test_what_a_key_cannot_have_is_named_with_what_it_can(given_: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        fitted(given_, SCHEMA)
    assert str(caught.value) == complaint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["#/a", "#/properties", "object", "boolean", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["properties", "$ref", "anyOf", "enum", "type", "default", "description", "a"]),
            inner,
            max_size=4,
        )
    ),
)


@given(JSON, JSON)
def test_no_schema_of_a_provider_is_a_failure_of_ours(properties: object, whole: object) -> None:
    for schema in ({"properties": properties, "additionalProperties": False}, {"properties": {"a": whole}}, whole):
        keys_of(msgspec.json.encode(schema))
    assert keys_of(b"{") is None
    assert fitted({"a": "1M"}, b"true") == {"a": "1M"}
