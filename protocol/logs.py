"""Log lines of every process: one line a state change, fields as key=value, nothing per token.

Written to standard error, where the launcher, a container and a terminal all look.
"""

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")


def configure(process: str, level: str) -> None:
    """Set up logging of this process. Raises ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r}: one of {', '.join(LEVELS)} is needed")
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format=f"%(asctime)s %(levelname).1s {process} %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
