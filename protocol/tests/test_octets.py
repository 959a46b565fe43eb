"""Any bytes cross the wire: as text where they are text, as base64 where they are not."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_protocol import codec
from sandport_protocol.octets import B64, Octets, pack, unpack


@given(st.binary(max_size=50))
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    packed = pack(data)
    assert unpack(codec.read_as(Octets, codec.encode(packed))) == data  # type: ignore[arg-type]


@given(st.binary(max_size=50))
def test_only_what_is_no_text_takes_the_second_form(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        assert isinstance(pack(data), B64)
    else:
        assert pack(data) == data.decode()


@given(st.binary(max_size=50).map(lambda data: data.replace(b"\0", b"")))
def test_a_file_name_as_the_system_gives_it_becomes_its_bytes(name: bytes) -> None:
    assert unpack(pack(os.fsdecode(name))) == name


@given(st.binary(max_size=50))
def test_text_in_the_second_form_is_read_too(data: bytes) -> None:
    assert unpack(B64(data)) == data


def test_half_a_surrogate_pair_that_stands_for_no_byte_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack("\ud800")


def test_the_second_form_on_the_wire() -> None:
    assert json.loads(codec.encode(pack(b"\xff"))) == {"b64": "/w=="}
