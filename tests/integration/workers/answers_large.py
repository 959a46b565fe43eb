"""Answers a probe with as many bytes as its config says: `{"bytes": N}`."""

from tests.integration.workers.speaker import Message, Speaker


def probe(message: Message) -> Message:
    size = message["params"]["config"]["bytes"]
    return {"checks": [{"name": "size", "ok": True, "detail": "x" * size}]}


def main() -> None:
    speaker = Speaker()
    speaker.handlers["probe"] = probe
    speaker.serve()


if __name__ == "__main__":
    main()
