"""What goes wrong beneath us, as the host is told: its kind, and whether anything can have happened."""

from __future__ import annotations

import errno

from sandport_sdk.v1 import errors

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
"""What the machine has too little of; later there may be more."""


def not_supported(field: str, why: str) -> errors.WireError:
    """What we cannot do, before anything was done."""
    return errors.NotSupported(why, detail=errors.Detail(field=field), dispatched="no")


def not_begun(error: OSError) -> errors.WireError:
    """Why a command could not begin."""
    if error.errno in _EXHAUSTED:
        return errors.QuotaExceeded(f"this machine has no room for a command now: {error}", dispatched="no")
    return errors.Unavailable(f"a command cannot begin: {error}", dispatched="no")
