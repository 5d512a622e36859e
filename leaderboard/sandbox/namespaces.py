"""Linux namespaces without privileges: a root of few folders, nothing writable but one, no network.

A process enters a user namespace and in it namespaces of mounts, processes, network, host name and
messages. The new root is an empty file system in memory, into which the folders that Python needs
are bound read-only; all others, sockets among them, are not there. The folder to write in is a file
system in memory with a size and a number of files. Where the system forbids any of it, nothing is
entered, and the error says what. See user_namespaces(7), pivot_root(2), mount_setattr(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from parenvs.leaderboard.sandbox import syscalls

WORK = "/sandbox"
"""Folder to write in, as processes in the namespaces see it."""
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/alternatives", "/etc/ssl/openssl.cnf", "/nix/store",
)  # fmt: skip
"""What programs of the system need."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_DETACH = 2
_PDEATHSIG, _DUMPABLE, _BOUND_DROP, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
_PIVOT_ROOT, _KEYCTL = {"x86_64": 155, "aarch64": 41}, {"x86_64": 250, "aarch64": 219}
_MOUNT_SETATTR = 442
_JOIN_SESSION_KEYRING = 1
_HIDDEN = ("keys", "key-users")
"""Files of ``/proc`` that tell of others."""
_NOBODY = 65534
_long = ctypes.c_ulong
_FEWEST_PIDS = 301  # the least that Linux takes


class Attributes(ctypes.Structure):
    """``struct mount_attr`` of mount_setattr(2)."""

    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user", ctypes.c_uint64),
    ]


def end_with_parent() -> None:
    """Have the kernel end this process when the thread that started it has ended."""
    _call("prctl", _PDEATHSIG, _long(signal.SIGKILL), _long(), _long(), _long())


def adopt() -> None:
    """Become the parent of all descendants whose own parents end, so that none gets away."""
    _call("prctl", _SUBREAPER, _long(1), _long(), _long(), _long())


def become_nobody(folder: str, readable: Iterable[str]) -> None:
    """Give up the superuser's identity, if this process has it and can read its files without.

    The number of the superuser's processes cannot be limited.

    Args:
        folder: of this process, which nobody else may write to.
        readable: what must be readable.
    """
    if os.geteuid() != 0:
        return
    try:
        os.seteuid(_NOBODY)
    except OSError:  # a namespace that has one user, as `unshare -Ur` makes
        return
    try:
        can_read = all(os.access(x, os.R_OK, effective_ids=True) for x in readable)
    finally:
        os.seteuid(0)
    if can_read:
        os.chown(folder, _NOBODY, _NOBODY)
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        _call(
            "prctl", _DUMPABLE, _long(1), _long(), _long(), _long()
        )  # or its own maps could not be written


def enter(folder: str, readable: Iterable[str], size_mib: int, files: int) -> int | None:
    """Enter the namespaces; the process that comes back with None is in them.

    Must be called while the process has one thread.

    Args:
        folder: an empty folder, on which the new root is mounted.
        readable: folders and files that are there, read-only.
        size_mib: of all files in ``WORK`` together.
        files: number of files in ``WORK``.

    Returns:
        None in the process inside; in the one outside the exit status of that, once it has ended.

    Raises:
        OSError: the system forbids it, as it says, and nothing was entered.
    """
    user, group = os.geteuid(), os.getegid()
    with suppress(OSError):  # keys of the caller's session; the filter forbids to ask for others
        _call("syscall", _KEYCTL[platform.machine()], _JOIN_SESSION_KEYRING, None)
    ear, mouth = os.pipe()
    probe = os.fork()  # a child enters, so that a failure leaves no trace
    if probe:
        os.close(mouth)
        status = exit_status(os.waitpid(probe, 0)[1])
        with open(ear, "rb") as stream:
            told = stream.read()
        if told == b"1":  # what runs inside cannot say this: both ends are closed there
            return status
        raise OSError(told.decode() or "the set-up was ended")
    try:
        end_with_parent()
        spaces = _NEWNS | _NEWUTS | _NEWIPC | _NEWPID | _NEWNET | _NEWCGROUP
        _call("unshare", _NEWUSER | spaces)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        first = os.fork()
        if first:
            os.close(mouth)
            os._exit(exit_status(os.waitpid(first, 0)[1]))
        end_with_parent()
        _new_root(folder, readable, size_mib, files)
        drop_privileges()
    except OSError as error:
        is_limit = error.errno == errno.ENOSPC
        words = "limit user.max_user_namespaces" if is_limit else str(error.strerror or error)
        os.write(mouth, words.encode())
        os._exit(1)
    os.write(mouth, b"1")
    os.close(mouth)
    os.close(ear)
    with suppress(OSError):  # whether it worked is seen from outside
        syscalls.install()  # of the process that waits inside, too
    worker = os.fork()  # the first process of a namespace ignores signals, so it only waits
    if worker == 0:
        return None
    while True:
        pid, status = os.wait()
        if pid == worker:
            os._exit(exit_status(status))  # and the kernel ends all others


def _new_root(folder: str, readable: Iterable[str], size_mib: int, files: int) -> None:
    """Make the root of what is readable, and the folder to write in."""
    _mount("none", "/", "", _REC | _PRIVATE)
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, "size=1m,nr_inodes=4k,mode=755")
    for path in _outermost([*SYSTEM, *readable]):
        target = folder + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            Path(target).touch()
        _mount(path, target, "", _BIND | _REC)
    os.makedirs(f"{folder}/dev", exist_ok=True)
    for name in _DEVICES:
        Path(f"{folder}/dev/{name}").touch()
        _mount(f"/dev/{name}", f"{folder}/dev/{name}", "", _BIND)
    os.makedirs(f"{folder}/proc", exist_ok=True)
    os.makedirs(folder + WORK, exist_ok=True)
    with suppress(OSError):  # containers hide parts of it; Python does without
        _mount("proc", f"{folder}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for name, value in (("kernel/pid_max", _FEWEST_PIDS), ("user/max_user_namespaces", 0)):
        with suppress(OSError):  # older kernels have one number for all
            Path(f"{folder}/proc/sys/{name}").write_text(str(value))
    for name in _HIDDEN:
        with suppress(OSError):
            _mount("/dev/null", f"{folder}/proc/{name}", "", _BIND)
    read_only = Attributes(set=1 | 2)  # and without the privileges of a file's owner
    _call(
        "syscall", _MOUNT_SETATTR, -100, folder.encode(), 0x8000, ctypes.byref(read_only),
        ctypes.c_size_t(ctypes.sizeof(read_only)),
    )  # fmt: skip
    options = f"size={size_mib}m,nr_inodes={files + 2},mode=700"
    _mount("tmpfs", folder + WORK, "tmpfs", _NOSUID | _NODEV, options)
    os.chdir(folder)
    _call("syscall", _PIVOT_ROOT[platform.machine()], b".", b".")
    _call("umount2", b".", _DETACH)
    os.chdir(WORK)


def drop_privileges() -> None:
    """Give up all capabilities, for good.

    Raises:
        OSError: the system forbids it.
    """
    for number in range(64):
        try:
            _call("prctl", _BOUND_DROP, _long(number), _long(), _long(), _long())
        except OSError:
            break  # no more of them
    _call("prctl", _NO_NEW_PRIVILEGES, _long(1), _long(), _long(), _long())
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist, without those within others, and where links lead, too."""
    real = {os.path.realpath(path) for path in paths}
    links = {path for path in paths if os.path.islink(path)}
    there = sorted(path for path in real | links if path != "/" and os.path.exists(path))
    result: list[str] = []
    for path in there:
        if not any(path.startswith(f"{other}/") for other in result):
            result.append(path)
    return result


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None)
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library.

    Raises:
        OSError: it fails.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def exit_status(status: int) -> int:
    """Return a status of wait(2) as shells have it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
