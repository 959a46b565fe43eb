"""The user's own sandport.toml, changed: one writer at a time, whole or not at all, comments kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sandport.configuration import FILE_NAME, VERSION, load, user_file
from sandport.errors import ConfigurationInvalid

from .toml_text import NotEditable

_NEW_MODE = 0o600


def own_file(config: str | None) -> Path:
    """The file that is trusted, whether it is there or not: `--config`, `$SANDPORT_CONFIG`, or the user's own.

    Raises:
        ConfigurationInvalid: There is no home directory to have one in.
    """
    named = config or os.environ.get("SANDPORT_CONFIG")
    path = Path(named) if named else user_file(os.environ)
    if path is None:
        raise ConfigurationInvalid(f"there is no home directory to have a {FILE_NAME} in; name one with --config")
    return path.absolute()


def change(path: Path, edit: Callable[[str], str], by_hand: str) -> None:
    """Change a file, or make it.

    Args:
        path: Its name; a link stays one.
        edit: The old text to the new one; may raise `NotEditable`.
        by_hand: What to do where it does.

    Raises:
        ConfigurationInvalid: It cannot be done; the file is as it was.
    """
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(real.parent):
            _replace(real, _edited(real, edit))
    except NotEditable as error:
        raise ConfigurationInvalid(f"{path}: is written so that it cannot be changed safely\n{by_hand}") from error
    except OSError as error:
        raise ConfigurationInvalid(f"{error.filename or path}: {error.strerror}; {path} is as it was") from error
    except UnicodeError as error:
        raise ConfigurationInvalid(f"{path}: is not UTF-8; it is as it was") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two that add at the same moment must not lose each other's; the lock goes with its holder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _edited(path: Path, edit: Callable[[str], str]) -> str:
    try:
        # Bytes, so that line ends stay what they are.
        text = path.read_bytes().decode()
    except FileNotFoundError:
        text = f"version = {VERSION}\n"
    return edit(text)


def _replace(path: Path, text: str) -> None:
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        mode = _NEW_MODE
    pending = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _NEW_MODE)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        # Whatever reads the file next must be able to.
        load(pending)
        pending.replace(path)
    except BaseException:  # Ctrl-C too: the file stays what it was, and nothing lies beside it
        pending.unlink()
        raise
