"""The sandbox: what hostile code does is stopped, named in one line, and leaves nothing behind."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each, slow

from benchmarks import hostile
from parenvs.errors import ParenvsError
from parenvs.leaderboard.sandbox import namespaces, runner, syscalls, usage
from parenvs.leaderboard.sandbox.cgroup import NEEDED, Group
from parenvs.leaderboard.sandbox.child import Lint
from parenvs.leaderboard.sandbox.isolation import OPTION, WHOLE, Isolation, IsolationError
from parenvs.leaderboard.sandbox.limits import Limits
from parenvs.leaderboard.sandbox.runner import isolation, run

pytestmark = pytest.mark.thorough

LIMITS = Limits(
    seconds=120, cpu_seconds=60, memory_mib=1024, file_mib=2, files=20, processes=12,
    result_mib=1, printed_kib=64,
)  # fmt: skip
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def isolated():
    """What needs a system that isolates is left out where there is none."""
    missing = isolation().missing
    if missing:
        pytest.skip(f"this system gives no {', '.join(missing)}")


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

AROUND = (
    "lint found by gc, switched off", "os.open with dir_fd", "sqlite3 outside", "socket.sendmsg",
    "fork_exec without an event", "os.kill of the waiting process",
    "a daemon with its own session",
)  # fmt: skip
"""What audit events do not show, or only to a lint that is on."""


@LINUX
@pytest.mark.parametrize("name", [*(name for name in HOSTILE if name not in LONG), *slow(*LONG)])
def test_run__names_what_hostile_code_did(isolated, name):
    """Each is stopped with one printable line; the folder is gone."""
    code, words = HOSTILE[name]
    changes = {"loop": {"cpu_seconds": 1}, "sleep": {"seconds": 6.0}}.get(name, {})
    outcome = run("builtins:exec", code, replace(LIMITS, **changes))
    assert words in outcome.fault, outcome
    assert outcome.fault.isprintable() and outcome.value is None
    assert not Path("/etc/evil").exists() and Path("/etc/passwd").exists()


@LINUX
def test_run__processes_of_a_library_are_stopped(isolated):
    """What goes around Python is seen from outside: forks in C, without end.

    Each fork holds memory, too, so that either limit may be the first that is met.
    """
    outcome = run("builtins:exec", C + "\nwhile True: c.fork()", LIMITS)
    assert outcome.fault in ("started more than 12 processes", "used more than 1,024 MiB of memory")


def test_run__a_value_comes_back():
    code = "__import__('json').loads('[1, {\"a\": [2.5, null]}]')"
    outcome = run("builtins:eval", code, LIMITS, unsafe=True)
    assert (outcome.value, outcome.fault) == ([1, {"a": [2.5, None]}], "")
    assert outcome.seconds > 0


@pytest.mark.parametrize(
    ("code", "words"),
    [("[float('nan'), 10**400]", "NaN"), ("'x' * 2**21", "a result of more than 1 MiB")],
)
def test_run__a_result_is_plain_and_bounded(code, words):
    outcome = run("builtins:eval", code, LIMITS, unsafe=True)
    assert words in outcome.fault and outcome.value is None


def test_run__leaves_no_folder_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run("builtins:exec", WRITE.format("mine"), LIMITS, unsafe=True).fault == ""
    assert not list(tmp_path.iterdir())


@LINUX
def test_run__a_folder_is_removed_however_deep(monkeypatch, tmp_path):
    """No path of it is longer than the system takes, and nobody may list some of its folders."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = C + "\nfor i in range(9000): c.mkdir(b'd', 0o300), c.chdir(b'd')"
    outcome = run("builtins:exec", code, LIMITS, unsafe=True, namespaces=False)
    assert outcome.fault in ("", "wrote more than 20 files")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    for name in ("one", "two"):
        (tmp_path / "own" / name / "deep").mkdir(parents=True)
        (tmp_path / "own" / name / "link").symlink_to(tmp_path / "kept")
        (tmp_path / "own" / name).chmod(0o000 if name == "one" else 0o500)
    runner._empty(str(tmp_path / "own"))
    assert sorted(tmp_path.rglob("*")) == [
        tmp_path / "kept", tmp_path / "kept" / "file", tmp_path / "own",
    ]  # fmt: skip


@LINUX
@pytest.mark.parametrize("spaces", [True, False])
def test_run__nobody_else_may_write_to_its_folder(spaces):
    """Python looks there first for what it imports: who could, would run as the caller."""
    with runner._watched(LIMITS, (), spaces) as process:
        assert process.folder.stat().st_mode & 0o077 == 0
        assert process.isolation() is not None
        assert process.folder.stat().st_mode & 0o077 == 0
        assert process.folder.stat().st_uid in (os.getuid(), namespaces._NOBODY)


def test_run__reads_what_python_needs_of_where_it_is(tmp_path, monkeypatch):
    """A home that Python was installed to holds more."""
    for name in ("lib", "bin", "letters", ".ssh"):
        (tmp_path / name).mkdir()
    for name in ("prefix", "base_prefix", "exec_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path))
    own = {x for x in runner._python() if Path(x).is_relative_to(tmp_path)}
    assert own == {str(tmp_path / "bin"), str(tmp_path / "lib")}


CALLS = {"bpf": (321, 280), "io_uring_setup": (425, 425), "perf_event_open": (298, 241),
         "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
         "ptrace": (101, 117),
         "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435),
         "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "memfd_create": (319, 279),
         "shmget": (29, 194), "msgget": (68, 186), "vmsplice": (278, 75), "kexec_load": (246, 104),
         "open_by_handle_at": (304, 265), "chroot": (161, 51), "seccomp": (317, 277)}  # fmt: skip
"""Calls that nobody is allowed, with their numbers on x86-64 and AArch64."""


@pytest.fixture(scope="module")
def walls(isolated):
    """What a process sees from inside, with the lint gone around."""
    machine = ("x86_64", "aarch64").index(os.uname().machine)
    numbers = {name: pair[machine] for name, pair in CALLS.items()}
    code = (
        "(lambda c, error, os: {'write': c.open(b'/usr/evil', 65, 0o644),"
        " 'sockets': [c.socket(family, 3, 0) for family in (2, 10, 16, 17, 38, 40)],"
        " 'processes': [x for x in os.listdir('/proc') if x.isdigit()],"
        " 'secret': os.environ.get('SECRET'), 'root': os.listdir('/'),"
        f" 'clone': os.path.exists({str(ROOT)!r}) and os.listdir({str(ROOT)!r}),"
        " 'keys': open('/proc/keys').read(),"
        " 'kernels': os.environ['NUMBA_CACHE_DIR'], 'home': os.environ['HOME'],"
        f" 'calls': [[c.syscall(v, 0, 0, 0, 0, 0), error()] for v in {list(numbers.values())}],"
        " 'memory': c.open(b'/proc/1/mem', 2, 0), 'spaces': c.clone(0, 0, 0x10000011, 0)})"
        "(__import__('ctypes').CDLL(None, use_errno=True), __import__('ctypes').get_errno,"
        " __import__('os'))"
    )
    os.environ["SECRET"] = "x"
    try:
        return run("builtins:eval", code, LIMITS)
    finally:
        del os.environ["SECRET"]


@LINUX
def test_namespaces__there_is_nothing_to_reach(walls):
    """No file can be written, nobody connected to, and no other process or secret seen."""
    seen = walls.value
    assert seen["write"] == seen["memory"] == seen["spaces"] == -1
    assert set(seen["sockets"]) == {-1} and seen["keys"] == ""
    assert len(seen["processes"]) <= 2 and seen["secret"] is None
    assert seen["kernels"] == seen["home"]  # or else numba writes them beside its sources
    assert "home" not in seen["root"] and "run" not in seen["root"]
    assert not Path("/usr/evil").exists()


@LINUX
def test_namespaces__of_a_clone_only_the_package_is_there(walls):
    folders = {"parenvs", "agents", "datasets", "leaderboard"}
    assert set(walls.value["clone"] or folders) - {".venv"} <= folders


@LINUX
def test_syscalls__dangerous_ones_fail(walls):
    """They do not exist; without the filter they would fail in other ways, or not at all."""
    assert walls.value["calls"] == [[-1, errno.ENOSYS]] * len(CALLS)


@LINUX
def test_isolation__is_seen_from_outside(isolated):
    """What a stranger's code says of it counts for nothing."""
    told = json.dumps({"isolation": ["namespaces"], "head": "", "value": 7}).encode()
    code = f"import os; [os.write(fd, {told!r}) for fd in (1, 3)]; os._exit(0)"
    outcome = run("builtins:exec", code, LIMITS, unsafe=True, namespaces=False)
    assert [x for x in outcome.isolation.missing if x.startswith("namespaces")]
    outcome = run("builtins:exec", code, LIMITS)
    assert outcome.isolation == isolation() and "WITHOUT" not in outcome.isolation.words


@LINUX
@pytest.mark.parametrize("name", slow(*AROUND))
def test_run__what_passes_the_lint_reaches_nothing(isolated, name, monkeypatch):
    """``benchmarks/hostile.py`` tries these and others, also where namespaces are missing."""

    for module in (hostile.methods, hostile.policies):
        monkeypatch.setattr(module, "run", module.run)  # which it takes the place of
    assert hostile.ended("method", name, False)["reached"] == ""


def test_run__fails_closed(tmp_path):
    """Nothing of a stranger's runs where something is missing, unless that is asked for."""
    tmp_path.chmod(0o777)
    code = f"__import__('ctypes').CDLL(None).mkdir({os.fsencode(tmp_path / 'evil')!r}, 0o777)"
    with pytest.raises(IsolationError, match=r"no namespaces .*--unsafe-no-isolation") as caught:
        run("builtins:eval", code, LIMITS, namespaces=False)
    assert not list(tmp_path.iterdir()) and caught.value.isolation.missing
    with pytest.raises(IsolationError):
        run("no:thing", 1, LIMITS, namespaces=False)  # not even a name is looked up


@LINUX
def test_run__unsafe_has_limits_and_lint():
    outcome = run("builtins:exec", WRITE.format("/etc/evil"), LIMITS, (), True, namespaces=False)
    assert "wrote outside of its folder" in outcome.fault and outcome.isolation.missing
    many = "\nfor i in range(200): open(f'f{i}', 'w').close()\nimport time; time.sleep(60)"
    outcome = run("builtins:exec", many, LIMITS, (), True, namespaces=False)
    assert outcome.fault == "wrote more than 20 files"


DAEMON = """
import ctypes, os, time
c = ctypes.CDLL(None)
if c.fork() == 0:
    c.setsid()
    if c.fork() == 0:
        time.sleep(600)
    os._exit(0)
time.sleep(0.3)
"""


@LINUX
@pytest.mark.parametrize("spaces", slow(True, False))
def test_run__no_daemon_outlives_it(spaces):
    before = set(usage.processes())
    outcome = run("builtins:exec", DAEMON, LIMITS, unsafe=True, namespaces=spaces)
    assert outcome.fault == ""
    left = {pid: x for pid, x in usage.processes().items() if pid not in before}
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in left}
    assert not [p for p in commands.values() if p.exists() and b"sandbox.child" in p.read_bytes()]


@LINUX
@pytest.mark.slow
def test_run__processor_time_of_forks_counts_together():
    spin = C + "\nfor i in range(3): c.fork()\nwhile True: pass"
    outcome = run("builtins:exec", spin, replace(LIMITS, cpu_seconds=3), unsafe=True)
    assert outcome.fault == "took more than 3 s of processor time" and outcome.seconds < 20


@LINUX
def test_usage__shared_memory_counts_once_and_always():
    """Held by a descriptor alone, or by nobody; pages of forks are divided."""
    code = (
        "import ctypes, mmap, os, sys, time; c = ctypes.CDLL(None)\n"
        "c.shmat.restype = ctypes.c_void_p\n"
        "own = bytearray(b'x' * 2**25)\n"
        "kept = os.memfd_create('x'); os.write(kept, bytes(2**25))\n"
        "one = c.shmget(0, 2**25, 0o1600); at = c.shmat(one, 0, 0); ctypes.memset(at, 1, 2**25)\n"
        "c.shmdt(ctypes.c_void_p(at)); area = mmap.mmap(-1, 2**25)\n"
        "if os.fork() == 0: area.write(bytes(2**25)); os._exit(0)\n"
        "os.wait()\n"
        "for i in range(3):\n  if os.fork() == 0: time.sleep(60)\n"
        "print(one, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            segment = int(process.stdout.readline())
            pids = usage.family(process.pid)
            used = usage.memory(pids, pids, 0)
        finally:
            for pid in [x for x in usage.family(process.pid) if x != process.pid]:
                os.kill(pid, 9)
            process.kill()
            libc = __import__("ctypes").CDLL(None)
            libc.shmctl(segment, 0, None)
    assert len(pids) == 4
    assert 4 * 2**25 <= used < 4 * 2**25 + 2**26  # and not own memory four times
    assert usage.memory({2**30}, (), 0) == 0


def test_usage__what_is_swapped_counts(monkeypatch):
    """Where memory is short the kernel moves it out, which does not make it less."""
    told = {"status": {"RssAnon:": 3, "RssFile:": 4, "VmSwap:": 50},
            "smaps_rollup": {"Pss:": 5, "Pss_Shmem:": 2, "SwapPss:": 25}}  # fmt: skip
    monkeypatch.setattr(usage, "_fields", lambda path: told[path.rpartition("/")[2]])
    monkeypatch.setattr(usage, "_system_v", lambda makers: 0)
    assert usage.memory({2**30}, (), 100) == 57
    assert usage.memory({2**30}, (), 0) == 28


def test_cgroup__is_made_where_controllers_are_passed_on(tmp_path):
    """A folder that looks as the kernel's do; what is not passed on is passed over."""
    below, top = tmp_path / "a" / "b", tmp_path / "a"
    below.mkdir(parents=True)
    for folder, words in ((below, ""), (top, " ".join(NEEDED))):
        (folder / "cgroup.subtree_control").write_text(words)
        (folder / "cgroup.procs").touch()
    group = Group.made(2**20, 9, iter([tmp_path / "none", below, top]))
    assert group is not None and group.folder.parent == top
    assert (group.folder / "memory.max").read_text() == str(2**20)
    assert (group.folder / "pids.max").read_text() == "9"
    assert group.add(77) and (group.folder / "cgroup.procs").read_text() == "77"
    assert not group.has_overflowed
    (group.folder / "memory.events").write_text("oom 3\noom_kill 1\n")
    assert group.has_overflowed
    assert Group.made(1, 1, iter([below])) is None


def verdict_of(lines, architecture, number, argument=0):
    """Run a program of BPF on one call."""
    data, value, at = {0: number, 4: architecture, 16: argument}, 0, 0
    while True:
        code, yes, no, constant = lines[at]
        if code == 0x06:
            return constant
        if code == 0x20:
            value, step = data[constant], 0
        else:
            holds = {0x15: value == constant, 0x25: value > constant, 0x35: value >= constant,
                     0x45: bool(value & constant)}[code]  # fmt: skip
            step = yes if holds else no
        at += 1 + step


@each("machine, architecture", [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_syscalls__the_program_is_the_table(machine, architecture):
    """What is on the list passes, all else does not exist, and some arguments are forbidden."""
    lines, allowed = syscalls.program(machine), syscalls.allowed(machine)
    passes, missing, denied = 0x7FFF0000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EPERM
    column = ("x86_64", "aarch64").index(machine)
    numbers = {name: pair[column] for name, pair in syscalls._CHECKED.items()}
    for number in set(range(600)) - set(numbers.values()):
        wanted = passes if number in allowed.values() else missing
        assert verdict_of(lines, architecture, number) == wanted, number
    assert not set(allowed) & set(CALLS)
    assert not set(allowed.values()) & {pair[column] for pair in CALLS.values()}
    for name, argument, wanted in (
        ("clone", 0x11, passes), ("clone", 0x10000011, denied), ("clone", 0x40000011, denied),
        ("socket", 1, passes), ("socket", 2, denied), ("socket", 16, denied),
        ("socketpair", 40, denied), ("prctl", 15, passes), ("prctl", 4, denied),
    ):  # fmt: skip
        assert verdict_of(lines, architecture, numbers[name], argument) == wanted, name
    assert verdict_of(lines, 0x40000003, 1) == 0x80000000  # a call of 32 bits
    assert verdict_of(lines, architecture, 0x40000001) == missing  # and of x32


def container(*command):
    """Run Python in a user namespace with one user; an empty first word forbids further ones."""
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && " if command[0] == "" else ""
    words = [sys.executable, *(word for word in command if word)]
    shell = ["sh", "-c", forbid + 'exec "$@"', "sh"]
    if (
        not shutil.which("unshare")
        or subprocess.run(
            ["unshare", "-Ur", *shell, "true"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("no unshare(1) that may enter a user namespace")
    return subprocess.run(
        ["unshare", "-Ur", *shell, *words], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@LINUX
@pytest.mark.slow
def test_container__that_forbids_namespaces_runs_no_method():
    """Status 2 and a line that names what is missing; with the option it runs, and says so."""
    entry = str(ROOT / "leaderboard/scripts/pipeline-drawn/even.json")
    check = ("", "-m", "parenvs", "leaderboard", "check", entry)
    done = container(*check)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "not run: this system gives no namespaces (limit user.max_user" in done.stderr
    done = container(*check, "--unsafe-no-isolation")
    assert done.returncode == 0
    assert "even: isolation: " in done.stderr and "WITHOUT namespaces" in done.stderr


@LINUX
@pytest.mark.slow
def test_container__with_one_user_isolates(isolated):
    code = "from parenvs.leaderboard.sandbox.runner import isolation as f; print(f().missing)"
    assert container("-c", code).stdout == "()\n"


@LINUX
@pytest.mark.slow
def test_run__ends_with_its_caller(tmp_path):
    """A caller that is killed leaves no stranger's code behind."""
    code = (
        "from parenvs.leaderboard.sandbox.runner import run; "
        "run('builtins:exec', 'import time; time.sleep(300)', unsafe=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        family: set[int] = set()
        deadline = time.monotonic() + 60
        while len(family) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
            family = set(usage.family(process.pid))
        process.kill()
    while family & set(usage.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not family & set(usage.processes())


def test_isolation__rules_list_what_is_looked_at():
    text = (ROOT / "leaderboard" / "README.md").read_text(encoding="utf-8")
    rows = text.partition("| isolation | what is looked at |\n|:--|:--|\n")[2].partition("\n\n")[0]
    assert tuple(row.split("|")[1].strip() for row in rows.splitlines()) == WHOLE.held
    for path in ("leaderboard/README.md", "SECURITY.md"):
        assert OPTION in (ROOT / path).read_text(encoding="utf-8")


def test_isolation__words():
    whole, half = Isolation(("a", "b")), Isolation(("a",), ("b (forbidden)", "c"))
    assert (whole.words, half.words) == ("a, b", "a; WITHOUT b (forbidden), c")
    assert Isolation((), ("b",)).words == "none; WITHOUT b"
    assert "no b (forbidden), no c" in str(IsolationError(half))


def test_lint__knows_inside_from_outside(tmp_path):
    lint = Lint(str(tmp_path))
    write = os.O_WRONLY | os.O_CREAT
    for path in ("a", "b/../a", os.devnull):
        lint("open", (str(tmp_path / path), "w", write))
    lint("open", ("/etc/passwd", "r", os.O_RDONLY))
    lint("open", (3, "w", write))  # open already
    assert lint.seen == ""
    (tmp_path / "link").symlink_to(tmp_path.parent)
    for path in (tmp_path / "../a", tmp_path / "link" / "a", f"{tmp_path}x"):
        with pytest.raises(PermissionError):
            lint("open", (str(path), None, write))
    with pytest.raises(PermissionError):
        lint("os.rename", (str(tmp_path / "a"), "/etc/a", -1, -1))
    assert lint.seen.startswith("wrote outside of its folder")  # the first is told


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
def test_lint__names_what_it_forbids(tmp_path, event, arguments, words):
    lint = Lint(str(tmp_path))
    with pytest.raises(PermissionError):
        lint(event, arguments)
    assert words in lint.seen


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
        run("builtins:exec", "import time; time.sleep(60)", LIMITS, unsafe=True)
    assert started[0].poll() is not None
