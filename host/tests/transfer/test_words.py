"""What tar says, and what a script's end means."""

from __future__ import annotations

import pytest

from sandport.errors import ProtocolViolation, QuotaExceeded, SandportError
from sandport.outcome import Captured, Outcome
from sandport.sync.errors import (
    PathOutsideRootError,
    SourceMissingError,
    SpaceExhaustedError,
    SyncError,
    TargetBusyError,
)
from sandport.sync.ledger import Ledger
from sandport.transfer.tar_words import notices_in
from sandport.transfer.told import failure_of, of_worker, told_by
from sandport_protocol.errors import CommandNotFound, Detail, PathNotFound, PathRefused, Unavailable

SCRATCH = b".sandport-0123456789abcdef"


@pytest.mark.parametrize(
    ("line", "kind", "path"),
    [
        (b"tar: ./a b: file changed as we read it", "changed", b"a b"),
        (b"tar: ./a: File removed before we read it", "changed", b"a"),
        (b"tar: ./d/a: File shrank by 17 bytes; padding with zeros", "changed", b"d/a"),
        (b"tar: ./a: Warning: Cannot open: Permission denied", "skipped", b"a"),
        (b"tar: ./d/: Cannot open: Permission denied", "skipped", b"d"),
        (b"tar: ./x\\ny\\\\z\\377: Cannot open: Permission denied", "skipped", b"x\ny\\z\xff"),
        (b"tar: ./s: socket ignored", "skipped", b"s"),
        (b"tar: can't open './a': Permission denied", "skipped", b"a"),
        (b"tar: .: file changed as we read it", "changed", b""),
    ],
)
def test_what_tar_left_out_or_met_is_a_notice(line: bytes, kind: str, path: bytes) -> None:
    ledger = Ledger()
    assert notices_in(line + b"\ntar: Exiting with failure status due to previous errors\n", ledger)
    assert [notice.path for notice in getattr(ledger.result(), kind)] == [path]


@pytest.mark.parametrize(
    "said", [b"", b"tar: ./a: Cannot open: Input/output error", b"tar: ./a: socket ignored\nKilled"]
)
def test_what_is_not_understood_is_no_excuse(said: bytes) -> None:
    assert not notices_in(said, Ledger())


def ended(stderr: bytes, code: int = 90) -> Outcome:
    """How a script ended."""
    return Outcome(ended="exited", exit_code=code, stderr=Captured(data=stderr))


@pytest.mark.parametrize(
    ("said", "kind", "path"),
    [
        (b"missing nothing", SourceMissingError, b"there"),
        (b"outside a\nb", PathOutsideRootError, b"a\nb"),
        (b"busy a b", TargetBusyError, b"a b"),
        (b"tool tar", SyncError, b"there"),
        (b"tar 2", SyncError, b"there"),
    ],
)
def test_a_script_names_its_failure(said: bytes, kind: type[SyncError], path: bytes) -> None:
    outcome = ended(b"words\n\nsandport " + SCRATCH + b" " + said + b"\n")
    told = told_by(outcome, SCRATCH)
    assert told is not None
    error = failure_of(outcome, told, b"there")
    assert (type(error), error.path) == (kind, path)


def test_another_scripts_line_is_not_believed() -> None:
    told = told_by(ended(b"\nsandport .sandport-ffffffffffffffff busy x\n"), SCRATCH)
    assert told is not None
    assert told.kind == "ended"
    assert told_by(ended(b"anything", code=0), SCRATCH) is None


@pytest.mark.parametrize("words", [b"tar: t/a: Cannot write: No space left on device", b"mkdir: Disk quota exceeded"])
def test_a_full_disk_is_told_from_other_failures(words: bytes) -> None:
    outcome = ended(words + b"\n\nsandport " + SCRATCH + b" tar 2\n")
    told = told_by(outcome, SCRATCH)
    assert told is not None
    assert isinstance(failure_of(outcome, told, b"there"), SpaceExhaustedError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QuotaExceeded("full", detail=Detail(reason="noSpace")), SpaceExhaustedError),
        (PathRefused("busy", detail=Detail(reason="kind", path="a")), TargetBusyError),
        (PathRefused("shut", detail=Detail(reason="permission")), SyncError),
        (PathNotFound("gone"), SourceMissingError),
        (CommandNotFound("no tar", detail=Detail(path="tar")), SyncError),
        (QuotaExceeded("too many"), QuotaExceeded),
        (ProtocolViolation("cut"), ProtocolViolation),
        (Unavailable("broke"), Unavailable),
    ],
)
def test_a_worker_is_told_as_the_sandboxs_own_tools_are(error: SandportError, kind: type[SandportError]) -> None:
    assert type(of_worker(error, b"there")) is kind  # type: ignore[arg-type]
