"""The healthy worker's sandboxes: each is a directory under the host's `stateDir`, with the programs that run in it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .programs import Program, StartFailed, fault_of, options_of

if TYPE_CHECKING:
    from .healthy import Call, Healthy

Json = dict[str, Any]
_PAGE = 50
_WAIT_S = 0.2


class Leases:
    """The handlers of every method but the session's own; the name of each is its method's in snake case.

    Args:
        state_dir: Where sandboxes and what is known of them are kept.
        store_id: Written beside each sandbox.
        worker: Answers, output and credit.
    """

    program_class: type[Program] = Program

    def __init__(self, state_dir: str, store_id: str, worker: Healthy) -> None:
        from . import healthy

        self.refusal, self.cancelled_error = healthy.Refusal, healthy.Cancelled
        self.root = Path(state_dir, "sandboxes")
        self.used = Path(state_dir, "used-ids")
        self.store_id = store_id
        self.worker = worker
        self.attached: set[str] = set()
        self.programs: dict[tuple[str, str], Program] = {}
        self.lock = threading.Lock()

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
            raise self.refusal(
                "ConfigInvalid", f"{fault['field']}: {fault['message']}", detail={"field": fault["field"]}
            )

    def validate_config(self, call: Call) -> Json:
        """The config with its defaults, or its faults."""
        config = call.params.get("config", {})
        if issues := self.faults_of_config(config):
            return {"issues": issues}
        return {"config": {"label": "plain"} | config}

    def probe(self, call: Call) -> Json:
        """Whether sandboxes can be made."""
        self.check_config(call.params)
        writable = os.access(self.root.parent, os.W_OK)
        return {"checks": [{"name": "state directory", "ok": writable, "detail": str(self.root.parent)}]}

    # -------------------------------------------------------------- leases

    def acquire_lease(self, call: Call) -> Json:
        """Make a sandbox; what was made for a call that is cancelled meanwhile is removed again."""
        params = call.params
        self.check_config(params)
        egress = params.get("egress")
        if egress is not None and egress["mode"] not in self.worker.capabilities["egress"]:
            raise self.refusal(
                "NotSupported", f"egress {egress['mode']!r} cannot be enforced", detail={"field": "egress"}
            )
        sandbox_id = params["sandboxId"]
        self.used.mkdir(exist_ok=True)
        try:
            (self.used / sandbox_id).touch(exist_ok=False)
        except FileExistsError:
            raise self.refusal("InvalidRequest", f"{sandbox_id} was used already: an id serves one create") from None
        (self.root / sandbox_id / "files").mkdir(parents=True)
        self.report(call, "the directory is there")
        facts = {"storeId": self.store_id, "createdAtMs": int(time.time() * 1000)}
        (self.root / sandbox_id / "lease.json").write_text(json.dumps(facts), encoding="utf-8")
        if call.cancelled.is_set():
            self.remove(sandbox_id)
            raise self.cancelled_error
        self.attached.add(sandbox_id)
        return self.lease_of(sandbox_id, egress)

    def report(self, call: Call, message: str) -> None:
        """Tell the host how far a call is."""
        self.worker.notify("progress", {"id": call.id, "message": message, "done": 1, "total": 2})

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        """The lease result of a sandbox that exists."""
        lease: Json = {
            "handle": sandbox_id,
            "workingDirectory": str(self.root / sandbox_id / "files"),
            "shell": "/bin/sh",
            "localRoot": str(self.root / sandbox_id / "files"),
            "notes": ["nothing isolates this sandbox from its machine"],
        }
        return lease if egress is None else {**lease, "egress": {"mode": "all"}}

    def attach_lease(self, call: Call) -> Json:
        """Open a sandbox of an earlier worker."""
        self.check_config(call.params)
        sandbox_id = call.params["sandboxId"]
        if not self.exists(sandbox_id) or call.params["handle"] != sandbox_id:
            return {"state": "gone"}
        lost = sandbox_id not in self.attached
        self.attached.add(sandbox_id)
        return {"state": "attached", "lease": self.lease_of(sandbox_id), "processesLost": lost}

    def exists(self, sandbox_id: str) -> bool:
        """Whether a sandbox is there, whoever made it."""
        return (self.root / sandbox_id / "lease.json").is_file()

    def list_leases(self, call: Call) -> Json:
        """One page of the sandboxes of this store, by id."""
        self.check_config(call.params)
        names = sorted(path.parent.name for path in self.root.glob("*/lease.json"))
        wanted = call.params.get("sandboxId")
        after = call.params.get("cursor") or ""
        names = [name for name in names if name > after and wanted in (None, name)]
        page = []
        for name in names[:_PAGE]:
            facts = json.loads((self.root / name / "lease.json").read_text(encoding="utf-8"))
            if facts["storeId"] == self.store_id:
                page.append({"sandboxId": name, "handle": name, "createdAtMs": facts["createdAtMs"]})
        return {"leases": page, "nextCursor": names[_PAGE - 1] if len(names) > _PAGE else None}

    def destroy_lease(self, call: Call) -> Json:
        """End a sandbox and everything in it."""
        sandbox_id = call.params["sandboxId"]
        if not self.exists(sandbox_id):
            return {"state": "gone"}
        self.check_attached(sandbox_id)
        self.remove(sandbox_id)
        return {"state": "destroyed"}

    def remove(self, sandbox_id: str) -> None:
        """Kill what runs in a sandbox and remove its files."""
        with self.lock:
            mine = [key for key in self.programs if key[0] == sandbox_id]
            programs = [self.programs.pop(key) for key in mine]
        for program in programs:
            program.end()
        self.attached.discard(sandbox_id)
        (self.root / sandbox_id / "lease.json").unlink(missing_ok=True)
        shutil.rmtree(self.root / sandbox_id, ignore_errors=True)

    def check_attached(self, sandbox_id: str) -> None:
        """Raise where this worker has not opened the sandbox."""
        if sandbox_id not in self.attached or not self.exists(sandbox_id):
            raise self.refusal("NotAttached", f"{sandbox_id} is not attached to this worker", retry="now")

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
            raise self.refusal("Cancelled", "the command was cancelled", dispatched="unknown", **partial)
        return result

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        """Start a program in a sandbox; the refusal says what is missing."""
        sandbox_id = params["sandboxId"]
        self.check_attached(sandbox_id)
        if params.get("user") is not None:
            raise self.refusal("NotSupported", "commands run as the worker's own user", detail={"field": "user"})
        if fault := fault_of(params):
            raise self.refusal("InvalidParams", fault, detail={"field": fault.split(" ")[0]})
        try:
            options = options_of(params, self.root / sandbox_id / "files")
            program = self.program_class(
                name, options, self.worker.guard, keep_input=keep_input, timeout_ms=params.get("timeoutMs")
            )
        except StartFailed as failure:
            raise self.refusal(failure.condition, str(failure), detail={"path": failure.path}) from None
        with self.lock:
            self.programs[sandbox_id, name] = program
        return program

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
            raise self.cancelled_error
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
            raise self.refusal(
                "InvalidParams", f"processId {name[:64]!r} is none", detail={"field": "params.processId"}
            )
        if params.get("pty") is not None and not self.worker.capabilities.get("pty"):
            raise self.refusal("NotSupported", "there are no terminals here", detail={"field": "pty"})
        with self.lock:
            known = (params["sandboxId"], name) in self.programs
        if known:
            raise self.refusal("InvalidParams", f"a process {name} is known already", detail={"field": "processId"})
        self.launch(params, name, keep_input=params.get("stdin", False))
        return {}

    def program_of(self, call: Call) -> Program:
        """The program that a call names."""
        self.check_attached(call.params["sandboxId"])
        with self.lock:
            program = self.programs.get((call.params["sandboxId"], call.params["processId"]))
        if program is None:
            raise self.refusal("ProcessNotFound", f"no process {call.params['processId']} is known")
        return program

    def write_process(self, call: Call) -> Json:
        """Give a program input; answered when its pipe took the bytes."""
        data, program = base64.b64decode(call.params.get("data", "")), self.program_of(call)
        taken = program.write(data, call.params.get("end", False), call, call.cancelled)
        if taken < len(data) and call.cancelled.is_set():
            raise self.cancelled_error
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
            raise self.refusal("NotSupported", "there are no terminals here", detail={"field": "resize"})
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
                raise self.refusal("OutputGap", reason, detail={"field": "fromOffset", "limit": stream.base})
        return self.follow(call, program, offsets)
