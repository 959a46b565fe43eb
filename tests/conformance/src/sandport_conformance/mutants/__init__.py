"""Broken workers: each breaks one thing of a healthy one, and at least one check must catch it.

`python -m sandport_conformance.mutants MODULE:CLASS` serves one; `MODULE` is a module of this package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from .healthy import Healthy

    _Worker = TypeVar("_Worker", bound=type[Healthy])


class Mutant(NamedTuple):
    """A broken worker.

    Attributes:
        name: `module:Class`.
        sentence: What it does wrong.
        killed_by: Checks, or requirements, that must fail on it.
        made_from: The sound worker that it breaks: `Healthy`, or one derived from it that declares something else.
    """

    name: str
    sentence: str
    killed_by: tuple[str, ...]
    made_from: str

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it."""
        return command_of(self.name)


MUTANTS: dict[str, Mutant] = {}
"""Every mutant that was declared, by its name."""

HEALTHY = "healthy:Healthy"
"""The worker that all of them are made from."""


def mutant(*killed_by: str, made_from: type[Healthy] | None = None) -> Callable[[_Worker], _Worker]:
    """Declare the class below as a mutant; the first line of its docstring says what it does wrong.

    Args:
        *killed_by: The checks, or requirements, each of which must fail on it.
        made_from: The sound worker that it breaks, where that is another than `Healthy`: one that declares what the
            checks are about. It must pass them all.

    Raises:
        LookupError: It says nothing, or names no check.
    """

    def declare(worker: _Worker) -> _Worker:
        name = _name_of(worker)
        sentence = (worker.__dict__.get("__doc__") or "").strip().partition("\n")[0]
        if not sentence or not killed_by:
            raise LookupError(f"the mutant {name} needs a docstring and the check that kills it")
        sound = HEALTHY if made_from is None else _name_of(made_from)
        MUTANTS[name] = Mutant(name=name, sentence=sentence, killed_by=killed_by, made_from=sound)
        return worker

    return declare


def _name_of(worker: type) -> str:
    return f"{worker.__module__.rpartition('.')[2]}:{worker.__name__}"


def every_mutant() -> tuple[Mutant, ...]:
    """All mutants, in the order of their modules."""
    import importlib  # here, for what a broken worker does not import it need not wait for
    import pkgutil

    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return tuple(sorted(MUTANTS.values(), key=lambda mutant: mutant.name.partition(":")[0]))


def command_of(name: str) -> tuple[str, ...]:
    """What starts a worker of this package: an interpreter without site-packages, for the sake of its start."""
    return (sys.executable, "-S", "-E", str(Path(__file__).with_name("__main__.py")), name)
