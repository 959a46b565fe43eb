"""Processes that the rights of files bind, whoever runs the tests: root without what makes it read everything."""

import ctypes

_PR_CAPBSET_DROP = 24
_OVERRIDE, _READ_SEARCH = 1, 2


def bound_by_rights() -> None:
    """Before the program of a new process starts: it and all below it may read what their user may.

    An ordinary user is bound already, and may drop nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_OVERRIDE, _READ_SEARCH):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
