"""What Ctrl-C does to the command ``parenvs`` while it is imported: one line, status 130.

A library leaves signals alone: nothing is done in another program that imports the package.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

INTERRUPTED = 130
"""Exit status after Ctrl-C, 128 and the signal's number."""
WORDS = "parenvs: interrupted"
"""The line of a command that was interrupted."""


def is_command(words: list[str]) -> bool:
    """Return whether the words, Python's own command line, run the command ``parenvs``."""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-X", "-W"):
            next(rest, None)
        elif word == "-m":
            return next(rest, "") == "parenvs"
        elif not word.startswith("-"):
            return Path(word).stem == "parenvs"
        elif word == "-c":
            break
    return False


def end_on_interrupt() -> None:
    """Let Ctrl-C end this process at once, if it is the command: nothing is open yet."""
    if is_command(sys.orig_argv) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise a KeyboardInterrupt again, as Python does."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{WORDS}\n".encode())
    os._exit(INTERRUPTED)
