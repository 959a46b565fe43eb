"""The healthy worker's sandboxes: each is a folder under the host's `stateDir`, with the programs that run in it."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .places import Place
from .programs import Program, StartFailed, fault_of, options_of
from .refusals import Cancelled, Refusal

if TYPE_CHECKING:
    from .healthy import Call, Healthy

Json = dict[str, Any]
_PAGE = 50
_WAIT_S = 0.2


class Leases:
    """The handlers of every method but the session's own; the name of each is its method's in snake case.

    Args:
        state_dir: Where sandboxes and what is known of them are kept.
        store_id: Names the folder in which a sandbox is made.
        worker: Answers, output and credit.
    """

    program_class: type[Program] = Program

    def __init__(self, state_dir: str, store_id: str, worker: Healthy) -> None:
        self.root = Path(state_dir, "sandboxes", store_id.encode().hex())
        self.used = Path(state_dir, "used-ids")
        self.store_id = store_id
        self.worker = worker
        self.attached: set[str] = set()
        self.held: dict[str, int] = {}
        """By what descriptor this worker holds each sandbox."""
        self.programs: dict[tuple[str, str], Program] = {}
        self.lock = threading.Lock()
        self.files = worker.files_class(self)
        self.ending = threading.RLock()
        """Of two ends of a sandbox at once the second waits for the first."""
        self.starting = threading.Lock()
        """The end of a sandbox waits for what is starting, and ends it; what starts later finds no sandbox."""

    # -------------------------------------------------------------- config

    def faults_of_config(self, config: Any) -> list[Json]:
        """What is wrong with a config, whose one key is `label`."""
        if not isinstance(config, dict):
            return [{"field": "config", "message": "must be an object"}]
        found = [{"field": f"config.{name}", "message": "there is no such key"} for name in config if name != "label"]
        if not isinstance(config.get("label", ""), str):
            found.append({"field": "config.label", "message": "must be a text"})
        return found

    def check_config(self, params: Json) -> None:
        """Raise where a config cannot be used."""
        for fault in self.faults_of_config(params.get("config", {})):
            raise Refusal("ConfigInvalid", f"{fault['field']}: {fault['message']}", detail={"field": fault["field"]})

    def validate_config(self, call: Call) -> Json:
        """The config with its defaults, or its faults."""
        config = call.params.get("config", {})
        if issues := self.faults_of_config(config):
            return {"issues": issues}
        return {"config": {"label": "plain"} | config}

    def probe(self, call: Call) -> Json:
        """Whether sandboxes can be made."""
        self.check_config(call.params)
        state_dir = self.used.parent
        writable = os.access(state_dir, os.W_OK)
        return {"checks": [{"name": "state directory", "ok": writable, "detail": str(state_dir)}]}

    # -------------------------------------------------------------- leases

    def acquire_lease(self, call: Call) -> Json:
        """Make a sandbox; what was made for a call that is cancelled meanwhile is removed again."""
        params = call.params
        self.check_config(params)
        self.check_egress(params.get("egress"))
        sandbox_id = params["sandboxId"]
        self.used.mkdir(exist_ok=True)
        try:
            (self.used / sandbox_id).touch(exist_ok=False)
        except FileExistsError:
            raise Refusal("InvalidParams", f"{sandbox_id} was used already: an id serves one create") from None
        place = self.make(sandbox_id)
        self.report(call, "the directory is there")
        now_ms = int(time.time() * 1000)
        expires_ms = self.expiry_of(now_ms, params["ttlMs"])
        place.write({"createdAtMs": now_ms, "expiresAtMs": expires_ms, "keep": params.get("keep", False)})
        self.tell_guard(place)
        if call.cancelled.is_set():
            self.remove(sandbox_id)
            raise Cancelled
        self.attached.add(sandbox_id)
        return self.lease_of(sandbox_id, params.get("egress"))

    def check_egress(self, egress: Json | None) -> None:
        """Raise where a grant cannot be enforced."""
        if egress is not None and egress["mode"] not in self.worker.capabilities["egress"]:
            raise Refusal("NotSupported", f"egress {egress['mode']!r} cannot be enforced", detail={"field": "egress"})

    def make(self, sandbox_id: str) -> Place:
        """Create a sandbox, its id and its store's with it."""
        place = self.place(sandbox_id)
        self.root.mkdir(parents=True, exist_ok=True)
        place.folder.mkdir()
        self.held[sandbox_id] = place.hold()
        self.tell_guard(place)
        place.running.mkdir()
        place.files.mkdir()
        return place

    def place(self, sandbox_id: str) -> Place:
        """Where a sandbox is, if it is."""
        return Place(self.root / sandbox_id)

    def expiry_of(self, now_ms: int, ttl_ms: int) -> int:
        """When a sandbox that is made now ends."""
        return now_ms + ttl_ms

    def tell_guard(self, place: Place) -> None:
        """Let the guard know of a sandbox, and read its record."""
        self.worker.guard.tell(b"s" + os.fsencode(place.folder))

    def report(self, call: Call, message: str) -> None:
        """Tell the host how far a call is."""
        self.worker.notify("progress", {"id": call.id, "message": message, "done": 1, "total": 2})

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        """The lease result of a sandbox that exists."""
        place = self.place(sandbox_id)
        facts = place.facts() or {}
        lease: Json = {
            "handle": sandbox_id,
            "workingDirectory": str(place.files),
            "shell": "/bin/sh",
            "localRoot": str(place.files),
            "expiresAtMs": facts.get("expiresAtMs"),
            "notes": ["nothing isolates this sandbox from its machine"],
        }
        return lease if egress is None else {**lease, "egress": {"mode": "all"}}

    def attach_lease(self, call: Call) -> Json:
        """Open a sandbox of an earlier worker, or of this one again."""
        self.check_config(call.params)
        sandbox_id = call.params["sandboxId"]
        place = self.place(sandbox_id)
        if call.params["handle"] != sandbox_id:
            raise Refusal("InvalidParams", "it is another sandbox's handle", detail={"field": "handle"})
        if not place.there:
            return {"state": "gone"}
        if not self.hold(place):
            return {"state": "gone"}
        facts = place.facts()
        if facts is None:  # half made or half ended by a worker that is gone
            self.remove(sandbox_id)
            return {"state": "gone"}
        if call.params.get("keep") is not None:
            place.write({**facts, "keep": call.params["keep"]})
        self.tell_guard(place)
        self.attached.add(sandbox_id)
        return {"state": "attached", "lease": self.lease_of(sandbox_id), "processesLost": self.has_lost(place)}

    def hold(self, place: Place) -> bool:
        """Say that this worker has a sandbox; False where it has gone meanwhile."""
        with self.lock:
            try:
                if place.folder.name not in self.held:
                    self.held[place.folder.name] = place.hold()
            except FileNotFoundError:
                return False
        if not place.there:  # its end had it until now
            self.forget(place.folder.name)
            return False
        return True

    def has_lost(self, place: Place) -> bool:
        """Whether what ran in a sandbox ended with a worker."""
        return place.take_lost()

    def exists(self, sandbox_id: str) -> bool:
        """Whether a sandbox is there and whole, whoever made it."""
        return self.place(sandbox_id).facts() is not None

    def list_leases(self, call: Call) -> Json:
        """One page of the sandboxes of this store, by id; half made and half ended ones too."""
        self.check_config(call.params)
        wanted = call.params.get("sandboxId")
        after = call.params.get("cursor") or ""
        names = [name for name in self.names() if name > after and wanted in (None, name)]
        page = []
        for name in names[:_PAGE]:
            facts = self.place(name).facts() or {}
            times = {member: facts.get(member) for member in ("createdAtMs", "expiresAtMs")}
            page.append({"sandboxId": name, "handle": name, **times})
        return {"leases": page, "nextCursor": names[_PAGE - 1] if len(names) > _PAGE else None}

    def names(self) -> list[str]:
        """The ids of everything that is there."""
        return sorted(path.name for path in self.root.glob("*"))

    def destroy_lease(self, call: Call) -> Json:
        """End a sandbox and everything in it."""
        sandbox_id = call.params["sandboxId"]
        with self.ending:
            if not self.place(sandbox_id).there:
                self.forget(sandbox_id)
                return {"state": "gone"}
            if self.exists(sandbox_id):
                self.check_attached(sandbox_id)
            self.remove(sandbox_id)
            return {"state": "destroyed"}

    def remove(self, sandbox_id: str) -> None:
        """Kill what runs in a sandbox, whoever started it, and remove its files."""
        place = self.place(sandbox_id)
        with self.ending:
            place.begin_end()
            self.end_programs(sandbox_id)
            self.end_strays(place)
            place.remove()
            self.forget(sandbox_id)

    def end_programs(self, sandbox_id: str) -> None:
        """Kill what this worker has started in a sandbox."""
        with self.starting, self.lock:
            mine = [key for key in self.programs if key[0] == sandbox_id]
            programs = [self.programs.pop(key) for key in mine]
        for program in programs:
            program.end()

    def end_strays(self, place: Place) -> None:
        """Kill what others started in a sandbox, and what has left its group."""
        place.kill()

    def forget(self, sandbox_id: str) -> None:
        """Let go of a sandbox that is gone."""
        self.attached.discard(sandbox_id)
        descriptor = self.held.pop(sandbox_id, None)
        if descriptor is not None:
            os.close(descriptor)

    def check_attached(self, sandbox_id: str) -> None:
        """Raise where this worker has not opened the sandbox."""
        if sandbox_id not in self.attached or not self.exists(sandbox_id):
            raise Refusal("NotAttached", f"{sandbox_id} is not attached to this worker", retry="now")

    # -------------------------------------------------------------- commands

    def execute(self, call: Call) -> Json:
        """Run a program to its end."""
        params = call.params
        data = base64.b64decode(params.get("stdin", ""))
        program = self.launch(params, f"execute {call.id!r}", keep_input=bool(data))
        call.on_cancel = program.kill
        try:
            if call.cancelled.is_set():
                program.kill()
            if data:
                program.writes.append(call)
                threading.Thread(target=program.write, args=(data, True, call, call.cancelled), daemon=True).start()
            if params.get("live"):
                result = self.follow(call, program, {})
            else:
                result = program.collect(params.get("outputLimitBytes", 1 << 20))
        finally:
            with self.lock:
                if program.reaped:  # else what it left in its group ends with the sandbox
                    self.programs.pop((params["sandboxId"], program.name), None)
        if call.cancelled.is_set() and program.killed:
            partial = {} if params.get("live") else {"partial": {n: program.partial(n) for n in program.streams}}
            raise Refusal("Cancelled", "the command was cancelled", dispatched="unknown", **partial)
        self.check_sandbox(params, program)
        return result

    def check_sandbox(self, params: Json, program: Program) -> None:
        """Raise where a program did not end by itself, but with its sandbox: what its result says is no truth then."""
        if not program.lost:
            return
        partial = {} if params.get("live") else {"partial": {n: program.partial(n) for n in program.streams}}
        raise Refusal("SandboxLost", "the sandbox ended during the command", dispatched="yes", **partial)

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        """Start a program in a sandbox that is there, and know of it; the refusal says what is missing."""
        with self.starting:
            self.check_attached(params["sandboxId"])
            program = self.start(params, name, keep_input=keep_input)
            self.know(params["sandboxId"], program)
        return program

    def start(self, params: Json, name: str, *, keep_input: bool) -> Program:
        """Start a program."""
        if params.get("user") is not None:
            raise Refusal("NotSupported", "commands run as the worker's own user", detail={"field": "user"})
        if fault := fault_of(params):
            raise Refusal("InvalidParams", fault, detail={"field": fault.split(" ")[0]})
        try:
            place = self.place(params["sandboxId"])
            options = options_of(params, place.files)
            name_of_mark, _, mark = place.mark.partition(b"=")
            options["env"][name_of_mark] = mark
            options["bound"] = place.bound
            return self.program_class(
                name, options, self.worker.guard, keep_input=keep_input, timeout_ms=params.get("timeoutMs")
            )
        except StartFailed as failure:
            raise Refusal(failure.condition, str(failure), detail={"path": failure.path}) from None

    def know(self, sandbox_id: str, program: Program) -> None:
        """Let whoever ends the sandbox find a program, in this worker and in a later one."""
        with self.lock:
            self.programs[sandbox_id, program.name] = program
        program.note_at(self.place(sandbox_id))

    def follow(self, call: Call, program: Program, offsets: dict[str, int]) -> Json:
        """Send output under credit until the program's end; its result, with counts only."""
        sent: Json = {}
        for name in program.streams:
            call.credit[name] = self.worker.limits["creditBytes"]
        senders = [
            threading.Thread(
                target=self.send_stream, args=(call, program, name, offsets.get(name, 0), sent), daemon=True
            )
            for name in program.streams
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        if call.cancelled.is_set() and not program.killed and len(sent) < len(senders):
            raise Cancelled
        return {**program.result(), **sent}

    def send_stream(self, call: Call, program: Program, name: str, offset: int, sent: Json) -> None:
        """Send one stream from an offset on, then its end mark; writes into `sent` what the result says of it."""
        stream = program.streams[name]
        end: str | None = None
        while end is None:
            room = self.wait_credit(call, program, name)
            if call.cancelled.is_set() and (call.method == "waitProcess" or not (room or program.killed)):
                return  # what follows a program lets go of it; and nobody may be left who takes the rest
            data = stream.read(offset, min(room, self.worker.limits["chunkBytes"]), wait_s=_WAIT_S if room else 0)
            if data:
                self.send_output(call, name, offset, data)
                offset += len(data)
                with self.worker.credit_changed:
                    call.credit[name] -= len(data)
            elif stream.ended_at(offset):
                end = stream.end
            elif not room and program.killed:
                end = "heldOpen"  # a host that takes nothing does not keep a killed command from its result
        if end is not None:
            self.send_end(call, name, offset, end)
            sent["stdout" if name == "pty" else name] = {"totalBytes": offset, "end": end}

    def wait_credit(self, call: Call, program: Program, name: str) -> int:
        """Room at the host for a stream; waited for until the call is cancelled or the program killed."""
        with self.worker.credit_changed:
            self.worker.credit_changed.wait_for(
                lambda: call.credit[name] > 0 or call.cancelled.is_set() or program.killed, _WAIT_S
            )
            return max(0, call.credit[name])

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        """Send one piece."""
        text = base64.b64encode(data).decode()
        self.worker.notify("output", {"id": call.id, "stream": name, "offset": offset, "data": text})

    def send_end(self, call: Call, name: str, offset: int, end: str) -> None:
        """Send the end mark of a stream."""
        self.worker.notify("output", {"id": call.id, "stream": name, "offset": offset, "end": end})

    # -------------------------------------------------------------- processes

    def start_process(self, call: Call) -> Json:
        """Start a program and come back."""
        params = call.params
        name = params["processId"]
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise Refusal("InvalidParams", f"processId {name[:64]!r} is none", detail={"field": "params.processId"})
        if params.get("pty") is not None and not self.worker.capabilities.get("pty"):
            raise Refusal("NotSupported", "there are no terminals here", detail={"field": "pty"})
        with self.lock:
            known = (params["sandboxId"], name) in self.programs
        if known:
            raise Refusal("InvalidParams", f"a process {name} is known already", detail={"field": "processId"})
        self.launch(params, name, keep_input=params.get("stdin", False))
        return {}

    def program_of(self, call: Call) -> Program:
        """The program that a call names."""
        self.check_attached(call.params["sandboxId"])
        with self.lock:
            program = self.programs.get((call.params["sandboxId"], call.params["processId"]))
        if program is None:
            raise Refusal("ProcessNotFound", f"no process {call.params['processId']} is known")
        return program

    def write_process(self, call: Call) -> Json:
        """Give a program input; answered when its pipe took the bytes."""
        data, program = base64.b64decode(call.params.get("data", "")), self.program_of(call)
        taken = program.write(data, call.params.get("end", False), call, call.cancelled)
        if taken < len(data) and call.cancelled.is_set():
            raise Cancelled
        return {"takenBytes": taken}

    def queue_write(self, call: Call) -> None:
        """Give a write its place behind those that came before; called in the order of the requests."""
        with self.lock:
            program = self.programs.get((call.params["sandboxId"], call.params["processId"]))
        if program is not None:
            program.writes.append(call)

    def signal_process(self, call: Call) -> Json:
        """Signal a program's group."""
        params, program = call.params, self.program_of(call)
        if params.get("resize") is not None:
            raise Refusal("NotSupported", "there are no terminals here", detail={"field": "resize"})
        if params.get("kill"):
            return {"delivered": program.kill()}
        return {"delivered": program.signal(params["signal"])}

    def wait_process(self, call: Call) -> Json:
        """Follow a program to its end."""
        program = self.program_of(call)
        offsets = {entry["stream"]: entry["offset"] for entry in call.params.get("fromOffset", [])}
        for name, stream in program.streams.items():
            if stream.base > offsets.get(name, 0):
                reason = f"output of {name} before {stream.base} is no longer kept"
                raise Refusal("OutputGap", reason, detail={"field": "fromOffset", "limit": stream.base})
            if offsets.get(name, 0) > stream.total:
                reason = f"{name} has {stream.total} bytes so far"
                raise Refusal("InvalidParams", reason, detail={"field": "fromOffset"})
        return self.follow(call, program, offsets)

    # -------------------------------------------------------------- files

    def sync_in(self, call: Call) -> Json:
        """Unpack an archive in a sandbox."""
        return self.files.sync_in(call)

    def sync_out(self, call: Call) -> Json:
        """Pack what is in a sandbox."""
        return self.files.sync_out(call)
