"""What a read costs once a process has a connection; the C library decides, so a process of its own shows it."""

import subprocess
import sys

READS = 200
SCRIPT = f"""
import os, resource
from sandport_protocol.framing import LineSplitter

LineSplitter(1024)
read, write = os.pipe()

def read_small_messages():
    for _ in range({READS}):
        os.write(write, b"x")
        os.read(read, 256 * 1024)

read_small_messages()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
read_small_messages()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_reading_small_messages_maps_no_memory_anew() -> None:
    """By default glibc maps the 256 KiB that asyncio reads into anew for each read: a page fault for every message."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < READS // 4
