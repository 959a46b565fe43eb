"""Says nothing at all and reads nothing; `--stubborn` ignores SIGTERM too."""

import signal
import threading

from tests.integration.workers.speaker import Speaker


def main() -> None:
    speaker = Speaker()
    if "--stubborn" in speaker.arguments:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    speaker.record("started")
    threading.Event().wait()


if __name__ == "__main__":
    main()
