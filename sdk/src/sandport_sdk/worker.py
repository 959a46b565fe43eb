"""Run a provider: the process around a `Dispatcher`.

A provider's `__main__.py` is two lines:

```python
from sandport_sdk.worker import serve

serve("my_provider.provider:MyProvider")
```

Exit codes: 0 after a shutdown, an end of input, SIGTERM or the end of the host; 1 where the provider could not start;
2 where the host broke the protocol so that reading could not go on.
"""

from __future__ import annotations

import os

from .signals import hold_interrupts
from .stdio import StdioUnusable, WireDescriptors, take_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .v1.provider import Provider

_THREAD_END_S = 0.05
"""For a thread that is just ending, such as an idle one of a pool."""


def serve(target: str) -> None:
    """Serve the host on stdin and stdout until it is done, then return (or end the process, see below).

    The descriptors are taken first; only then is the author's module imported. Where threads that nobody ends are
    still running after the last answer, the process ends here and now, with exit code 0.

    Args:
        target: `package.module:Class`, the class derived from `sandport_sdk.v1.Provider`.

    Raises:
        SystemExit: With code 1 if the provider could not start (stderr says why), 2 if the host broke the protocol.
    """
    parent = os.getppid()
    # What a worker makes, and its keepers, must be open to their own user, whatever the host's umask takes from him.
    os.umask(os.umask(0o077) & 0o077)
    try:
        wire = take_wire()
        hold_interrupts()
        code = _run(_load(target), wire, parent)
    except StdioUnusable as error:
        raise SystemExit(f"sandport worker: {error}") from None
    _leave(code)


def _load(target: str) -> type[Provider]:
    """The provider's class.

    Raises:
        SystemExit: It cannot be had; the traceback is in the log.
    """
    import importlib

    from . import logs

    logs.configure()
    module_name, _, class_name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except BaseException as error:  # SystemExit too: it must not look like a success
        import logging

        # The sentence is for everybody; where it comes from, for who looks into the log.
        logging.getLogger("sandport_sdk").info("%s cannot be loaded", target, exc_info=True)
        said = str(error)
        if not said.startswith(f"{module_name}.{class_name}: "):  # the class statement names it already
            said = f"{target} cannot be loaded: {type(error).__name__}: {error}"
        raise SystemExit(f"sandport worker: {said}") from None
    from .v1.provider import Provider

    if not (isinstance(found, type) and issubclass(found, Provider)):
        raise SystemExit(f"sandport worker: {target} is no class derived from sandport_sdk.v1.Provider")
    if found.abstract:
        raise SystemExit(f"sandport worker: {target} is an abstract class; serve one that is derived from it")
    return found


def _run(provider_class: type[Provider], wire: WireDescriptors, parent: int) -> int:
    import asyncio
    import logging

    from .pipes import serve_pipes

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    files = os.fdopen(wire.read, "rb", 0), os.fdopen(wire.write, "wb", 0)
    serving = loop.create_task(serve_pipes(provider_class, files, parent))
    try:
        while True:
            try:
                return loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt):
                if serving.done():
                    raise
                # Out of some task or callback of the provider's. The loop is as it was: other calls go on.
                logging.getLogger("sandport_sdk").exception("a provider does not end its worker: this is ignored")
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _leave(code: int) -> None:
    """Return to the author's main module, or end the process where a thread would keep it alive."""
    import gc
    import sys
    import threading

    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(_THREAD_END_S)
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    # The host has all it asked for: nothing is gained by looking for cycles on the way out.
    gc.freeze()
    if code:
        raise SystemExit(code)
