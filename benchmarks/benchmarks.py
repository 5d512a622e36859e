"""Makes the package ``benchmarks`` importable from a script in it, ``python benchmarks/<name>.py``.

Python looks for imports in the folder of the script and finds this file first. It puts the checkout
and the modules of ``tests/helpers`` and ``examples`` in the folder's place, and the package in its
own.
"""

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = map(str, (ROOT, ROOT / "tests" / "helpers", ROOT / "examples"))
del sys.modules["benchmarks"]
import_module("benchmarks")
