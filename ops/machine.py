"""What this machine calls itself, for whoever writes measurements down."""

import platform
from pathlib import Path


def cpu_name() -> str:
    """Return the processor's name, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
