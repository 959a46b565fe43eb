"""The host's log: levels, bound values, and nothing on the stdout of the program around it."""

import logging
import subprocess
import sys
from typing import Any

import pytest

from sandport.log import Log
from sandport.worker.stderr import Level


def kept(threshold: Level) -> tuple[Log, list[tuple[Level, str, dict[str, Any]]]]:
    records: list[tuple[Level, str, dict[str, Any]]] = []
    return Log(lambda level, event, fields: records.append((level, event, fields)), threshold=threshold), records


def test_what_is_below_the_threshold_is_not_written() -> None:
    log, records = kept("warning")
    for level in ("debug", "info", "warning", "error", "critical"):
        log(level, "x")
    assert [level for level, _, _ in records] == ["warning", "error", "critical"]


def test_bound_values_go_with_every_record_and_the_nearer_one_wins() -> None:
    log, records = kept("info")
    bound = log.bind(provider="p", pid=1)
    bound("info", "x", pid=2)
    bound.bind(sandbox="s")("info", "y")
    log("info", "z")
    assert [fields for _, _, fields in records] == [
        {"provider": "p", "pid": 2},
        {"provider": "p", "pid": 1, "sandbox": "s"},
        {},
    ]


def test_without_configuration_records_go_to_the_standard_librarys_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sandport"):
        Log()("warning", "100% odd", provider="p")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "100% odd provider='p'")
    ]


def test_nothing_is_printed_on_stdout_and_structlog_is_imported_only_for_a_record() -> None:
    program = (
        "import sys; from sandport.log import Log; log = Log(); log('debug', 'x'); print('structlog' in sys.modules);"
        "log('error', 'broken')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
    assert "broken" in done.stderr


def test_an_embedder_that_configured_structlog_gets_the_records_there() -> None:
    program = (
        "import structlog, sys; from sandport.log import Log;"
        "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr));"
        "Log()('error', 'broken', provider='p')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    assert "broken" in done.stderr
    assert "provider" in done.stderr
