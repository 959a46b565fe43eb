"""The worker's log: one JSON line for a record, whatever is in it."""

import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandport_sdk.logs import JsonLines, current_request


class Log:
    """A logger of its own, and what it wrote."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.logger = logging.Logger("mine")  # noqa: LOG001 - one that no other test knows
        self.logger.addHandler(JsonLines(self.write))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in os.read(self.read, 1 << 20).splitlines()]


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    os.close(log.read)
    os.close(log.write)


def test_a_record_is_one_json_line(log: Log) -> None:
    log.logger.warning("two\nlines of %s", "text")
    assert log.lines() == [{"level": "WARNING", "message": "two\nlines of text", "logger": "mine"}]


def test_a_record_names_its_request(log: Log) -> None:
    for request in (0, "", "r"):
        token = current_request.set(request)
        log.logger.info("x")
        current_request.reset(token)
    assert [line["request"] for line in log.lines()] == [0, "", "r"]


def test_a_traceback_stays_in_its_record(log: Log) -> None:
    try:
        raise ValueError("inside")
    except ValueError:
        log.logger.exception("outside")
    (line,) = log.lines()
    assert line["level"] == "ERROR"
    assert line["message"].startswith("outside\nTraceback")
    assert line["message"].endswith("ValueError: inside")


def test_text_that_is_no_unicode_is_escaped(log: Log) -> None:
    log.logger.info("a file named %s", os.fsdecode(b"\xff"))
    assert log.lines()[0]["message"] == "a file named \\udcff"


def test_a_long_record_is_several_lines_and_loses_nothing(log: Log) -> None:
    """hashicorp/go-plugin PR #98 (L01), seen from the worker: each line is one that a host takes whole."""
    text = "0123456789" * 6000
    log.logger.info(text)
    raw = os.read(log.read, 1 << 20)
    assert max(map(len, raw.splitlines())) < 64 * 1024
    assert "".join(json.loads(line)["message"] for line in raw.splitlines()) == text


def test_a_record_that_cannot_be_formatted_is_reported_and_does_not_end_the_code_that_logs(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    log.logger.info("%d items", "no number")
    assert "Logging error" in capsys.readouterr().err
    log.logger.info("after")
    assert log.lines()[0]["message"] == "after"
