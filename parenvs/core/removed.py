"""``REMOVED``: names that a user may still have, of things that this package no longer has.

A removed name ends in one line that says so and names the successor. Whoever removes something
that a user could name adds a row here, and asks ``refuse_removed`` where such names are read.
"""

from __future__ import annotations

from parenvs.errors import ParenvsError, shown

REMOVED: dict[str, dict[str, str]] = {
