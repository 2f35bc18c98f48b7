"""A process that asks at each of its system calls what is to become of it: go on, fail, or die.

`seccomp_unotify(2)`: the kernel stops the process before each call that its filter does not let pass, and asks who
holds a descriptor. So every call is met, in its order, whatever its name: one that is new to the core as well.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest
from helpers import PATIENCE

PASSING = (
    "brk madvise membarrier mmap mprotect mremap munmap "
    "clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time "
    "exit exit_group futex getegid geteuid getgid getpid getppid getrandom gettid getuid kill prctl prlimit64 rseq "
    "sched_getaffinity sched_yield set_robust_list tgkill wait4 waitid "
    "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack "
    "poll recvfrom recvmsg sendmsg sendto"
)
"""The calls that touch no file. (Sockets are how the process talks to the test; the core has none.)"""

# <linux/seccomp.h>, <linux/filter.h>, <sys/prctl.h>
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER = 1 << 3
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_USER_NOTIF = 0x7FC00000
SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1
AT_EMPTY_PATH = 0x1000
BPF_LOAD_CALL, BPF_JUMP_IF_EQUAL, BPF_RETURN = 0x20, 0x15, 0x06
NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, call, architecture, instruction, arguments
RESPONSE = struct.Struct("=QqiI")  # id, value, error, flags
DESCRIPTOR = struct.Struct("=QIIII")  # id, flags, number here, number there, flags there
SECCOMP_IOCTL_NOTIF_RECV = 0xC0002100 | NOTIFICATION.size << 16
SECCOMP_IOCTL_NOTIF_SEND = 0xC0002101 | RESPONSE.size << 16
SECCOMP_IOCTL_NOTIF_ADDFD = 0x40002103 | DESCRIPTOR.size << 16
SECCOMP_ADDFD_FLAG_SETFD = 1

libc = ctypes.CDLL(None, use_errno=True)
libseccomp: ctypes.CDLL | None = None
with suppress(OSError):
    libseccomp = ctypes.CDLL("libseccomp.so.2")

needs_traps = pytest.mark.skipif(libseccomp is None, reason="NOT TESTED: without libseccomp no system call can be met")


@dataclass(frozen=True)
class Fate:
    """What becomes of a call that may not go on: it fails with an `errno`, or the process dies before it."""

    error: int | None = None


DEATH = Fate()

Tell = Callable[..., Any]
"""Tells the test something, and returns the test's answer."""

Program = Callable[[Tell], Iterator[None]]
"""Its calls are met from its `yield` on."""


def trap(
    program: Program,
    decide: Callable[[int, str], Fate | None] = lambda number, call: None,
    listen: Callable[..., Any] = lambda *fact: None,
) -> list[str]:
    """Run a program in a forked process, and give the names of the calls that it came to.

    `decide` is asked at each call, by its number and name; `listen` hears what the program tells.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        _be_trapped(program, theirs)
    theirs.close()
    try:
        with ours:
            return list(_meet(pid, ours, decide, listen))
    finally:
        os.kill(pid, signal.SIGKILL)  # a zombie does not mind
        os.waitpid(pid, 0)


def _be_trapped(program: Program, line: socket.socket) -> NoReturn:
    def tell(*fact: Any) -> Any:
        line.send(pickle.dumps(fact))
        return pickle.loads(line.recv(1 << 16))

    try:
        steps = program(tell)
        next(steps)
        socket.send_fds(line, [b"trapped"], [_trap_this_thread()])
        next(steps, None)
    except BaseException:
        tell("broken", traceback.format_exc())
    finally:
        os._exit(0)


def _trap_this_thread() -> int:
    """Have this thread's calls met from now on; returns the descriptor of who meets them."""
    code = [(BPF_LOAD_CALL, 0, 0, 0)]
    for name in PASSING.split():
        code += [(BPF_JUMP_IF_EQUAL, 0, 1, _number(name)), (BPF_RETURN, 0, 0, SECCOMP_RET_ALLOW)]
    code.append((BPF_RETURN, 0, 0, SECCOMP_RET_USER_NOTIF))
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    program = struct.pack("@HP", len(code), ctypes.addressof(instructions))
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    flags = SECCOMP_FILTER_FLAG_NEW_LISTENER
    listener: int = libc.syscall(_number("seccomp"), SECCOMP_SET_MODE_FILTER, flags, program)
    assert listener >= 0, os.strerror(ctypes.get_errno())
    return listener


def _meet(
    pid: int, line: socket.socket, decide: Callable[[int, str], Fate | None], listen: Callable[..., Any]
) -> Iterator[str]:
    """Answer a process until it ends or is to die; gives the names of its calls."""
    listener = None
    number = 0
    try:
        while True:
            ready, _, _ = select.select([line] if listener is None else [line, listener], [], [], PATIENCE)
            assert ready, "the trapped process hangs"
            if line in ready:
                message, descriptors, _, _ = socket.recv_fds(line, 1 << 16, 1)
                if not message:
                    return
                if descriptors:
                    (listener,) = descriptors
                    continue
                what, *facts = pickle.loads(message)
                assert what != "broken", f"in the trapped process:\n{facts[0]}"
                line.send(pickle.dumps(listen(what, *facts)))
                continue
            notification = bytearray(NOTIFICATION.size)
            try:
                fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, notification)
            except FileNotFoundError:  # it ended
                return
            identity, _, _, call, _, _, *arguments = NOTIFICATION.unpack(notification)
            name = _name(call)
            if name == "newfstatat" and arguments[3] & AT_EMPTY_PATH:
                name = "fstat"  # as glibc asks for it
            number += 1
            yield name
            fate = decide(number, name)
            if fate == DEATH:
                os.kill(pid, signal.SIGKILL)  # before the descriptor is closed, or the call would just fail
                return
            if fate is not None and name == "close":
                _close(listener, identity, arguments[0])
            error, flags = (0, SECCOMP_USER_NOTIF_FLAG_CONTINUE) if fate is None else (-fate.error, 0)
            fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, RESPONSE.pack(identity, 0, error, flags))
    finally:
        if listener is not None:
            os.close(listener)


def _close(listener: int, identity: int, number: int) -> None:
    """Close the file that a stopped process has there: on Linux a close that fails is done. The number stays in use."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    addition = DESCRIPTOR.pack(identity, SECCOMP_ADDFD_FLAG_SETFD, nothing, number, os.O_CLOEXEC)
    fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, addition)
    os.close(nothing)


def _number(name: str) -> int:
    assert libseccomp is not None
    number: int = libseccomp.seccomp_syscall_resolve_name(name.encode())
    return number


def _name(number: int) -> str:
    assert libseccomp is not None
    resolve = libseccomp.seccomp_syscall_resolve_num_arch
    resolve.restype = ctypes.c_void_p
    address = resolve(0, number)
    assert address is not None
    return ctypes.string_at(address).decode()  # a few bytes that nobody frees
