"""What the rows of the store's benchmarks hold."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Final

OWNER: Final = "in" + "a" * 26
CONFIG: Final = b'{"image":"python:3.12","network":false,"isolation":"prefer"}'
HANDLE: Final = "handle-of-a-sandbox"
RESULT: Final = b'{"handle":"handle-of-a-sandbox","root":"/work","egress":null,"expiresAtMs":5}' + b" " * 120


def id_of(kind: str, number: int) -> str:
    """An id as the product's: scattered, and always the same."""
    return kind + b32encode(hashlib.sha256(f"{kind}{number}".encode()).digest()).decode().lower()[:26]
