"""Judges a worker command, in any language, over real pipes: its process as well as its messages.

```python
from sandport_conformance import judge

report = judge(["python", "worker.py"], level="L3")
print(report.summary)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outcomes import Outcome as Outcome
    from .outcomes import Severity as Severity
    from .report import Report as Report
    from .report import Result as Result
    from .run import judge as judge
    from .settings import Settings as Settings
    from .settings import load as load_settings

__version__ = "0.1.0"

_PLACES = {
    "Outcome": ("outcomes", "Outcome"),
    "Report": ("report", "Report"),
    "Result": ("report", "Result"),
    "Settings": ("settings", "Settings"),
    "Severity": ("outcomes", "Severity"),
    "judge": ("run", "judge"),
    "load_settings": ("settings", "load"),
}
__all__ = ["judge", "load_settings", "Settings", "Report", "Result", "Outcome", "Severity"]


def __getattr__(name: str) -> Any:
    # Looked up when asked for: the command's help and every mutant start without the engine.
    if name in _PLACES:
        import importlib

        module, attribute = _PLACES[name]
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    raise AttributeError(name)
