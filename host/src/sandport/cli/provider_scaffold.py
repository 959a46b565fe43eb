"""A new provider's folder: its names, its files, and what to do with them next."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from msgspec import Struct

from sandport.discovery import NAME_LIMIT, PROVIDER_NAME, discover
from sandport.errors import UsageError

from .messages import unicode_text

_TEMPLATE = Path(__file__).with_name("provider_template.json")
_MARK = re.compile(r"@(name|module|distribution|class|title)@")


class Scaffold(Struct, frozen=True, kw_only=True, rename="camel"):
    """A provider that was made, as `--json` shows it."""

    name: str
    """What users write, and the name of the entry point."""
    folder: str
    distribution: str
    module: str
    files: tuple[str, ...]
    """Paths below the folder."""
    next: tuple[str, ...]
    """Commands to run, the first of them where this one ran."""


def names_of(name: str) -> dict[str, str]:
    """Everything that is named after a provider.

    Raises:
        UsageError: It is no name for one, or one that is taken.
    """
    if not PROVIDER_NAME.fullmatch(name) or len(name) > NAME_LIMIT:
        raise UsageError(
            f"{name!r} is no name for a provider: it is lower-case letters and digits, begins with a letter, may be "
            f"joined by - or _, and has at most {NAME_LIMIT} of them; for instance: acme, acme-gpu"
        )
    parts = re.split("[-_]", name)
    distribution = f"sandport-provider-{'-'.join(parts)}"
    for taken in discover().providers:
        if taken.name == name:
            raise UsageError(
                f"a provider called {name!r} is installed already, by {taken.distribution}; the host would not know "
                "which one is meant"
            )
        if re.sub(r"[-_.]+", "-", taken.distribution).lower() == distribution:
            raise UsageError(
                f"the provider {taken.name!r} is installed by {distribution}, which {name!r} would be called too: "
                "installing it would put it in the place of that one"
            )
    return {
        "name": name,
        "module": "_".join(parts) + "_provider",
        "distribution": distribution,
        "class": "".join(map(str.capitalize, parts)),
        "title": " ".join(map(str.capitalize, parts)),
    }


def make(name: str, folder: str | None) -> Scaffold:
    """Write a new provider, whole or not at all.

    Args:
        name: The provider's name.
        folder: Where; by default named after the distribution, in the current folder.

    Raises:
        UsageError: The name will not do, the folder is there already, or it cannot be written.
    """
    names = names_of(name)
    target = Path(folder or names["distribution"])
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already; nothing was written. --folder names another place")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no folder that is there; nothing was written")
    files = {_filled(path, names): _filled(text, names) for path, text in _template().items()}
    try:
        _write(target, files)
    except OSError as error:
        raise UsageError(f"{error.filename or target} cannot be written: {error.strerror}") from error
    worker = f"python -P -m {names['module']}"
    return Scaffold(
        name=name,
        folder=unicode_text(str(target.absolute())),
        distribution=names["distribution"],
        module=names["module"],
        files=tuple(files),
        next=(
            f"cd {shlex.quote(unicode_text(str(target)))}",
            "pip install -e '.[test]'",
            f"sandport run -p {name} -- echo hello",
            f"sandport-conformance run --level L4 -- {worker}",
            "pytest",
        ),
    )


def _template() -> dict[str, str]:
    files: dict[str, str] = json.loads(_TEMPLATE.read_text(encoding="utf-8"))["files"]
    return files


def _filled(text: str, names: dict[str, str]) -> str:
    return _MARK.sub(lambda mark: names[mark[1]], text)


def _write(target: Path, files: dict[str, str]) -> None:
    """Beside its place first: who is interrupted leaves no half of it there."""
    new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for path, text in files.items():
            place = new / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        new.chmod(0o777 & ~_umask())
        new.rename(target)
    except BaseException:  # Ctrl-C too: half a package must not be left
        shutil.rmtree(new, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
