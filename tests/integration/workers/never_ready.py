"""Says hello, and never that it is ready."""

from tests.integration.workers.speaker import Speaker


def main() -> None:
    speaker = Speaker()
    del speaker.handlers["initialized"]
    speaker.serve()


if __name__ == "__main__":
    main()
