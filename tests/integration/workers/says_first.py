"""Writes its arguments before the hello, to stdout or after `--stderr` to stderr; `\\n` is a line feed. Then serves."""

import os

from tests.integration.workers.speaker import Speaker


def main() -> None:
    speaker = Speaker()
    descriptor = 1
    for argument in speaker.arguments:
        if argument == "--stderr":
            descriptor = 2
        else:
            os.write(descriptor, argument.replace("\\n", "\n").encode())
    speaker.serve()


if __name__ == "__main__":
    main()
