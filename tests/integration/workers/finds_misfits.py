"""Finds that what its vendor runs in the sandboxes does not fit it, and says so when it is asked."""

from tests.integration.workers.speaker import Speaker

FOUND = {"name": "agent", "ok": False, "detail": "agent 1 is too old, needs 2..3"}


def main() -> None:
    speaker = Speaker()
    speaker.handlers["probe"] = lambda message: {"checks": [FOUND]}
    speaker.serve()


if __name__ == "__main__":
    main()
