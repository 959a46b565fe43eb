"""What the far side runs: POSIX sh, tar, mv, mkdir, rm, chmod, cat and wc; find and xargs for a mirror.

One text for each step, made of the pieces below. What it is told stands in it as shell words, so that every byte that
a path can hold goes through a wire that takes text. It starts in the working directory and goes to the place of the
copy one name at a time, never through a link. Everything is staged in one directory of a reserved name (`$S`), 0700,
on the file system of the place, and goes to its place by renames.

An archive for a tree holds `t/...` (the tree, its directories open for their owner), then `d` (an archive of the
directories alone, the deepest first, with their own modes and times) and `r` (one of the top alone): modes and times of
directories are set when everything is in them, also of those that were there before. For a tar that gives no mode to
a directory that is there already, `m` and `n` before them say the same in shell. `d` and `r` come last, so they prove
that nothing was cut off. For a mirror there are lists of what goes, each path ended by NUL: what is in the way before,
and everything else after the copy. An archive for a file holds `f`.

A failure ends with one line on stderr, `sandport <scratch> <kind> <path>`; `told.py` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "PROBE",
    "clean_up",
    "find_source",
    "finish_file",
    "finish_tree",
    "keep_chunks",
    "list_names",
    "look_at_file",
    "place_file",
    "place_tree",
    "quoted",
    "read_file",
    "send",
    "stage_chunk",
    "unpack_chunks",
    "write_file",
]


def quoted(value: bytes) -> str:
    """A shell word of these bytes, in plain text; a word that is a command substitution where they are no UTF-8.

    A substitution loses line feeds at its end, so such a word ends with an `x` that `words` takes off again.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "\"$(printf '" + "".join(f"\\{byte:03o}" for byte in value) + "x')\""
    return "'" + text.replace("'", "'\\''") + "'"


def _assigned(variable: str, value: bytes) -> str:
    word = quoted(value)
    return f"{variable}={word}" + (f"; {variable}=${{{variable}%x}}" if word.startswith('"') else "") + "\n"


def _positional(values: Iterable[bytes]) -> str:
    return "set --\n" + "".join(_assigned("n", value) + 'set -- "$@" "$n"\n' for value in values)


_PROLOGUE = r"""
unset IFS CDPATH TAR_OPTIONS POSIXLY_CORRECT
own=$(umask) made= p= loose=
clean() {
  [ -z "$made" ] || rm -rf "./$S" 2>/dev/null || { chmod -R u+rwx "./$S"; rm -rf "./$S"; } 2>/dev/null
  [ -z "$loose" ] || chmod "$loose" . 2>/dev/null
  made= loose=
}
fail() { clean; printf '\nsandport %s %s %s\n' "$S" "$1" "$2" >&2; exit 90; }
need() { for m; do command -v "$m" >/dev/null 2>&1 || fail tool "$m"; done; }
trap 'fail stopped' HUP INT TERM
extract() {
  umask 0  # the scratch is closed, and not every tar goes on to the mode that it was told
  tar -xpo $X -f "$1" -C "$2" || fail tar $?
  umask 077
}
enter() {
  p=${p:+$p/}$1
  if [ -L "./$1" ]; then fail outside "$p"
  elif [ -d "./$1" ]; then :
  elif [ -e "./$1" ]; then fail busy "$p"
  else mkdir "./$1" || [ -d "./$1" ] || fail make "$p"
  fi
  cd -P "./$1" || fail enter "$p"
}
scratch() {
  if [ ! -w . ] || [ ! -x . ]; then
    for m in r w x; do
      case $m in r) [ -r . ];; w) [ -w . ];; x) [ -x . ];; esac || loose=${loose:+$loose,}u-$m
    done
    chmod u+rwx . || loose=
  fi
  # What a copy left that was killed: nothing here can tell the dead from the living but that a day has passed.
  ! command -v find >/dev/null 2>&1 ||
    find . ! -name . -prune -name '.sandport-????????????????' -type d -mtime +0 -exec rm -rf {} \; 2>/dev/null
  umask 077; made=1
  mkdir "./$S" || { made=; fail make "${p:-.}"; }
}
"""

_PLACE_TREE = r"""
for n; do enter "$n"; done
there=1
if [ -n "$T" ]; then
  q=${p:+$p/}$T
  if [ -L "./$T" ]; then [ -n "$R" ] || fail outside "$q"; there=
  elif [ -d "./$T" ]; then [ -n "$R" ] || enter "$T"; [ -z "$R" ] || there=
  elif [ -e "./$T" ]; then [ -n "$R" ] || fail busy "$q"; there=
  else there=
  fi
fi
"""
"""To the parent, and into the target where it is there: `there` is then set, unless it is to be replaced."""

_PLACE_FILE = r"""
for n; do enter "$n"; done
if [ -z "$T" ]; then name=$B
elif [ -n "$I" ] || { [ -d "./$T" ] && [ ! -L "./$T" ] && [ -n "$B" ]; }; then enter "$T"; name=$B
else name=$T
fi
case $name in .sandport-*) fail reserved "$name";; esac
p=${p:+$p/}$name
[ -L "./$name" ] || [ ! -d "./$name" ] || [ -n "$R" ] || fail busy "$p"
"""
"""To the directory of a file; its `name` there is its own (`B`) where it goes into a directory."""

_UNPACK = r"""
need tar
extract - "./$S"
"""

_FINISH_TREE = r"""
[ -d "./$S/t" ] && [ -f "./$S/d" ] && [ -f "./$S/r" ] || fail cut
check() {
  for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -L "$f" ] || [ -e "$f" ] || continue
    g=$2/${f##*/}
    if [ -L "$f" ] || [ ! -d "$f" ]; then
      [ -L "$g" ] || [ ! -d "$g" ] || fail busy "${p:+$p/}${g#./}"
    elif [ -L "$g" ]; then fail outside "${p:+$p/}${g#./}"
    elif [ -d "$g" ]; then check "$f" "$g"
    elif [ -e "$g" ]; then fail busy "${p:+$p/}${g#./}"
    fi
  done
}
gather() {
  s=$1 d=$2 c=0; set --
  [ -w "$d" ] && [ -x "$d" ] || chmod u+rwx "$d" || fail enter "${p:+$p/}${d#./}"
  for f in "$s"/* "$s"/.[!.]* "$s"/..?*; do
    if [ -L "$f" ]; then :
    elif [ -d "$f" ]; then [ ! -d "$d/${f##*/}" ] || continue
    elif [ ! -e "$f" ]; then continue
    fi
    c=$((c + ${#f})); set -- "$@" "$f"
    if [ "$c" -gt 50000 ] || [ $# -ge 200 ]; then
      mv -f -- "$@" "$d/" </dev/null || fail move "${p:+$p/}${d#./}"
      c=0; set --
    fi
  done
  [ $# -eq 0 ] || mv -f -- "$@" "$d/" </dev/null || fail move "${p:+$p/}${d#./}"
}
merge() {
  gather "$1" "$2"
  for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -L "$f" ] || [ ! -d "$f" ] || merge "$f" "$2/${f##*/}"
  done
}
strike() {
  [ ! -s "./$S/$2" ] || xargs -0 chmod u+rwx -- <"./$S/$2" 2>/dev/null
  [ ! -s "./$S/$1" ] || xargs -0 rm -f -- <"./$S/$1" || fail remove "${p:-.}"
  [ ! -s "./$S/$2" ] || xargs -0 rmdir -- <"./$S/$2" || fail remove "${p:-.}"
}
if [ -z "$there" ]; then
  extract "./$S/d" "./$S/t"
  [ ! -f "./$S/m" ] || (cd "./$S/t" && . ../m) || fail enter "$q"
  if [ -L "./$T" ] || [ -e "./$T" ]; then mv -f -- "./$T" "./$S/old" || fail move "$q"; fi
  mv -f -- "./$S/t" "./$T" </dev/null || { mv -f -- "./$S/old" "./$T" 2>/dev/null; fail move "$q"; }
  extract "./$S/r" "./$T"
  [ ! -f "./$S/n" ] || . "./$S/n" || fail enter "$q"
else
  if [ -n "$R" ]; then
    mkdir "./$S/old"
    for f in ./* ./.[!.]* ./..?*; do
      case $f in ./.sandport-*) continue;; esac
      if [ -L "$f" ] || [ -e "$f" ]; then mv -f -- "$f" "./$S/old/" || fail move "${p:+$p/}${f#./}"; fi
    done
  fi
  strike first-others first-directories
  check "./$S/t" .
  merge "./$S/t" .
  [ ! -f "./$S/before" ] || . "./$S/before" || fail enter "${p:-.}"
  strike last-others last-directories
  [ ! -f "./$S/after" ] || . "./$S/after" || fail enter "${p:-.}"
  extract "./$S/d" .
  [ ! -f "./$S/m" ] || . "./$S/m" || fail enter "${p:-.}"
fi
clean
"""

_FINISH_FILE = r"""
[ -f "./$S/f" ] || fail cut
mkdir "./$S/n" "./$S/old" && mv -f -- "./$S/f" "./$S/n/$name" || fail move "$p"
if [ -n "$R" ] && [ ! -L "./$name" ] && [ -d "./$name" ]; then
  mv -f -- "./$name" "./$S/old/" || fail move "$p"
fi
mv -f -- "./$S/n/$name" ./ </dev/null || fail move "$p"
clean
"""

_FIND = r"""
h=0 k=0 l=.
while [ -n "$L" ]; do
  n=${L%%/*}
  case $L in */*) L=${L#*/};; *) L=;; esac
  case $n in
    ''|.) continue;;
    ..) [ "$k" -gt 0 ] || fail outside "$F"; k=$((k - 1)); cd -P .. || fail enter "$F"; continue;;
  esac
  if [ -L "./$n" ]; then
    h=$((h + 1)); [ "$h" -le 40 ] || fail loop "$F"
    need readlink
    t=$(readlink "./$n" && echo x) || fail missing "$F"
    t=${t%?x}
    case $t in /*) fail outside "$F";; esac
    L=$t/$L
    continue
  fi
  l=$n
  if [ -d "./$n" ]; then cd -P "./$n" || fail enter "$F"; k=$((k + 1)); l=.
  else
    case $L in *[!/.]*|*..*) fail missing "$F";; esac
    [ -e "./$n" ] || fail missing "$F"
    [ -f "./$n" ] || fail special "$F"
    break
  fi
done
"""
"""To a source, whose links are resolved as long as they stay below: `l` is `.` in a directory, or the file's name."""

_LOOK = r"""
look() {
  p=${p:+$p/}$1
  if [ -L "./$1" ]; then fail outside "$p"
  elif [ -d "./$1" ]; then cd -P "./$1" || fail enter "$p"
  elif [ -e "./$1" ]; then fail busy "$p"
  else printf '\0\0\0'; exit 0
  fi
}
"""
"""To a place, without making anything; three empty lists where it is not there."""

PROBE = r"""
LC_ALL=C; export LC_ALL; unset TAR_OPTIONS
command -v tar >/dev/null 2>&1 || { echo none; exit 0; }
tar --version 2>&1 </dev/null
exit 0
"""
"""Says which tar there is, in its own words."""


def _text(scratch: bytes, *pieces: str, **values: bytes) -> str:
    assigned = "".join(_assigned(name, value) for name, value in {"S": scratch, **values}.items())
    return "LC_ALL=C; export LC_ALL\n" + assigned + _PROLOGUE + "".join(pieces)


def _tree(
    scratch: bytes,
    names: Sequence[bytes],
    options: str,
    *,
    replace: bool,
    steps: Sequence[str],
    **values: bytes,
) -> str:
    return _text(
        scratch,
        "need mv mkdir rm chmod\n",
        _positional(names[:-1]),
        _PLACE_TREE,
        *steps,
        T=names[-1] if names else b"",
        R=b"1" if replace else b"",
        X=options.encode(),
        **values,
    )


def _file(
    scratch: bytes,
    names: Sequence[bytes],
    steps: Sequence[str],
    *,
    base: bytes,
    inside: bool = False,
    options: str = "",
    replace: bool = False,
    **values: bytes,
) -> str:
    return _text(
        scratch,
        "need mv mkdir rm chmod\n",
        _positional(names[:-1]),
        _PLACE_FILE,
        *steps,
        T=names[-1] if names else b"",
        B=base,
        I=b"1" if inside else b"",
        R=b"1" if replace else b"",
        X=options.encode(),
        **values,
    )


_STAGED = '[ -d "./$S" ] || fail cut\nmade=1 loose=$O\numask 077\n'
_ANSWER = r"""
printf '%s\n%s' "$loose" "$w"
exit 0
"""


def place_tree(scratch: bytes, names: Sequence[bytes], options: str, *, replace: bool, unpack: bool) -> str:
    """Go to where a tree belongs and stage it: all of it from stdin, or only the place for it.

    Args:
        scratch: The name to stage under.
        names: The target's path below the working directory, a name for each level; none for the directory itself.
        options: For tar, when it extracts.
        replace: Whether what is at the target is destroyed in the end.
        unpack: Take the archive from stdin and finish; else only make the place, and answer on stdout: a line that
            `finish_tree` wants, then the directory that the scratch is in, below the working directory.
    """
    steps = ("scratch\n", _UNPACK, _FINISH_TREE) if unpack else ("scratch\nw=$p\n", _ANSWER)
    return _tree(scratch, names, options, replace=replace, steps=steps)


def finish_tree(scratch: bytes, names: Sequence[bytes], options: str, *, replace: bool, loose: bytes) -> str:
    """Put a tree in its place that was staged by somebody else."""
    return _tree(scratch, names, options, replace=replace, steps=(_STAGED, "need tar\n", _FINISH_TREE), O=loose)


def place_file(
    scratch: bytes,
    names: Sequence[bytes],
    options: str,
    *,
    base: bytes,
    inside: bool,
    replace: bool,
    unpack: bool,
) -> str:
    """Go to where a file belongs and stage it, as `place_tree` does.

    Args:
        base: The file's own name, for a target that is a directory; empty where only the target's name will do.
        inside: Whether the target was named as a directory.
        scratch, names, options, replace, unpack: As in `place_tree`.
    """
    steps = ("scratch\n", _UNPACK, _FINISH_FILE) if unpack else ('scratch\nw=${p%"$name"}\n', _ANSWER)
    return _file(scratch, names, steps, base=base, inside=inside, options=options, replace=replace)


def finish_file(
    scratch: bytes, names: Sequence[bytes], *, base: bytes, inside: bool, replace: bool, loose: bytes
) -> str:
    """Put a file in its place that was staged by somebody else."""
    steps = (_STAGED, _FINISH_FILE)
    return _file(scratch, names, steps, base=base, inside=inside, replace=replace, O=loose)


def write_file(scratch: bytes, names: Sequence[bytes], *, mode: int, size_bytes: int) -> str:
    """Make a file of what comes on stdin, which is so long: input that was cut replaces nothing."""
    step = f"""
cat >"./$S/f" && chmod {mode:04o} "./$S/f" || fail write "$p"
[ "$(wc -c <"./$S/f")" -eq {size_bytes} ] || fail cut
"""
    return _file(scratch, names, ("need cat wc\nscratch\n", step, _FINISH_FILE), base=b"")


def stage_chunk(scratch: bytes, directory: bytes) -> str:
    """Append what comes on stdin to the file `in` of a scratch that `place_tree` or `place_file` made."""
    return _text(scratch, 'need cat\ncat >>"./$D$S/in" || fail write "$D$S"\n', D=_slashed(directory))


def unpack_chunks(scratch: bytes, directory: bytes, options: str) -> str:
    """Unpack what `stage_chunk` brought."""
    step = 'need tar rm\nextract "./$D$S/in" "./$D$S"\nrm -f "./$D$S/in"\n'
    return _text(scratch, step, D=_slashed(directory), X=options.encode())


def keep_chunks(scratch: bytes, directory: bytes, *, mode: int, size_bytes: int) -> str:
    """Make the file `f`, so long, of what `stage_chunk` brought, for `finish_file`."""
    step = f"""
need wc
umask 077
cd "./$D$S" && : >>in && chmod {mode:04o} in && mv in f || fail write "$D$S"
[ "$(wc -c <f)" -eq {size_bytes} ] || fail cut
"""
    return _text(scratch, step, D=_slashed(directory))


def clean_up(scratch: bytes, names: Sequence[bytes]) -> str:
    """Remove what is left of a scratch, wherever on the way to the target it is; says nothing."""
    step = r"""
exec 2>/dev/null
made=1; clean
for n; do cd -P "./$n" || exit 0; made=1; clean; done
exit 0
"""
    return _text(scratch, _positional(names), step)


def send(scratch: bytes, path: bytes, options: str) -> str:
    """Write what a source is to stdout, and then its archive.

    What it is stands in one line: `d`, or `f` and a number, the length of the name that follows the line.
    """
    step = r"""
need tar
if [ "$l" = . ]; then echo d; else printf 'f %s\n%s' "${#l}" "$l"; fi
if [ "$l" = . ]; then tar $X -cf - .; else tar $X -cf - "./$l"; fi
s=$?
[ "$s" -eq 0 ] || fail tar "$s"
"""
    return _text(scratch, _FIND, step, F=path, L=path, X=options.encode())


def find_source(scratch: bytes, path: bytes) -> str:
    """Say what a source is, as `send` does, and then its absolute path without a link in it."""
    step = r"""
n=$(pwd -P && echo x); n=${n%?x}
if [ "$l" = . ]; then printf 'd\n%s' "$n"; else printf 'f %s\n%s%s/%s' "${#l}" "$l" "$n" "$l"; fi
"""
    return _text(scratch, _FIND, step, F=path, L=path)


def read_file(scratch: bytes, path: bytes) -> str:
    """Write a file's bytes to stdout."""
    step = '[ "$l" != . ] || fail directory "$F"\nneed cat\ncat "./$l" || fail read "$F"\n'
    return _text(scratch, _FIND, step, F=path, L=path)


def list_names(scratch: bytes, names: Sequence[bytes], *, tools: str) -> str:
    """Write every path below a directory to stdout, each ended by NUL: directories, links, everything else.

    Each of the three lists is ended by one more NUL; all are empty where the directory is not there. Nothing is made.

    Args:
        scratch, names: As in `place_tree`.
        tools: What else will be needed, so that it is missed before anything is done.
    """
    step = f"""
for n; do look "$n"; done
need find {tools}
"""
    step += r"""
find . -name '.sandport-*' -prune -o -type d -print0 || fail list "${p:-.}"
printf '\0'
find . -name '.sandport-*' -prune -o -type l -print0 || fail list "${p:-.}"
printf '\0'
find . -name '.sandport-*' -prune -o ! -type d ! -type l -print0 || fail list "${p:-.}"
printf '\0'
"""
    return _text(scratch, _LOOK, _positional(names), step)


def look_at_file(scratch: bytes, names: Sequence[bytes], *, base: bytes, inside: bool, replace: bool) -> str:
    """Fail as `place_file` would, and make nothing."""
    values = {"T": names[-1] if names else b"", "B": base, "I": b"1" if inside else b"", "R": b"1" if replace else b""}
    step = r"""
for n; do look "$n"; done
if [ -z "$T" ]; then name=$B
elif [ -n "$I" ] || { [ -d "./$T" ] && [ ! -L "./$T" ]; }; then look "$T"; name=$B
else name=$T
fi
[ -L "./$name" ] || [ ! -d "./$name" ] || [ -n "$R" ] || fail busy "${p:+$p/}$name"
"""
    return _text(scratch, _LOOK, _positional(names[:-1]), step, **values)


def _slashed(directory: bytes) -> bytes:
    return directory + b"/" if directory and not directory.endswith(b"/") else directory
