"""A secret leaves the kit in no form."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_conformance.masking import MASK, Masker
from sandport_conformance.outcomes import Misuse
from sandport_conformance.transcript import Transcript

SECRET = 'pä/ss w0rd?"x+\\'


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
    ],
)
def test_each_way_of_writing_a_secret_is_masked(form: str) -> None:
    masker = Masker([SECRET])
    assert masker.text(f"before {form} after") == f"before {MASK} after"
    assert masker.octets(f"before {form} after".encode()) == f"before {MASK} after".encode()


secrets = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=6, max_size=40)


@given(secret=secrets, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_a_secret_inside_a_longer_base64_text_is_masked(secret: str, before: bytes, after: bytes) -> None:
    masker = Masker([secret])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        hidden = masker.text(encode(before + secret.encode() + after).decode())
        assert MASK in hidden
        # All that may be left is what the neighbours of the secret share a character with.
        left = hidden.replace(MASK, "")
        assert len(left) <= len(encode(before)) + len(encode(after)) + 4


@given(text=st.text())
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert Masker(["\U0001f600" * 6]).text(text) == text


def test_a_secret_that_would_mask_everything_is_refused() -> None:
    with pytest.raises(Misuse, match="a secret of 3 characters"):
        Masker(["abc"])


def test_a_secret_at_the_cut_of_a_transcript_is_not_left_in_half() -> None:
    for start in range(2030, 2050):
        transcript = Transcript(Masker([SECRET]))
        transcript.add("received", b"x" * start + SECRET.encode() + b"y" * 100)
        (entry,) = transcript.entries()
        assert not any(SECRET[:size] in entry.text for size in range(2, len(SECRET)))
        assert entry.size_bytes == start + len(SECRET.encode()) + 100


def test_a_long_transcript_keeps_its_begin_and_its_end() -> None:
    transcript = Transcript(Masker())
    for number in range(2_000):
        transcript.add("sent", b"%d" % number)
    texts = [entry.text for entry in transcript.entries()]
    assert texts[:3] == ["0", "1", "2"]
    assert texts[-1] == "1999"
    assert "1500 entries are left out here" in texts
