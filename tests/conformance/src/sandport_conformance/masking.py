"""Takes secrets out of everything that leaves the kit, in each form in which they may stand there."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from .outcomes import Misuse

MASK = "[masked]"
_SHORTEST = 6
"""A shorter value would be found in innocent text everywhere."""


class Masker:
    """Replaces secrets in text and bytes.

    Args:
        secrets: The values to hide. Each is found as it is, as JSON, hexadecimal, percent-encoded, and as base64 in
            both alphabets, also in the middle of a longer base64 text.

    Raises:
        Misuse: A secret is too short to be masked without masking everything.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._texts: list[str] = []
        self._octets: list[bytes] = []
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Hide one more value from now on."""
        if len(secret) < _SHORTEST:
            raise Misuse(f"a secret of {len(secret)} characters cannot be masked; it needs at least {_SHORTEST}")
        # The longest first, so that no form is cut by a shorter one inside it.
        self._texts = sorted({*self._texts, *forms_of(secret)}, key=len, reverse=True)
        self._octets = [form.encode("utf-8", "surrogatepass") for form in self._texts]

    @property
    def longest(self) -> int:
        """The bytes of the longest form; who cuts a text off keeps so many more until it is masked."""
        return max(map(len, self._octets), default=0)

    def text(self, value: str) -> str:
        """The text without secrets."""
        for form in self._texts:
            value = value.replace(form, MASK)
        return value

    def octets(self, value: bytes) -> bytes:
        """The bytes without secrets."""
        for form in self._octets:
            value = value.replace(form, MASK.encode())
        return value


def leaked_form(data: bytes, secret: str) -> str | None:
    """The form in which a secret stands in data; None where it does not."""
    return next((form for form in forms_of(secret) if form.encode("utf-8", "surrogatepass") in data), None)


def forms_of(secret: str) -> set[str]:
    """Every way in which a secret may be written."""
    raw = secret.encode("utf-8", "surrogateescape")
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), raw.hex(), raw.hex().upper()}
    forms |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        forms.add(encode(raw).decode().rstrip("="))
        for shift in (0, 1, 2):
            # What stands before and after it in a longer text changes only the characters at the ends.
            text = encode(b"\0" * shift + raw + b"\0" * (-(shift + len(raw)) % 3)).decode()
            begin = -(-shift * 8 // 6)
            end = (shift + len(raw)) * 8 // 6
            forms.add(text[begin:end])
    return {form for form in forms if form}
