"""The system calls that a sandboxed command does without, as a filter program for the kernel."""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence

from turnlog.contract import AgentError

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine → the column of its numbers, and how the kernel names it in a filter."""

_REFUSED = {  # name: (x86_64, aarch64); -1 where there is none
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "move_pages": (279, 239), "perf_event_open": (298, 241),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265),
    # keys of the host's keyring
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # the kernel itself
    "bpf": (321, 280), "userfaultfd": (323, 282), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
    "iopl": (172, -1), "ioperm": (173, -1), "fanotify_init": (300, 262), "lookup_dcookie": (212, 18),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "acct": (163, 89), "vhangup": (153, 58),
    # the machine's clock and name
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip

_ABSENT = {
    # Programs fall back to clone, whose flags a filter can read, and to ordinary reads and writes, which
    # the rules on files and sockets see.
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}  # fmt: skip

_CLONE, _IOCTL, _SOCKET = (56, 220), (16, 29), (41, 198)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*; that of time is beyond the reach of clone
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX: typing into the user's terminal

UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
_STREAM, _TCP = 1, 6
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16


def build_filter(families: Sequence[int], *, tcp_only: bool = False) -> bytes:
    """The program: what is not refused is allowed. ``families`` are those that a socket may be of, with
    ``tcp_only`` for TCP alone. Raises ``RuntimeUnavailable`` on a machine whose numbers are not known."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise AgentError(
            "RuntimeUnavailable", f"there is no system call filter for {machine}, only for x86_64 and aarch64"
        )
    column, architecture = _ARCHITECTURES[machine]
    program = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _KILL)]
    program += [_step(_LOAD, _NUMBER)]
    if column == 0:  # the x32 calls have the same names under other numbers
        program += [_step(_AT_LEAST, 0x40000000, 0, 1), _refuse(errno.ENOSYS)]
    for table, error in ((_REFUSED, errno.EPERM), (_ABSENT, errno.ENOSYS)):
        for numbers in table.values():
            if numbers[column] >= 0:
                program += [_step(_EQUAL, numbers[column], 0, 1), _refuse(error)]
    clone = [_load_argument(0), _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM)]
    ioctl = [_load_argument(1)]
    for request in _TERMINAL_INPUT:
        ioctl += [_step(_EQUAL, request, 0, 1), _refuse(errno.EPERM)]
    for numbers, body in ((_CLONE, clone), (_IOCTL, ioctl), (_SOCKET, _socket(families, tcp_only))):
        body = [*body, _step(_RETURN, _ALLOW)]
        program += [_step(_EQUAL, numbers[column], 0, len(body)), *body]
    program += [_step(_RETURN, _ALLOW)]
    return b"".join(program)


def _socket(families: Sequence[int], tcp_only: bool) -> list[bytes]:
    """Refuse every family but these. Of netlink only routes, which name look-ups ask for."""
    body: list[bytes] = []
    for family in families:
        checks: list[bytes] = []
        if family == NETLINK:
            checks = [_load_argument(2), _step(_EQUAL, 0, 1, 0), _refuse(errno.EPERM)]
        elif tcp_only:
            checks = [
                _load_argument(1),
                _step(_AND, 0xF),
                _step(_EQUAL, _STREAM, 1, 0),
                _refuse(errno.EACCES),
            ]
            # Multipath TCP is a stream too, and the rules on TCP ports do not hold for it.
            checks += [_load_argument(2), _step(_EQUAL, 0, 2, 0), _step(_EQUAL, _TCP, 1, 0)]
            checks += [_refuse(errno.EACCES)]
        checks.append(_step(_RETURN, _ALLOW))
        body += [_load_argument(0), _step(_EQUAL, family, 0, len(checks)), *checks]
    return [*body, _refuse(errno.EACCES)]


def _load_argument(index: int) -> bytes:
    return _step(_LOAD, _ARGUMENT + 8 * index)  # its lower half, on a little-endian machine


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
