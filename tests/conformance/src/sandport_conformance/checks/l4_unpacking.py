"""L4: what an archive meets when it comes: what is there already, links, odd members, and where it goes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from sandport_conformance.archives import Entry, Tree, archive, directory, expect_tree, file, link, member, sparse, tree
from sandport_conformance.declaration import check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import NotApplicable, Severity, expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.tar_blocks import BLOCK, END, STRANGE_OWNER, extended, header, padded
from sandport_conformance.transfers import Feed

from .claims import expect_no_effect
from .files import SYNC, fetch, look, noise, octets, plant, refused_in, run, send, send_tree

# ------------------------------------------------------------------ what is there already


@check(
    "SYNC-7",
    part="beside",
    needs=SYNC,
    why="A second tree comes into the workspace in which a run has worked for an hour.",
    broken="empties the directory that it unpacks into",
    fix="Put each member in its place, and touch nothing that the archive does not name.",
)
def what_is_beside_stays(lab: Lab) -> None:
    """Files beside those of the archive stay, in directories that are there already too, and nothing else appears."""
    sandbox, path = lab.sandbox, "kit/beside"
    before = [
        file(b"mine", b"stays", mode=0o600, mtime_s=1_000_000_000),
        directory(b"folder", mode=0o700),
        file(b"folder/mine", b"stays too"),
        directory(b"other"),
        link(b"other/link", b"../mine"),
    ]
    planted = plant(lab, sandbox, before, path)
    sent = send_tree(lab, sandbox, [directory(b"folder"), file(b"folder/new", b"n"), file(b"new", b"n")], path)
    wanted = planted | sent
    expect_tree(look(lab, sandbox, path), wanted, "data", "mode", "target", what="after syncIn over a tree")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-7",
    part="replace",
    needs=SYNC,
    why="A file that is written into changes under whoever reads it, and under every other name that it has.",
    broken="opens the file that is there and writes into it",
    fix="Unlink what has the name, or rename a new file over it.",
)
def what_has_the_name_is_replaced(lab: Lab) -> None:
    """Files are replaced by new ones, shorter, longer and closed ones, and links by what the archive has."""
    sandbox, path = lab.sandbox, "kit/replace"
    before = [
        file(b"long", b"x" * 5_000),
        file(b"closed", b"old", mode=0o400),
        file(b"first-name", b"old"),
        link(b"link", b"no/such/thing"),
        file(b"to-be-a-link", b"old"),
    ]
    plant(lab, sandbox, before, path)
    run(lab, sandbox, "hard_link", name=f"{path}/first-name", other=f"{path}/second-name")
    new = [
        file(b"long", b"short"),
        file(b"closed", b"new and longer", mode=0o644),
        file(b"first-name", b"new"),
        file(b"link", b"a file"),
        link(b"to-be-a-link", b"long"),
    ]
    wanted = send_tree(lab, sandbox, new, path)
    wanted[b"second-name"] = file(b"second-name", b"old")
    expect_tree(look(lab, sandbox, path), wanted, "data", "mode", "target", what="after syncIn over its own names")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-14",
    needs=SYNC,
    why="A tree that is there but for one file is found out when that file is needed.",
    broken="leaves out what it cannot write, and answers a result",
    fix="Answer PathRefused where a member cannot be put in its place; `dispatched` is `no` only before the first.",
)
def what_cannot_be_placed_is_an_error(lab: Lab) -> None:
    """A file or a link where a directory is, and a `path` that is a file: PathRefused, and all is untouched."""
    sandbox, path = lab.sandbox, "kit/refused"
    planted = plant(lab, sandbox, [directory(b"folder"), file(b"folder/mine", b"stays"), file(b"file", b"stays")], path)
    for entry in (file(b"folder", b"new"), link(b"folder", b"file")):
        refused_in(lab, sandbox, archive([entry]), path, "PathRefused")
        there = look(lab, sandbox, path)
        expect_tree(there, planted, "data", what=f"after a {entry.kind} in a directory's place was refused")
    error = refused_in(lab, sandbox, archive([file(b"new", b"new")]), f"{path}/file", "PathRefused")
    expect_no_effect(error, "syncIn into a path that is a file")
    expect_tree(look(lab, sandbox, path), planted, "data", what="after syncIn into a file was refused")
    run(lab, sandbox, "remove_tree", path=path)


# ------------------------------------------------------------------ links are not followed


class _Outside:
    """Places that no archive may reach: a directory of the sandbox, and one of this machine."""

    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self.path = f"kit/{name}/outside"
        self.inside = f"kit/{name}/inside"
        content = [directory(b"folder"), file(b"folder/file", b"untouched"), file(b"file", b"untouched")]
        plant(lab, lab.sandbox, content, self.path)
        self.of_sandbox = look(lab, lab.sandbox, self.path)
        self.of_machine = Path(tempfile.mkdtemp(prefix="kit-outside-"))
        lab.remove_later(self.of_machine)
        (self.of_machine / "folder").mkdir()
        for name_of_file in ("file", "folder/file"):
            (self.of_machine / name_of_file).write_bytes(b"untouched")
        where = output_of(lab.sandbox.execute(lab.command("directory"))).strip()
        self.tops: tuple[bytes, ...] = (
            b"../outside",
            where + b"/" + self.path.encode(),
            str(self.of_machine).encode(),
        )
        """Ways from inside to there: relative, absolute, and to this machine, which may be another one."""

    def expect_untouched(self, what: str) -> None:
        """Fail where anything has changed."""
        got = look(self._lab, self._lab.sandbox, self.path)
        expect_tree(got, self.of_sandbox, "data", "mode", "mtime_s", what=f"what a link leads to, after {what}")
        found = {path.relative_to(self.of_machine).as_posix() for path in self.of_machine.rglob("*")}
        expect(found == {"folder", "file", "folder/file"}, f"{what} has made or removed files of this machine: {found}")
        for name in ("file", "folder/file"):
            content = (self.of_machine / name).read_bytes()
            expect(content == b"untouched", f"{what} has written into a file of this machine: {content!r:.60}")

    def forget(self) -> None:
        """Remove all of it."""
        run(self._lab, self._lab.sandbox, "remove_tree", path=self.path.rpartition("/")[0])
        shutil.rmtree(self.of_machine, ignore_errors=True)


def _send_whatever(lab: Lab, data: bytes, path: str) -> None:
    """Send an archive that a worker may refuse."""
    with Feed([data], timeout_s=lab.times.call_s) as feed:
        session = lab.sandbox.session
        session.answer(session.request("syncIn", lab.sandbox.params(socket=feed.path, path=path)))


@check(
    "SYNC-8",
    part="planted",
    needs=SYNC,
    why="What runs in a sandbox can plant a link and wait for the next file: it is then written where the link leads.",
    broken="opens what has the member's name, and the kernel follows the link",
    fix="Walk by descriptors without following; remove a link that is in the way, or refuse.",
    source="bytedance/deer-flow#5578, bytedance/deer-flow#2623",
)
def planted_links_are_not_followed(lab: Lab) -> None:
    """Nothing is written through links that are there before: for files, for directories, on the way to a file."""
    outside = _Outside(lab, "planted")
    for number, top in enumerate(outside.tops):
        path = f"{outside.inside}{number}"
        before = [
            link(b"file", top + b"/file"),
            link(b"new", top + b"/new"),
            link(b"folder", top + b"/folder"),
            link(b"way", top),
        ]
        plant(lab, lab.sandbox, before, path)
        for entries in (
            [file(b"file", b"through a link")],
            [file(b"new", b"through a link")],
            [directory(b"folder", mode=0o700), file(b"folder/file", b"through a link"), file(b"folder/new", b"x")],
            [
                directory(b"way"),
                file(b"way/file", b"through a link"),
                directory(b"way/folder"),
                file(b"way/folder/file"),
            ],
        ):
            _send_whatever(lab, archive(entries), path)
            outside.expect_untouched(f"syncIn of {entries[0].path!r} over a link to {top!r}")
        there = look(lab, lab.sandbox, path)
        for name in (b"file", b"new"):
            expect(there[name].kind == "file", f"{name!r} came as a file over a link, and is a {there[name].kind}")
    outside.forget()


@check(
    "SYNC-8",
    part="brought",
    needs=SYNC,
    why="An archive can bring the link itself, and the file that goes through it right behind.",
    broken="makes a link as it comes, and walks through it with the next member",
    fix="Never walk through a link, whoever made it.",
)
def brought_links_are_not_followed(lab: Lab) -> None:
    """Nothing is written through links that came in the same archive, whether the worker refuses it or not."""
    outside = _Outside(lab, "brought")
    for number, top in enumerate(outside.tops):
        for entries in (
            [link(b"a", top), directory(b"a"), file(b"a/file", b"through a link"), file(b"a/new", b"through a link")],
            [link(b"b", top + b"/file"), file(b"b", b"through a link")],
            [link(b"c", top), directory(b"c", mode=0o700), file(b"c/new", b"x")],
        ):
            _send_whatever(lab, archive(entries), f"{outside.inside}{number}")
            outside.expect_untouched(f"syncIn of a link to {top!r} and {entries[1].path!r}")
    outside.forget()


@check(
    "SYNC-15",
    needs=SYNC,
    why="A name is data of whoever made the archive; what it says must not decide which file of a machine is written.",
    broken="joins the name to the path and opens that",
    fix="Refuse a name with `..` in it, and an absolute one.",
    source="bytedance/deer-flow#5578, bytedance/deer-flow#2623",
)
def names_that_lead_out_are_refused(lab: Lab) -> None:
    """A member with `..` in its name is PathOutsideRoot, and neither it nor an absolute one is written outside."""
    outside = _Outside(lab, "leads-out")
    for name in (b"../outside/file", b"down/../../outside/file", b".."):
        entry = directory(name) if name == b".." else file(name, b"led out")
        refused_in(lab, lab.sandbox, archive([entry]), outside.inside, "PathOutsideRoot")
        outside.expect_untouched(f"syncIn of the name {name!r}")
    for top in outside.tops[1:]:
        _send_whatever(lab, archive([file(top + b"/file", b"led out")]), outside.inside)
        outside.expect_untouched(f"syncIn of the name {top!r}")
    outside.forget()


# ------------------------------------------------------------------ members


@check(
    "SYNC-9",
    part="in",
    needs=SYNC,
    why="A disk image, or a database, is mostly holes; a host sends what there is.",
    broken="unpacks a sparse member as the map and the pieces that it is stored as",
    fix="Read the map, put each piece where it belongs, and set the size.",
)
def sparse_members_come_in_whole(lab: Lab) -> None:
    """A sparse member arrives under its own name with all of its content, holes at both ends too."""
    pieces = {4_096: noise(BLOCK), 1_003_520: noise(137 * BLOCK), 3_002_368: b"last"}
    content = bytearray(3_500_001)
    for begin, data in pieces.items():
        content[begin : begin + len(data)] = data
    entries = [file(b"before", b"before"), file(b"after", b"after")]
    data = b"".join([member(entries[0]), sparse(b"sparse", pieces, len(content)), sparse(b"hole", {}, 9_000)])
    send(lab, lab.sandbox, data + member(entries[1]) + END, "kit/sparse")
    wanted = tree([*entries, file(b"sparse", bytes(content)), file(b"hole", bytes(9_000))])
    expect_tree(look(lab, lab.sandbox, "kit/sparse"), wanted, "data", what="what came with a sparse member")
    run(lab, lab.sandbox, "remove_tree", path="kit/sparse")


@check(
    "SYNC-9",
    part="out",
    needs=SYNC,
    why="A hole is zeros to whoever reads the file, and so it has to be to whoever gets it.",
    broken="leaves the holes out and sends what is left",
    fix="Send holes as zeros, or in one of the forms for sparse files.",
)
def files_with_holes_come_out_whole(lab: Lab) -> None:
    """A file with holes is sent with all of its content, in whatever form."""
    sandbox, path = lab.sandbox, "kit/holes"
    planted = plant(lab, sandbox, [file(b"sparse", b"begin")], path)
    run(lab, sandbox, "make_hole", name=f"{path}/sparse", text="end", bytes=2_000_000)
    planted[b"sparse"] = file(b"sparse", b"begin".ljust(2_000_000, b"\0") + b"end")
    expect_tree(fetch(lab, sandbox, path), planted, "data", what="what syncOut sent of a file with a hole")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-9",
    part="room",
    severity=Severity.SHOULD,
    needs=SYNC,
    why="An image of 100 GiB with a gigabyte in it fits on the disk only with its holes.",
    broken="fills the holes with zeros",
    fix="Seek over the holes, and set the size at the end.",
)
def sparse_members_stay_sparse(lab: Lab) -> None:
    """A sparse member takes no more of the disk than what there is of it."""
    size = 64 << 20
    send(lab, lab.sandbox, sparse(b"sparse", {size // 2: bytes(BLOCK)}, size) + END, "kit/room")
    result = lab.sandbox.execute(lab.command("disk_use", name="kit/room/sparse"))
    said = output_of(result).split()
    if result.get("exitCode") != 0 or not said or not said[0].isdigit():
        raise NotApplicable(f"the sandbox does not tell what a file takes of its disk: {output_of(result)!r:.60}")
    expect(int(said[0]) < size // 1024 // 4, f"a block in {size} bytes takes {said[0].decode()} KiB of the disk")
    run(lab, lab.sandbox, "remove_tree", path="kit/room")


@check(
    "SYNC-10",
    part="records",
    needs=SYNC,
    why="A header has room for a hundred bytes of a name, eight gibibytes and whole seconds; the rest is in records.",
    broken="reads the header and passes over the records, or stumbles over one that it does not know",
    fix="Let the records of an `x` member override the header that follows, and ignore what you do not know.",
)
def records_override_headers(lab: Lab) -> None:
    """Records of path, linkpath, size and mtime hold against another header; unknown and global ones change nothing."""
    content = noise(1_500)
    foreign = {
        b"comment": b"made by the kit",
        b"LIBARCHIVE.creationtime": b"1234567890",
        b"SCHILY.xattr.com.apple.quarantine": b"\x00\xff=\n",
        b"atime": b"1.5",
        b"uname": b"nobody",
    }
    whole = b"".join(
        [
            header(b"pax_global_header", type_=b"g", size=len(b"17 comment=abcd1\n")) + padded(b"17 comment=abcd1\n"),
            extended({b"path": b"by-record", b"size": b"1500", b"mtime": b"1111111111.25", **foreign}),
            header(b"by-header", type_=b"0", size=0, mtime_s=7),
            padded(content),
            extended({b"linkpath": b"where/the/record/says"}),
            header(b"link", type_=b"2", target=b"where/the/header/says"),
            member(file(b"plain", b"after records")),
            _with_prefix(b"prefix/below", b"name", b"in a prefix"),
            END,
        ]
    )
    send(lab, lab.sandbox, whole, "kit/records")
    wanted = tree(
        [
            file(b"by-record", content, mtime_s=1_111_111_111),
            link(b"link", b"where/the/record/says"),
            file(b"plain", b"after records"),
            directory(b"prefix"),
            directory(b"prefix/below"),
            file(b"prefix/below/name", b"in a prefix"),
        ]
    )
    got = look(lab, lab.sandbox, "kit/records")
    expect_tree(got, wanted, "data", "target", what="what came with records")
    came = got[b"by-record"].mtime_s
    expect(int(came) == 1_111_111_111, f"the record says 1111111111.25 for a file's time, and it is {came}")
    run(lab, lab.sandbox, "remove_tree", path="kit/records")


def _with_prefix(prefix: bytes, name: bytes, data: bytes) -> bytes:
    """A file whose header has its name in two fields, as POSIX has it."""
    head = header(name, type_=b"0", size=len(data))
    head = head[:345] + prefix.ljust(155, b"\0") + head[500:]
    return head[:148] + b"%06o\0 " % (sum(head) - sum(head[148:156]) + 8 * 0x20) + head[156:] + padded(data)


@check(
    "SYNC-10",
    part="top",
    needs=SYNC,
    why="Most programs that pack a directory put `./` in front of everything, and the directory itself first.",
    broken="makes a directory that is called `.`, or refuses the name",
    fix="Pass over `.` in a name; what is left of `./` is `path` itself.",
)
def a_dot_in_front_is_the_top(lab: Lab) -> None:
    """Names with `./` in front arrive as without; `./` gives its mode to `path`; `syncOut` of it is the same tree."""
    content = [directory(b"folder"), file(b"folder/file", b"x"), file(b"file", b"x")]
    dotted = [_dotted(entry) for entry in content]
    data = header(b"./", type_=b"5", mode=0o750) + archive(dotted)
    send(lab, lab.sandbox, data, "kit/top/dots")
    expect_tree(look(lab, lab.sandbox, "kit/top/dots"), tree(content), "data", what="what came with ./ in front")
    expect_tree(fetch(lab, lab.sandbox, "kit/top/dots"), tree(content), "data", what="and out again")
    above = look(lab, lab.sandbox, "kit/top")
    mode = above[b"dots"].mode
    expect(mode == 0o750, f"the archive's `./` has the mode 750, and `path` has {mode:o}")
    run(lab, lab.sandbox, "remove_tree", path="kit/top")


def _dotted(entry: Entry) -> Entry:
    changed = {name: getattr(entry, name) for name in ("kind", "mode", "mtime_s", "data", "target")}
    return Entry(path=b"./" + entry.path, **changed)


# ------------------------------------------------------------------ where it goes, and whose it is


@check(
    "SYNC-11",
    part="in",
    needs=SYNC,
    why="A caller names a place as in a command, and does not make it first.",
    broken="starts from its own directory, or needs the place to be there",
    fix="Join the path to the working directory, as bytes, and make what is missing.",
)
def paths_are_taken_as_in_a_command(lab: Lab) -> None:
    """Relative and absolute paths, `.`, any bytes and new parents all lead to where a command would go."""
    sandbox = lab.sandbox
    where = output_of(sandbox.execute(lab.command("directory"))).strip()
    places = {
        b"kit/paths/relative": b"kit/paths/relative",
        where + b"/kit/paths/absolute": b"kit/paths/absolute",
        b"./kit/./paths/dots/": b"kit/paths/dots",
        b"kit/paths/new/and/deep": b"kit/paths/new/and/deep",
        b"kit/paths/\xff\xfe": b"kit/paths/\xff\xfe",
        b"kit/paths/-rf": b"kit/paths/-rf",
        b"kit/paths/a line\nand another": b"kit/paths/a line\nand another",
    }
    wanted: Tree = {}
    for path, place in places.items():
        send(lab, sandbox, archive([file(b"file", place)]), octets(path))
        below = place.removeprefix(b"kit/paths/") + b"/file"
        wanted[below] = file(below, place)
    got = {path: entry for path, entry in look(lab, sandbox, "kit/paths").items() if entry.kind != "directory"}
    expect_tree(got, wanted, "data", what="what came to paths of many forms")
    send(lab, sandbox, archive([directory(b"kit"), directory(b"kit/paths"), file(b"kit/paths/top", b"x")]), ".")
    there = look(lab, sandbox, "kit/paths")
    expect(b"top" in there, "what came to `.` is not in the working directory")
    run(lab, sandbox, "remove_tree", path="kit/paths")


@check(
    "SYNC-12",
    needs=SYNC,
    why="A host that asks for one report gets one file; for a directory it gets what is in it.",
    broken="sends a directory under its own name, or a file with the way to it",
    fix="Name members relative to a directory, and anything else by its base name.",
)
def what_is_sent_is_named_from_its_own_place(lab: Lab) -> None:
    """A directory is sent as its contents, a file or a link as one member of its own name; paths of any form."""
    sandbox, path = lab.sandbox, "kit/single"
    content = [
        directory(b"folder"),
        file(b"folder/report", b"the report", mode=0o640),
        link(b"folder/latest", b"report"),
        link(b"to-folder", b"folder"),
        file(b"folder/\xff \n-", b"strange"),
    ]
    plant(lab, sandbox, content, path)
    where = output_of(sandbox.execute(lab.command("directory"))).strip()
    for asked, entry in (
        (b"folder/report", file(b"report", b"the report", mode=0o640)),
        (b"folder/latest", link(b"latest", b"report")),
        (b"to-folder", link(b"to-folder", b"folder")),
        (b"folder/\xff \n-", file(b"\xff \n-", b"strange")),
    ):
        for place in (path.encode() + b"/" + asked, where + b"/" + path.encode() + b"/" + asked):
            got = fetch(lab, sandbox, octets(place))
            expect_tree(got, tree([entry]), "data", "target", "mode", what=f"syncOut of {asked!r}")
    for form in (f"{path}/folder", f"{path}/folder/", f"./{path}/./folder"):
        got = fetch(lab, sandbox, form)
        names = {b"report", b"latest", b"\xff \n-"}
        expect(set(got) == names, f"syncOut of {form!r} has the names {sorted(got)!r:.200}")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-13",
    needs=SYNC,
    why="A build writes beside its sources and into them; a file that it may not touch fails it.",
    broken="gives what it unpacks to the owner whom the archive names, or keeps it for itself",
    fix="Do not look at owners; make everything as the user that commands run as, or give it to him.",
)
def what_came_belongs_to_the_commands(lab: Lab) -> None:
    """What came belongs to the user that commands run as, who can change and remove it, whoever owned it before."""
    sandbox, path = lab.sandbox, "kit/owner"
    entries = [directory(b"folder", mode=0o700), file(b"folder/file", b"came", mode=0o600), link(b"link", b"folder")]
    send_tree(lab, sandbox, entries, f"{path}/came")
    run(lab, sandbox, "write_file", name=f"{path}/mine", text="mine")
    there = look(lab, sandbox, path)
    mine = there[b"mine"].owner
    for name in (b"came/folder", b"came/folder/file", b"came/link", b"came"):
        owner = there[name].owner
        expect(owner == mine, f"{name!r} belongs to user {owner}, and what a command writes to user {mine}")
    expect(mine != STRANGE_OWNER, "commands run as the very user that the kit has taken for nobody")
    run(lab, sandbox, "append", name=f"{path}/came/folder/file", text=" and changed")
    run(lab, sandbox, "write_file", name=f"{path}/came/folder/beside", text="x")
    there = look(lab, sandbox, path)
    changed = there[b"came/folder/file"].data
    expect(changed == b"came and changed", f"a command has appended to a file that came, which is {changed!r:.60} now")
    run(lab, sandbox, "remove_tree", path=path)
