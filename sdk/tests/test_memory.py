"""What large messages took is kept while they come and given back afterwards; the C library decides, in its process."""

from __future__ import annotations

import subprocess
import sys

MIB = 1024 * 1024
SCRIPT = """
import resource
from sandport_sdk.memory import TRAFFIC_BYTES, MemoryTrimmer

MIB = 1024 * 1024

class Loop:
    def call_later(self, delay, callback, *arguments):
        self.over = lambda: callback(*arguments)
        return self

    def cancel(self):
        pass

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def frame():
    return [b"x" * (16 * MIB) for _ in range(3)]

def faults_of_a_frame():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    frame()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

loop = Loop()
trimmer = MemoryTrimmer(loop)
before = resident_bytes()
for _ in range(2):
    trimmer.count(TRAFFIC_BYTES)
    frame()
    print(faults_of_a_frame())
    held = frame()  # by a handler that is still at it when the look comes
    loop.over()
    print(resident_bytes() - before)
    del held
    loop.over()
    print(resident_bytes() - before)
"""


def test_frames_one_after_the_other_map_no_memory_anew_and_leave_none_behind() -> None:
    """microsoft/vscode-languageserver-node#544 (F18), also where one is still in use when it is first looked at."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    numbers = list(map(int, done.stdout.split()))
    for faults, while_held, after in (numbers[:3], numbers[3:]):
        assert faults < 3 * 4096 // 4
        assert while_held > 40 * MIB
        assert after < 4 * MIB
