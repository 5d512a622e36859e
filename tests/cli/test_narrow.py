"""What commands print on a terminal of 40 columns, without colors, and into a pipe."""

import os
import re
import struct
import subprocess
import sys

import pytest
from cases import each

fcntl, pty, termios = (pytest.importorskip(x) for x in ("fcntl", "pty", "termios"))
COLUMNS = 40
PLAN = ("plan", "vgg-19", "--cluster", "A", "--stages", "2", "--agent", "even", "-v")
TABLE = ("compare", *PLAN[1:6], "--agent", "even", "--agent", "pipedream")
COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)(?:;\d+)*m")
"""What makes a terminal change its color; bold and underlined are none."""
COMMAND = [sys.executable, "-m", "parenvs"]


def on_terminal(arguments, **environment):
    """What a command prints on a terminal of 40 columns."""
    own = {key: x for key, x in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**own, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # its end has closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(parts).decode()


@pytest.mark.thorough
@each("arguments", [PLAN, TABLE, ("plan", "--help")])
def test_narrow__no_line_is_wider_than_the_terminal(arguments):
    text = on_terminal(arguments)
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).replace("\r", "").split("\n")
    assert max(map(len, lines)) <= COLUMNS and len(lines) > 10
    assert any("…" in line for line in lines)  # what is cut says so


@pytest.mark.slow
@each("arguments", [PLAN, ("plan", "--help")])
def test_narrow__no_color_takes_the_colors_away(arguments):
    assert COLOR.search(on_terminal(arguments))
    assert not COLOR.search(on_terminal(arguments, NO_COLOR="1"))


@pytest.mark.slow
@each("arguments", [PLAN, TABLE])
def test_narrow__a_pipe_gets_whole_lines_without_colors(arguments):
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout and "…" not in done.stdout
    assert max(map(len, done.stdout.split("\n"))) > COLUMNS
