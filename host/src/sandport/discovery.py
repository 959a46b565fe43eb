"""Which providers are installed, read from package metadata and nothing else.

A distribution that brings a provider has an entry point in the group `sandport.providers`: the name is the
provider's, the value the module that a worker runs. Here only those text files are read. No provider is imported, no
entry point is loaded, and `find_spec` is not called on one: it would import the package around a submodule. The
standard library's reader of metadata is left aside too: importing it costs more than the whole scan.
"""

from __future__ import annotations

import errno
import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from .errors import ProviderUnknown, UsageError
from .nearest import nearest

GROUP = "sandport.providers"
OURS = {"fake": "sandport-provider-fake", "local": "sandport-provider-local"}
"""The packages of the providers that come from where this host does."""

PROVIDER_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
"""Also the name of a folder and of a table in sandport.toml, and at most `NAME_LIMIT` long."""
NAME_LIMIT = 64

_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_METADATA_FOLDER = re.compile(r"(?P<name>.+?)(?:-(?P<version>[^-]+)(?:-py\d.*)?)?\.(?:dist-info|egg-info)")
_HEADER = re.compile(r"^(Name|Version):[ \t]*(.+?)[ \t]*$", re.MULTILINE)
# Reading a folder may fail for these without anything being wrong: it is no folder, or it went away meanwhile.
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class Entry(Struct, frozen=True, kw_only=True):
    """One line of a group of entry points, and whose it is."""

    name: str
    value: str
    distribution: str
    version: str
    """The distribution's version; empty where its metadata has none."""
    dist_info: str
    """The folder that said so."""


class InstalledProvider(Struct, frozen=True, kw_only=True):
    """One provider that an installed distribution brings."""

    name: str
    """The provider's name, as users write it."""
    module: str
    """What a worker runs: `python -m MODULE`."""
    distribution: str
    version: str
    """The distribution's version; empty where its metadata has none."""
    dist_info: str
    """The folder that said so."""


class DiscoveryFault(Struct, frozen=True, kw_only=True):
    """Something of the group that cannot be used."""

    dist_info: str
    """The folder that it stands in."""
    message: str


class Discovery(Struct, frozen=True, kw_only=True):
    """Everything that a scan found."""

    providers: tuple[InstalledProvider, ...] = ()
    """By name; a name that two distributions claim is there twice."""
    faults: tuple[DiscoveryFault, ...] = ()

    def conflict(self, name: str) -> ProviderConflict | None:
        """The error to raise if more than one distribution claims this name."""
        claims = [provider for provider in self.providers if provider.name == name]
        return ProviderConflict(name, claims) if len(claims) > 1 else None

    def find(self, name: str, *, configured: Iterable[str] = ()) -> InstalledProvider:
        """The installed provider of this name; a conflict about another name does not stop it.

        Args:
            name: Of the provider.
            configured: Names that there are besides, for the message.

        Raises:
            ProviderConflict: Two distributions claim the name.
            ProviderUnknown: None does; the message lists those that are there.
        """
        if conflict := self.conflict(name):
            raise conflict
        for provider in self.providers:
            if provider.name == name:
                return provider
        known = tuple(sorted({provider.name for provider in self.providers} | set(configured)))
        raise ProviderUnknown(
            f"no provider {name!r} is installed or configured{nearest(name, known)}; "
            f"there are: {', '.join(known) or 'none'}" + how_to_get(name)
        )


class ProviderConflict(UsageError):
    """Two distributions claim one name; to pick either would be a guess."""

    def __init__(self, name: str, claims: Sequence[InstalledProvider]) -> None:
        who = " and ".join(f"{c.distribution} {c.version} ({c.dist_info})" for c in claims)
        super().__init__(
            f"two distributions install a provider called {name!r}: {who}\n"
            f"uninstall one of them, or say which program to start: [providers.{name}] command = [...] in sandport.toml"
        )


def how_to_get(name: str) -> str:
    """A line that says how to come by a provider that is not there; nothing where no provider can have the name."""
    if not valid_name(name):
        return ""
    # A package is named only where it is known to exist: whoever follows the words may install what anybody registered.
    get = f"pip install {OURS[name]}" if name in OURS else "its documentation says which package brings it"
    return (
        f"\n'sandport providers' shows what is installed; to get it: {get} (yours: pip install -e . in its folder), "
        f"or give its command in sandport.toml: [providers.{name}] command = [...]"
    )


def discover(paths: Sequence[str] | None = None) -> Discovery:
    """Scan for providers; what is broken and not ours is passed over, what is ours and broken becomes a fault."""
    providers: list[InstalledProvider] = []
    faults: list[DiscoveryFault] = []
    for entry in entries_of(GROUP, paths, faults):
        if not valid_name(entry.name):
            message = (
                f"{entry.name!r} is not a provider's name: lower-case letters, digits, '-' and '_', a letter first"
            )
        elif not _MODULE.fullmatch(entry.value):
            message = f"the provider {entry.name!r} should name a module to run, not {entry.value!r}"
        else:
            providers.append(
                InstalledProvider(
                    name=entry.name,
                    module=entry.value,
                    distribution=entry.distribution,
                    version=entry.version,
                    dist_info=entry.dist_info,
                )
            )
            continue
        faults.append(DiscoveryFault(dist_info=entry.dist_info, message=message))
    providers.sort(key=lambda provider: (provider.name, provider.dist_info))
    return Discovery(providers=tuple(providers), faults=tuple(faults))


def entries_of(group: str, paths: Sequence[str] | None, faults: list[DiscoveryFault]) -> Iterator[Entry]:
    """Each entry point of a group, as installed distributions declare them; none is loaded.

    Args:
        group: Its name.
        paths: Folders to look in, the first before the next; by default `import_folders`.
        faults: Gets what cannot be read.
    """
    seen: set[str] = set()
    for folder in import_folders() if paths is None else paths:
        here: set[str] = set()
        for dist_info in _metadata_folders(folder, faults):
            match = _METADATA_FOLDER.fullmatch(os.path.basename(dist_info))
            assert match is not None
            key = _normalised(match["name"])
            # As with imports, what comes first on the path hides a second copy behind it.
            if key in seen or key in here:
                continue
            here.add(key)
            if text := _group_text(dist_info, group, faults):
                headers = _headers(dist_info)
                for name, value in _lines_of(group, text):
                    yield Entry(
                        name=name,
                        value=value,
                        distribution=headers.get("Name", match["name"]),
                        version=headers.get("Version", match["version"] or ""),
                        dist_info=dist_info,
                    )
        seen |= here


def import_folders() -> tuple[str, ...]:
    """The folders on this interpreter's import path that a worker would have too.

    The current folder is none of them: a worker is started with `-P` from `/`, so that a cloned repository adds no
    provider by lying there.
    """
    try:
        here: str | None = os.path.realpath(os.curdir)
    except FileNotFoundError:
        here = None  # the current folder was deleted: no path leads to it
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    folders = (path for path in sys.path if os.path.isabs(path))
    return tuple(dict.fromkeys(p for p in folders if p in installed or os.path.realpath(p) != here))


def worker_command(entry: InstalledProvider) -> tuple[str, ...]:
    """The argument list that starts this provider's worker, with this interpreter.

    Raises:
        UsageError: The interpreter does not know its own path (it is embedded in a program).
    """
    if not sys.executable:
        raise UsageError(
            "this Python is embedded in a program and cannot be started again; "
            f"give the provider's command in sandport.toml: [providers.{entry.name}] command = [...]"
        )
    return (sys.executable, "-P", "-m", entry.module)


def valid_name(name: str) -> bool:
    """Whether a provider may be called this."""
    return len(name) <= NAME_LIMIT and PROVIDER_NAME.fullmatch(name) is not None


def _metadata_folders(folder: str, faults: list[DiscoveryFault]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith((".dist-info", ".egg-info")))
    except OSError as error:
        # A path entry that does not exist is common, and a zip file holds no provider that could be started.
        if error.errno not in _ABSENT:
            faults.append(DiscoveryFault(dist_info=folder, message=f"cannot be read: {error.strerror}"))
        return
    for name in names:
        if _METADATA_FOLDER.fullmatch(name):
            yield os.path.join(folder, name)


def _group_text(dist_info: str, group: str, faults: list[DiscoveryFault]) -> str:
    """The entry points of a distribution that names the group, else nothing."""
    try:
        with open(os.path.join(dist_info, "entry_points.txt"), "rb") as file:
            content = file.read()
    except OSError as error:
        if error.errno not in _ABSENT:
            faults.append(DiscoveryFault(dist_info=dist_info, message=f"cannot be read: {error.strerror}"))
        return ""
    if group.encode() not in content:
        return ""
    try:
        return content.decode()
    except UnicodeDecodeError:
        faults.append(DiscoveryFault(dist_info=dist_info, message="entry_points.txt is not UTF-8"))
        return ""


def _lines_of(group: str, text: str) -> Iterator[tuple[str, str]]:
    """The name and value of each line of a group, in an INI file."""
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _headers(dist_info: str) -> dict[str, str]:
    """Name and version as the distribution itself writes them; the folder's name has them with other punctuation."""
    for file in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(dist_info, file), encoding="utf-8", errors="replace") as opened:
                head = opened.read(64 * 1024).partition("\n\n")[0]
        except OSError:
            # Either file may be missing; the folder's name then says enough.
            continue
        found = dict(_HEADER.findall(head))
        if found:
            return found
    return {}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
