"""`sandport sync`, and what `run` and `exec` leave out, in a real sandbox of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command import Command, Done


@pytest.fixture
def box(sandport: Command) -> Iterator[Command]:
    """A command with a kept sandbox of that name, ended afterwards; nothing else may be there then."""
    done = sandport("run", "-q", "--keep", "--name", "box", "--", "true")
    assert done.code == 0, done
    yield sandport
    assert sandport("leases", "end", "box").code == 0
    sandport.nothing_is_left()


@pytest.fixture
def tree(sandport: Command) -> Path:
    """Sources and what is none, with an ignore file, in the command's folder."""
    top = sandport.cwd / "tree"
    for name, content in {
        "main.py": "code",
        "notes.tmp": "x",
        "build/out.o": "xx",
        "sub/keep.o": "xxx",
        "sub/more.py": "more",
        ".gitignore": "build/\n",
        "sub/.gitignore": "!keep.o\n",
    }.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return top


def files(sandport: Command) -> Path:
    """The working directory of the one sandbox there is."""
    (sandbox,) = sandport.sandboxes()
    return sandport.home / "workers/local" / sandbox / "sandbox"


def below(folder: Path) -> set[str]:
    """Every file and link."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def moved(done: Done) -> dict[str, Any]:
    """The one copy that the object tells of."""
    (found,) = done.object["moved"]
    assert isinstance(found, dict)
    return found


SOURCES = {"main.py", "sub/more.py", "sub/keep.o", ".gitignore", "sub/.gitignore"}


def test_a_folder_goes_in_is_mirrored_and_comes_back(box: Command, tree: Path) -> None:
    selected = ("--gitignore", "--exclude", "*.tmp")

    # A rehearsal tells everything and writes nothing.
    done = box("sync", "in", "box", "tree", "proj", *selected, "-n")
    assert done.code == 0, done
    assert done.out.decode().splitlines() == [
        "left out  notes.tmp",
        "left out  build",
        "would copy tree to proj: 5 files, 26 B, 1 folder, 2 left out",
    ]
    inside = files(box)
    assert below(inside) == set()

    done = box("sync", "in", "box", "tree", "proj", *selected, "--json")
    found = moved(done)
    assert (done.code, done.err, found["dryRun"]) == (0, "", False)
    assert (found["direction"], found["files"], found["bytes"], found["excluded"]) == ("in", 5, 26, 2)
    assert set(found["excludedPaths"]) == {"notes.tmp", "build"}
    assert below(inside / "proj") == SOURCES

    # What the source does not have goes, what is left out stays.
    (inside / "proj/build").mkdir()
    for name in ("stray", "sub/stray2", "kept.tmp", "build/made"):
        (inside / "proj" / name).touch()
    (tree / "main.py").unlink()
    rehearsed = box("sync", "in", "box", "tree", "proj", *selected, "--delete", "--dry-run")
    assert {"would delete  stray", "would delete  sub/stray2", "would delete  main.py"} == {
        line for line in rehearsed.out.decode().splitlines() if line.startswith("would delete")
    }
    assert ", 3 to delete" in rehearsed.out.decode()
    done = box("sync", "in", "box", "tree", "proj", *selected, "--delete", "--json")
    found = moved(done)
    assert (found["deleted"], set(found["deletedPaths"])) == (3, {"stray", "sub/stray2", "main.py"})
    assert below(inside / "proj") == (SOURCES | {"kept.tmp", "build/made"}) - {"main.py"}

    # Back: beside what is here, then as a mirror of it.
    back = box.cwd / "back"
    back.mkdir()
    (back / "mine").touch()
    (back / "other.tmp").touch()
    done = box("sync", "out", "box", "proj", "back", "--exclude", "*.tmp", "-v")
    assert done.code == 0
    assert done.out.decode().splitlines() == [
        "left out  kept.tmp",
        "copied proj to back: 5 files, 22 B, 2 folders, 1 left out",
    ]
    assert below(back) == (SOURCES - {"main.py"}) | {"build/made", "mine", "other.tmp"}
    done = box("sync", "out", "box", "proj", "back", "--exclude", "*.tmp", "--delete", "-q")
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert not (back / "mine").exists()
    assert (back / "other.tmp").exists()
    done = box("sync", "out", "box", ".", "..", "--delete")
    assert done.code == 125, "what is above the current folder is no mirror"
    done = box("sync", "out", "box", ".", ".", "--delete")
    assert done.code == 125, "nor is the current folder itself"
    assert "it is the current directory" in done.err
    assert (back / "other.tmp").exists()

    # Destroyed, then replaced.
    assert box("sync", "in", "box", "tree/sub", "proj", "--replace", "-q").code == 0
    assert below(inside / "proj") == {"keep.o", "more.py", ".gitignore"}


def test_what_cannot_be_copied_is_listed_and_gives_its_own_code(box: Command, tree: Path) -> None:
    """NVIDIA/OpenShell#2920: the rest arrives, what did not is listed, and the code says so."""
    os.mkfifo(tree / "fifo")
    (tree / "link").symlink_to("main.py")
    (tree / "gone").symlink_to("nowhere")
    (tree / "circle").symlink_to(".")
    done = box("sync", "in", "box", "tree", "proj", "--follow-symlinks", "--exclude", "build", "--json")
    found = moved(done)
    assert (done.code, done.object["code"], done.object["codeFrom"]) == (1, 1, "sandport")
    assert {notice["path"] for notice in found["skippedPaths"]} == {"fifo", "gone", "circle"}
    assert found["skipped"] == 3
    assert all(notice["reason"] for notice in found["skippedPaths"])
    assert "sync in: skipped: fifo: it is a FIFO, which has no bytes to copy" in done.err
    inside = files(box)
    assert [path.name for path in (inside / "proj").iterdir() if path.is_symlink()] == ["gone"]

    # Links that would lead out of it are refused on the way home.
    (inside / "proj/out").symlink_to("/etc/passwd")
    done = box("sync", "out", "box", "proj", "back")
    assert (done.code, done.out) == (1, b"copied proj to back: 7 files, 31 B, 1 folder, 1 link, 1 refused\n")
    assert "sync out: refused: out: " in done.err
    done = box("sync", "out", "box", "proj", "back", "--json")
    assert [notice["path"] for notice in moved(done)["refusedPaths"]] == ["out"]
    assert (moved(done)["changed"], moved(done)["changedPaths"]) == (0, [])

    # Files by themselves, with a mode; ceilings.
    assert box("sync", "in", "box", "tree/main.py", "key", "--mode", "0600", "-q").code == 0
    assert (inside / "key").stat().st_mode & 0o777 == 0o600
    done = box("sync", "out", "box", "proj", "little", "--max-bytes", "10")
    assert done.code == 125
    assert "more than 10 bytes" in done.err
    assert not (box.cwd / "little").exists()
    done = box("sync", "out", "box", "proj", "little", "--mode", "0600", "--json")
    assert (done.code, done.object["error"]["condition"]) == (125, "UsageError")
    done = box("sync", "in", "gone", "tree")
    assert (done.code, done.out) == (2, b"")
    assert "there is no lease 'gone'" in done.err


def test_run_leaves_out_what_it_is_told_to(sandport: Command, tree: Path) -> None:
    (tree / "build/lib.tmp").touch()
    script = "find . -type f | sort; mkdir -p build; touch build/result build/junk.tmp"
    done = sandport(
        "run", "--json", "--in", "tree", "--exclude", "*.tmp", "--gitignore",
        "--out", "build", "--", "sh", "-c", script,
    )  # fmt: skip
    assert done.code == 0, done
    assert {line.removeprefix("./") for line in done.err.splitlines() if line.startswith("./")} == SOURCES
    # What it made comes back whatever its sources' files say of it, but not what the caller left out.
    assert os.listdir(sandport.cwd / "build") == ["result"]
    assert [(copy["direction"], copy["excluded"]) for copy in done.object["moved"]] == [("in", 2), ("out", 1)]
