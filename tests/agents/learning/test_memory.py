"""Freed memory stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Page faults of ten arrays of 64 MB, each freed before the next, after one that is not counted.
PROGRAM = """
import resource, sys
import numpy as np
from agents.learning.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_arrays_made_again_and_again_take_no_new_pages() -> None:
    assert faults("kept") < faults("as it is") / 10
