"""A worker's stderr: cut into lines, told apart by level, nothing lost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.worker.stderr import Level, LevelReader, StderrPump


async def pumped(*chunks: bytes, line_bytes: int = 64 * 1024) -> tuple[list[tuple[Level, str]], tuple[str, ...]]:
    """What was emitted, and the tail."""
    lines: list[tuple[Level, str]] = []
    pump = StderrPump(lambda level, line: lines.append((level, line)), line_bytes=line_bytes)
    for chunk in chunks:
        pump.data_received(chunk)
    pump.connection_lost(None)
    await pump.ended
    return lines, pump.tail


def levels_of(text: str) -> list[Level]:
    reader = LevelReader()
    return [reader.read(line)[0] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("just words", "info"),
        ("[warn] low disk", "warning"),
        ("WARNING: low disk", "warning"),
        ("  [ERROR] broken", "error"),
        ("DEBUG: x", "debug"),
        ("panic: runtime error: index out of range", "critical"),
        ("[banana] x", "info"),
        ("error", "info"),
    ],
)
def test_a_bracketed_or_spelled_prefix_gives_the_level_and_stays_in_the_text(line: str, level: Level) -> None:
    assert LevelReader().read(line) == (level, line)


def test_a_json_line_gives_its_level_and_its_text() -> None:
    reader = LevelReader()
    assert reader.read('{"level": "WARNING", "message": "careful", "logger": "x", "request": 7}') == (
        "warning",
        "careful",
    )
    assert reader.read('{"level": "err", "msg": "broken"}') == ("error", "broken")


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ('{"level": "error", "message": "m", "traceback": "the only copy"}', "error"),
        ('{"level": 30, "msg": "numbers mean what their library says"}', "info"),
        ('{"level": "error"}', "info"),
        ("{not json", "info"),
        ("{" * 100_000, "info"),
    ],
)
def test_a_json_line_that_says_more_or_is_none_is_passed_on_whole(line: str, level: Level) -> None:
    """cloudfoundry/guardian#121 (L03): lines that are not in the expected format must not vanish."""
    assert LevelReader().read(line) == (level, line)


def test_a_traceback_is_an_error_to_its_last_line() -> None:
    """hashicorp/go-plugin PR #292, lyraproj/lyra#110, jaegertracing/jaeger#3376 (L02)."""
    text = (
        "before\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        "    import nothing\n"
        "ModuleNotFoundError: No module named 'nothing'\n"
        "after"
    )
    assert levels_of(text) == ["info", "error", "error", "error", "error", "info"]


@pytest.mark.parametrize(
    "line",
    [
        "SyntaxError: invalid syntax",
        "vendor.client.ApiException: 503",
        "Fatal Python error: Segmentation fault",
        "thread 'main' panicked at src/main.rs:4:5:",
        'Exception in thread "main" java.lang.NullPointerException',
        "fatal error: all goroutines are asleep - deadlock!",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "worker: a.c:7: main: Assertion `x' failed.",
        "Segmentation fault (core dumped)",
        "TypeError [ERR_INVALID_ARG]: not a function",
    ],
)
def test_what_a_runtime_says_when_it_gives_up_is_an_error(line: str) -> None:
    """hashicorp/go-plugin PR #292, jaegertracing/jaeger#3376 (L02): the text of a crash was visible only at debug."""
    assert LevelReader().read(line) == ("error", line)


@pytest.mark.anyio
async def test_a_line_of_any_length_is_passed_on_in_pieces_and_the_next_one_follows() -> None:
    """hashicorp/go-plugin PR #98 (L01): one long line ended the reading of the log."""
    size = 10 * 1024 * 1024
    chunks = [b"x" * 65536] * (size // 65536) + [b"\nafter\n"]
    lines, tail = await pumped(*chunks)
    assert lines[-1] == ("info", "after")
    assert sum(len(text) for _, text in lines[:-1]) == size
    assert tail[-1] == "after"


@pytest.mark.anyio
async def test_a_last_line_without_a_line_feed_is_a_line() -> None:
    assert await pumped(b"a\nb") == ([("info", "a"), ("info", "b")], ("a", "b"))


@pytest.mark.anyio
async def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    """cloudfoundry/guardian#121 (L03)."""
    lines, _ = await pumped(b"\xff\x00ok\n")
    assert lines == [("info", "\\xff\x00ok")]


@pytest.mark.anyio
async def test_the_tail_keeps_the_last_lines_only() -> None:
    _, tail = await pumped(b"".join(b"%d\n" % number for number in range(5000)))
    assert len(tail) == 50
    assert tail[-1] == "4999"


@given(text=st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), data=st.data())
def test_no_letter_is_cut_in_two_however_the_bytes_arrive(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    lines, _ = asyncio.run(pumped(*chunks, line_bytes=8))
    texts = [line for _, line in lines]
    assert all(len(piece.encode()) <= 8 for piece in texts)
    if not text.startswith("{"):  # those may be JSON
        assert "".join(texts) == text
