"""What the checks run in a sandbox: argument lists with blanks, for POSIX unless the author says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from .outcomes import Untestable


def _sh(script: str, *blanks: str) -> tuple[str, ...]:
    """A script for `sh`, whose arguments are the blanks: no value is ever part of the script."""
    return ("sh", "-c", script, "sh", *blanks)


DEFAULT_COMMANDS: dict[str, tuple[str, ...] | None] = {
    # Writes the text to stdout, and nothing else.
    "print": _sh('printf %s "$1"', "{text}"),
    # Writes the text to stderr, and nothing else.
    "complain": _sh('printf %s "$1" >&2', "{text}"),
    # Ends with an exit code.
    "exit": _sh('exit "$1"', "{code}"),
    # Does nothing for so long.
    "sleep": ("sleep", "{seconds}"),
    # Copies stdin to stdout until it ends.
    "copy": ("cat",),
    # Writes so many bytes to stdout, as fast as it can.
    "flood": _sh('yes 0123456789 | head -c "$1"', "{bytes}"),
    # Writes the text, then does nothing for so long.
    "print_then_sleep": _sh('printf %s "$1"; sleep "$2"', "{text}", "{seconds}"),
    # Ends itself with a signal.
    "die": _sh('kill -"$1" $$', "{signal}"),
    # Ignores SIGTERM, says so with the text, and does nothing for so long.
    "ignore_term": _sh(
        'trap "" TERM; printf %s "$1"; n="$2"; while [ "$n" -gt 0 ]; do sleep 1; n=$((n - 1)); done',
        "{text}",
        "{seconds}",
    ),
    # Ends at once and leaves a child that holds stdout and stderr for so long; the text is written before.
    "leave_child": _sh('sleep "$2" & printf %s "$1"', "{text}", "{seconds}"),
    # Ends at once and leaves a child that writes to both streams without a pause worth the name; the text comes before.
    "leave_writer": _sh(
        'printf %s "$1"; (n=0; while [ "$n" -lt "$2" ]; do printf .; printf . >&2; sleep 0.02; n=$((n + 1)); done) &',
        "{text}",
        "{count}",
    ),
    # Writes the text, as a line, to every descriptor that it has beside the three of a command.
    "write_everywhere": _sh('for n in 3 4 5 6 7 8 9; do (printf "%s\\n" "$1" >&"$n") 2>/dev/null || :; done', "{text}"),
    # Makes a file of the working directory executable.
    "make_executable": ("chmod", "755", "{name}"),
    # Writes the texts to /dev/stdout and /dev/stderr, opened by these names; exits with 77 where there are none.
    "reopen_output": _sh(
        'test -e /dev/stdout && test -e /dev/stderr || exit 77; printf %s "$1" >/dev/stdout && '
        'printf %s "$2" >/dev/stderr',
        "{text}",
        "{other}",
    ),
    # Writes its environment, as NAME=VALUE lines.
    "environment": ("env",),
    # Writes the name of its PID namespace as a line, which is empty where it has none that it sees, then the
    # environments of all processes that it may read.
    "environments": _sh(
        'readlink /proc/self/ns/pid 2>/dev/null || echo; cat /proc/[0-9]*/environ 2>/dev/null | tr "\\0" "\\n"; :'
    ),
    # Writes the value of a variable, or nothing.
    "variable": _sh('eval "printf %s \\"\\${$1-}\\""', "{name}"),
    # Writes the working directory.
    "directory": _sh("pwd -P"),
    # Writes the text into a file of the working directory.
    "write_file": _sh('printf %s "$2" >"$1"', "{name}", "{text}"),
    # Waits until a file of the working directory has something in it, then writes the text.
    "wait_for_file": _sh('while ! [ -s "$1" ]; do sleep 0.1; done; printf %s "$2"', "{name}", "{text}"),
    # Writes the text, then its process id and that of a child into a file; both do nothing for so long.
    "note_ids": _sh(
        'sleep "$3" & printf %s "$2"; printf "%s %s" "$$" "$!" >"$1"; wait', "{name}", "{text}", "{seconds}"
    ),
    # Writes how many of the processes whose ids a file holds still live, as in "0"; a zombie does not.
    "count_alive": _sh(
        'n=0; for p in $(cat "$1"); do if kill -0 "$p" 2>/dev/null && '
        '! grep -qs "^State:[[:space:]]*[ZX]" "/proc/$p/status"; then n=$((n + 1)); fi; done; printf %s "$n"',
        "{name}",
    ),
    # Ends at once, and leaves a process in a session of its own that holds nothing of it and does nothing for so long;
    # a file has its id when the command ends.
    "leave_daemon": _sh(
        'setsid sh -c \'printf %s "$$" >"$1"; exec sleep "$2"\' sh "$1" "$2" </dev/null >/dev/null 2>&1 & '
        'while ! [ -s "$1" ]; do sleep 0.05; done',
        "{name}",
        "{seconds}",
    ),
    # Leaves a process that has cleared its environment, forked twice, and is in a session of its own, away from the
    # working directory; it holds nothing of the command and does nothing for so long. A file has its id when the text
    # is written; the command goes on for as long as `stay` says.
    "leave_stranger": _sh(
        '(env -i setsid sh -c \'(cd /; exec sleep "$2") & printf %s "$!" >"$1"\' sh "$PWD/$1" "$2" '
        "</dev/null >/dev/null 2>&1 &); "
        'while ! [ -s "$1" ]; do sleep 0.05; done; printf %s "$3"; sleep "$4"',
        "{name}",
        "{seconds}",
        "{text}",
        "{stay}",
    ),
    # Kills its parent process, where that is not the first of all, and then ends with an exit code.
    "kill_parent": _sh('[ "$PPID" -gt 1 ] && kill -9 "$PPID"; sleep 0.2; exit "$1"', "{code}"),
    # Writes the text, as a line, again and again to stdout, and the other text to stderr meanwhile: so many bytes each.
    "flood_both": _sh('yes "$1" | head -c "$3" & yes "$2" | head -c "$3" >&2; wait', "{text}", "{other}", "{bytes}"),
    # Sends a signal to the first of the processes whose ids a file holds.
    "signal_noted": _sh('read -r p rest <"$1" || :; kill -"$2" "$p"', "{name}", "{signal}"),
    # Writes the text, waits until a file of the working directory has something in it, and ends with an exit code.
    "wait_then_exit": _sh(
        'printf %s "$2"; while ! [ -s "$1" ]; do sleep 0.1; done; exit "$3"', "{name}", "{text}", "{code}"
    ),
    # Copies a file of the working directory to stdout; fails where it does not exist.
    "read_file": ("cat", "{name}"),
    # Writes a tar archive of what is in a directory to stdout, whatever the names; exits with 127 without a tar.
    "pack": _sh('cd -- "$1" && tar -cf - .', "{path}"),
    # Makes a directory with its parents and unpacks the tar archive on stdin into it, with the modes and times that the
    # archive says, for the user that it runs as; exits with 127 without a tar.
    "unpack": _sh('mkdir -p -- "$1" && cd -- "$1" && tar -xopf -', "{path}"),
    # Removes a directory with all that is in it, whatever the modes.
    "remove_tree": _sh('chmod -R u+rwx -- "$1" && rm -rf -- "$1"', "{path}"),
    # Makes a directory with its parents.
    "make_directory": _sh('mkdir -p -- "$1"', "{path}"),
    # Makes a FIFO.
    "make_fifo": _sh('mkfifo -- "$1"', "{name}"),
    # Gives a file another name.
    "hard_link": _sh('ln -- "$1" "$2"', "{name}", "{other}"),
    # Makes a file of so many bytes, 0123456789 and line feeds, where the directory is there.
    "make_file": _sh('yes 0123456789 | head -c "$2" >"$1"', "{name}", "{bytes}"),
    # Appends the text to a file.
    "append": _sh('printf %s "$2" >>"$1"', "{name}", "{text}"),
    # Makes a file empty.
    "empty": _sh(': >"$1"', "{name}"),
    # Writes the text into a file after a hole of so many bytes.
    "make_hole": _sh(
        'printf %s "$2" | dd bs=1 seek="$3" of="$1" conv=notrunc 2>/dev/null', "{name}", "{text}", "{bytes}"
    ),
    # Writes how many KiB of the disk a file takes, and then its name.
    "disk_use": _sh('du -k -- "$1"', "{name}"),
}
"""Each snippet; None where it cannot be done."""


class Commands:
    """The snippets in force.

    Args:
        table: An argument list for each name; `{blank}` stands for a value.
    """

    def __init__(self, table: Mapping[str, tuple[str, ...] | None]) -> None:
        self._table = dict(table)

    def has(self, name: str) -> bool:
        """Whether the author left it possible."""
        return self._table[name] is not None

    def argv(self, name: str, /, **blanks: object) -> list[str]:
        """The argument list of a snippet, with its blanks filled in.

        Raises:
            Untestable: The author says that this cannot be done in this provider's sandboxes.
        """
        template = self._table[name]
        if template is None:
            raise Untestable(f"commands.{name} is false in the author's file")
        filled = []
        for argument in template:
            for blank, value in blanks.items():
                argument = argument.replace("{" + blank + "}", str(value))  # noqa: PLW2901 - one blank after another
            filled.append(argument)
        return filled
