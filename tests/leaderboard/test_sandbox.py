"""The sandbox: what hostile code does is stopped, named in one line, and leaves nothing behind."""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from cases import slow

from parenvs.errors import ParenvsError
from parenvs.leaderboard.sandbox import namespaces, runner
from parenvs.leaderboard.sandbox.child import Guard
from parenvs.leaderboard.sandbox.limits import Limits
from parenvs.leaderboard.sandbox.runner import run

pytestmark = pytest.mark.thorough

LIMITS = Limits(
    seconds=120, cpu_seconds=60, memory_mib=1024, file_mib=2, files=20, processes=12,
    result_mib=1, printed_kib=64,
)  # fmt: skip
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")
WRITE = "open({!r}, 'w').write('x')"
C = "import ctypes; c = ctypes.CDLL(None); "
HOSTILE = {
    "loop": ("while True: pass", "took more than 1 s of processor time"),
    "sleep": ("import time; time.sleep(600)", "took longer than 6 s"),
    "memory": ("bytearray(10 * 2**30)", "used more than 1,024 MiB of memory"),
    "prints": ("while True: print('x' * 2**16)", "printed more than 64 KiB"),
    "silent": ("import os; os._exit(0)", "ended without a result, with status 0"),
    "exits": ("raise SystemExit(3)", "raised SystemExit: 3"),
    "crash": (C + "c.abort()", "was ended by signal SIGABRT"),
    "swallowed": (
        "\ntry:\n open('../evil', 'w')\nexcept OSError: pass", "wrote outside of its folder"
    ),
    "large": ("\nfor i in range(9): open('f', 'ab').write(bytes(2**20))", "File too large"),
}  # fmt: skip

LONG = ("loop", "sleep", "prints", "exits", "silent", "swallowed")


@LINUX
@pytest.mark.parametrize("name", [*(name for name in HOSTILE if name not in LONG), *slow(*LONG)])
def test_run__names_what_hostile_code_did(name):
    """Each is stopped with one printable line; the folder is gone."""
    code, words = HOSTILE[name]
    changes = {"loop": {"cpu_seconds": 1}, "sleep": {"seconds": 6.0}}.get(name, {})
    outcome = run("builtins:exec", code, replace(LIMITS, **changes))
    assert words in outcome.fault, outcome
    assert outcome.fault.isprintable() and outcome.value is None
    assert not Path("/etc/evil").exists() and Path("/etc/passwd").exists()


@LINUX
def test_run__processes_of_a_library_are_stopped():
    """What goes around Python is seen from outside: forks in C, without end.

    Each fork holds memory, too, so that either limit may be the first that is met.
    """
    outcome = run("builtins:exec", C + "\nwhile True: c.fork()", LIMITS)
    assert outcome.fault in ("started more than 12 processes", "used more than 1,024 MiB of memory")


def test_run__a_value_comes_back():
    code = "__import__('json').loads('[1, {\"a\": [2.5, null]}]')"
    outcome = run("builtins:eval", code, LIMITS)
    assert (outcome.value, outcome.fault) == ([1, {"a": [2.5, None]}], "")
    assert outcome.seconds > 0


@pytest.mark.parametrize(
    ("code", "words"),
    [("[float('nan'), 10**400]", "NaN"), ("'x' * 2**21", "a result of more than 1 MiB")],
)
def test_run__a_result_is_plain_and_bounded(code, words):
    outcome = run("builtins:eval", code, LIMITS)
    assert words in outcome.fault and outcome.value is None


def test_run__leaves_no_folder_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run("builtins:exec", WRITE.format("mine"), LIMITS).fault == ""
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def walls():
    """What a process sees from inside the namespaces, with Python's guard gone around."""
    code = (
        "(lambda c, os: {'write': c.open(b'/usr/evil', 65, 0o644),"
        " 'connect': c.connect(c.socket(2, 1, 0), b'\\x02\\x00\\x00\\x50\\x7f\\x00\\x00\\x01'"
        " + bytes(8), 16), 'processes': [x for x in os.listdir('/proc') if x.isdigit()],"
        " 'secret': os.environ.get('SECRET'), 'root': os.listdir('/'),"
        " 'kernels': os.environ['NUMBA_CACHE_DIR'], 'home': os.environ['HOME'],"
        " 'mount': c.mount(b'none', b'/sandbox', b'tmpfs', 0, None),"
        " 'spaces': c.unshare(0x10000000)})"
        "(__import__('ctypes').CDLL(None), __import__('os'))"
    )
    os.environ["SECRET"] = "x"
    try:
        return run("builtins:eval", code, LIMITS)
    finally:
        del os.environ["SECRET"]


@LINUX
def test_namespaces__there_is_nothing_to_reach(walls):
    """No file can be written, nobody connected to, and no other process or secret seen."""
    if "namespaces" not in walls.isolation:
        pytest.skip("this system forbids namespaces")
    seen = walls.value
    assert seen["write"] == seen["connect"] == seen["mount"] == seen["spaces"] == -1
    assert len(seen["processes"]) <= 2 and seen["secret"] is None
    assert seen["kernels"] == seen["home"]  # or else numba writes them beside its sources
    assert "home" not in seen["root"] and "run" not in seen["root"]
    assert not Path("/usr/evil").exists()


@LINUX
def test_run__without_namespaces_limits_and_guard_hold():
    """Where the system forbids namespaces, what goes through Python is stopped all the same."""
    outcome = run("builtins:exec", WRITE.format("/etc/evil"), LIMITS, namespaces=False)
    assert "wrote outside of its folder" in outcome.fault
    assert "namespaces" not in outcome.isolation and "RLIMIT_AS" in outcome.isolation
    many = "\nfor i in range(200): open(f'f{i}', 'w').close()\nimport time; time.sleep(60)"
    outcome = run("builtins:exec", many, LIMITS, namespaces=False)
    assert outcome.fault == "wrote more than 20 files"


def test_guard__knows_inside_from_outside(tmp_path):
    guard = Guard(str(tmp_path))
    write = os.O_WRONLY | os.O_CREAT
    for path in ("a", "b/../a", os.devnull):
        guard("open", (str(tmp_path / path), "w", write))
    guard("open", ("/etc/passwd", "r", os.O_RDONLY))
    guard("open", (3, "w", write))  # open already
    assert guard.seen == ""
    (tmp_path / "link").symlink_to(tmp_path.parent)
    for path in (tmp_path / "../a", tmp_path / "link" / "a", f"{tmp_path}x"):
        with pytest.raises(PermissionError):
            guard("open", (str(path), None, write))
    with pytest.raises(PermissionError):
        guard("os.rename", (str(tmp_path / "a"), "/etc/a", -1, -1))
    assert guard.seen.startswith("wrote outside of its folder")  # the first is told


@pytest.mark.parametrize(
    ("event", "arguments", "words"),
    [
        ("os.remove", ("/etc/passwd", -1), "changed a file outside of its folder"),
        ("os.fork", (), "started another process (os.fork)"),
        ("os.system", ("true",), "started another process (os.system)"),
        ("subprocess.Popen", ("true", [], None, None), "started another process"),
        ("socket.connect", (None, ("127.0.0.1", 9)), "reached for the network"),
    ],
)
def test_guard__names_what_it_forbids(tmp_path, event, arguments, words):
    guard = Guard(str(tmp_path))
    with pytest.raises(PermissionError):
        guard(event, arguments)
    assert words in guard.seen


def test_limits__must_be_numbers_above_zero():
    with pytest.raises(ParenvsError, match="limit files must be a number above 0, not -1"):
        Limits(files=-1)
    with pytest.raises(ParenvsError, match="limit seconds"):
        Limits(seconds=float("nan"))
    assert Limits().words("memory_mib") == "4,096 MiB" and Limits().words("files") == "256"


def test_namespaces__only_outermost_folders_are_bound(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    names = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "link", tmp_path / "none"]
    found = namespaces._outermost([str(name) for name in names])
    assert found == [str(tmp_path / "a"), str(tmp_path / "link")]


def test_run__an_interruption_ends_the_process(monkeypatch):
    """Nothing runs on when the checker is interrupted."""
    started = []

    def interrupted(self):
        started.append(self.process)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner._Watched, "_fault", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("builtins:exec", "import time; time.sleep(60)", LIMITS)
    assert started[0].poll() is not None
