"""The filter of system calls: a list of those allowed, for seccomp(2), as a program of classic BPF.

A call that is not on the list fails with ENOSYS, as if the kernel did not have it, so that
libraries fall back on others; one that is on it with a forbidden argument fails with EPERM. Written
here, as the library of seccomp is not installed everywhere and its Python bindings need it. The
numbers are those of Linux's ``asm/unistd_64.h`` (x86-64) and ``asm-generic/unistd.h`` (AArch64).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Iterable

_ALLOWED = """
read:0:63 write:1:64 open:2: openat:257:56 close:3:57 stat:4: fstat:5:80 lstat:6:
newfstatat:262:79 statx:332:291 poll:7: ppoll:271:73 select:23: pselect6:270:72 lseek:8:62
mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214 mremap:25:216 msync:26:227 madvise:28:233
mincore:27:232 mlock:149:228 munlock:150:229 rt_sigaction:13:134 rt_sigprocmask:14:135
rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigsuspend:130:133 rt_sigtimedwait:128:137
rt_sigqueueinfo:129:138 sigaltstack:131:132 restart_syscall:219:128 ioctl:16:29 pread64:17:67
pwrite64:18:68 readv:19:65 writev:20:66 preadv:295:69 pwritev:296:70 preadv2:327:286
pwritev2:328:287 access:21: faccessat:269:48 faccessat2:439:439 pipe:22: pipe2:293:59
sched_yield:24:124 dup:32:23 dup2:33: dup3:292:24 pause:34: nanosleep:35:101
clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:
getitimer:36:102 setitimer:38:103 alarm:37: timer_create:222:107 timer_settime:223:110
timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 timerfd_create:283:85
timerfd_settime:286:86 timerfd_gettime:287:87 getpid:39:172 getppid:110:173 gettid:186:178
getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getresuid:118:148
getresgid:120:150 getpgrp:111: getpgid:121:155 getsid:124:156 setpgid:109:154 setsid:112:157
capget:125:90 fork:57: vfork:58: execve:59:221 execveat:322:281 exit:60:93 exit_group:231:94
wait4:61:260 waitid:247:95 kill:62:129 tkill:200:130 tgkill:234:131 uname:63:160 fcntl:72:25
flock:73:32 fsync:74:82 fdatasync:75:83 sync_file_range:277:84 truncate:76:45 ftruncate:77:46
fallocate:285:47 fadvise64:221:223 readahead:187:213 getdents:78: getdents64:217:61 getcwd:79:17
chdir:80:49 fchdir:81:50 rename:82: renameat:264:38 renameat2:316:276 mkdir:83: mkdirat:258:34
rmdir:84: creat:85: link:86: linkat:265:37 symlink:88: symlinkat:266:36 unlink:87: unlinkat:263:35
readlink:89: readlinkat:267:78 chmod:90: fchmod:91:52 fchmodat:268:53 umask:95:166 utime:132:
utimes:235: utimensat:280:88 futimesat:261: statfs:137:43 fstatfs:138:44 getxattr:191:8
lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13
sendfile:40:71 copy_file_range:326:285 getrlimit:97:163 setrlimit:160:164 prlimit64:302:261
getrusage:98:165 sysinfo:99:179 times:100:153 getpriority:140:141 setpriority:141:140
sched_getaffinity:204:123 sched_setaffinity:203:122 sched_getparam:143:121
sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
sched_getattr:315:275 getcpu:309:168 get_mempolicy:239:236 futex:202:98 futex_waitv:449:449
set_robust_list:273:99 get_robust_list:274:100 set_tid_address:218:96 rseq:334:293
membarrier:324:283 arch_prctl:158: epoll_create:213: epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232: epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284: eventfd2:290:19
signalfd4:289:74 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 connect:42:203
sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 sendmmsg:307:269 recvmmsg:299:243
getsockname:51:204 getpeername:52:205 getsockopt:55:209 shutdown:48:210 getrandom:318:278
close_range:436:436
"""
"""Calls with their numbers on x86-64 and AArch64, which lacks some.

Not there, among others: bpf, io_uring_*, perf_event_open, userfaultfd, keyctl, add_key,
request_key, ptrace, process_vm_*, pidfd_*, kcmp, mount and its like, chroot, unshare, setns,
clone3, kexec_*, modules, clocks that are set, memfd_create and memory or messages of System V,
which outlive who made them, splice and vmsplice, set*id, seccomp, setsockopt.
"""
_SPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_UNIX = 1
_SAFE_PRCTL = (3, 15, 16, 21, 23, 39, 0x53564D41)
"""GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, GET_NO_NEW_PRIVS, SET_VMA."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> column of the tables, and how the kernel calls it."""
_CHECKED = {"clone": (56, 220), "socket": (41, 198), "socketpair": (53, 199), "prctl": (157, 167)}
_LOAD, _EQUAL, _ABOVE, _FROM, _BITS, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_SET_SECCOMP, _FILTER = 22, 2
_Instruction = tuple[int, int, int, int]
"""Code, jumps if true and if false, constant."""


def is_known() -> bool:
    """Return whether the filter can be written for this machine."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES and sys.maxsize > 2**32


def install() -> None:
    """Filter the calls of this process and all that it starts from now on, for good.

    The process must have given up new privileges, and have one thread.

    Raises:
        OSError: the kernel or the machine has no such filters.
    """
    if not is_known():
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    code = b"".join(struct.pack("=HBBI", *line) for line in program(platform.machine()))
    text = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    library, zero = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong()
    if library.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), head, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls is refused")


def program(machine: str) -> list[_Instruction]:
    """Return the filter of a machine: checks of arguments first, then ranges of numbers."""
    column, architecture = _ARCHITECTURES[machine]
    lines: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM)
    for name, numbers in _CHECKED.items():
        if name == "clone":
            check = [(_BITS, 0, 1, _SPACES), refuse, allow]
        else:
            values = _SAFE_PRCTL if name == "prctl" else (_UNIX,)
            count = len(values)
            check = [(_EQUAL, count - i, 0, value) for i, value in enumerate(values)]
            check += [refuse, allow]
        check = [(_LOAD, 0, 0, _ARGUMENT), *check]
        lines += [(_EQUAL, 0, len(check), numbers[column]), *check]
    nothing = (_RETURN, 0, 0, _ERROR | errno.ENOSYS)
    for first, last in _ranges(allowed(machine).values()):
        lines += [(_FROM, 1, 0, first), nothing, (_ABOVE, 1, 0, last), allow]
    return [*lines, nothing]


def allowed(machine: str) -> dict[str, int]:
    """Return the calls that a machine is allowed whatever their arguments are, with numbers."""
    column = _ARCHITECTURES[machine][0]
    rows = (word.split(":") for word in _ALLOWED.split())
    return {name: int(numbers[column]) for name, *numbers in rows if numbers[column]}


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run."""
    result: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if result and number == result[-1][1] + 1:
            result[-1] = (result[-1][0], number)
        else:
            result.append((number, number))
    return result
