"""Runs a user's own command for a plan, and reads from what it prints how long a step took."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from parenvs.core.task import option
from parenvs.errors import ParenvsError
from parenvs.fields import Count, Index

LINES = 20
"""Last lines of what a command printed that are kept where it failed."""


@dataclass(frozen=True)
class Command:
    """A command that trains a few steps by a plan; the help of each field says what it is."""

    panel = "runs"
    run: str | None = option(
        None, "Run this command of the shell; {plan}, {export}: files of the plan.", main=True
    )
    seconds: str = option(r"step time: ([0-9.]+)", "Seconds of a step in its output, as a pattern.")
    oom_pattern: str = option(
        "(?i)out of memory|OutOfMemory|RESOURCE_EXHAUSTED", "Pattern of a plan that does not fit."
    )
    trials: Count = option(8, "Plans to run.")
    time_limit: float = option(900.0, "Seconds after which a run ends.")
    skip: Index = option(3, "Steps to leave out, the first ones.")

    def __post_init__(self) -> None:
        """Raise an error for a pattern that does not parse."""
        try:
            re.compile(self.oom_pattern)
            groups = re.compile(self.seconds).groups
        except re.error as error:
            raise ParenvsError(f"--seconds and --oom-pattern are patterns: {error}") from None
        if groups != 1:
            raise ParenvsError("--seconds: put the number, and nothing else, in brackets")

    def measured(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """Run the command, and return what is to be told of the plan.

        Args:
            files: name in the command's braces -> the file that takes its place.

        Returns:
            ``seconds``, the median of the steps; ``oom``; or ``failed`` with the last lines.
        """
        words = self.run or ""
        for name, path in files.items():
            words = words.replace(f"{{{name}}}", shlex.quote(os.fspath(path)))
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                words, shell=True, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            why = "no match of --seconds"
            try:
                if status := process.wait(self.time_limit):
                    why = f"exit status {status}"
            except subprocess.TimeoutExpired:
                status, why = 0, f"killed after {self.time_limit:g} s"
            finally:
                # What the command started may outlive it: its whole group ends.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            said = output.read().decode(errors="replace")
        if re.search(self.oom_pattern, said):
            return {"oom": True}
        steps = [float(x) for x in re.findall(self.seconds, said)][self.skip :]
        if steps and not status:
            return {"seconds": median(steps)}
        return {"failed": "\n".join([why, *said.splitlines()[-LINES:]])}
