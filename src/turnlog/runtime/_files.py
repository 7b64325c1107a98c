"""Files beneath the folders of a policy. The kernel resolves each path, so no link leads out of them."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from turnlog.contract import AgentError, FileInfo

_SYS_OPENAT2 = 437
_BENEATH = 0x08 | 0x02  # RESOLVE_BENEATH, and no links of /proc that lead anywhere
_FORBIDDEN = {errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP}
PROTECTED = (".git/hooks", ".git/config", ".turnlog")
"""What a command in the workspace could use to have the user run something later, and our own folder."""


@dataclass(frozen=True)
class Root:
    """A folder that file actions may use: ``shown`` as a command sees it, ``real`` where it is."""

    shown: str
    real: str
    writable: bool


class Files:
    """The file actions of a runtime. Every method raises ``AgentError`` alone."""

    def __init__(self, workspace: str, roots: Sequence[Root], max_file_size: int | None) -> None:
        self._workspace = workspace
        self._roots = sorted(roots, key=lambda root: len(root.shown), reverse=True)
        self._max_file_size = max_file_size

    def read(self, path: str, offset: int, limit: int | None) -> bytes:
        if offset < 0 or (limit is not None and limit < 0):
            raise AgentError("RuntimeExecutionError", f"read {path!r}: offset and limit cannot be negative")
        root, rest = self._place(path)
        with _failing(path), root_fd(root.real) as top:
            # A pipe is opened without waiting for somebody who writes to it, and refused then.
            fd = open_beneath(top, rest, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                mode = os.fstat(fd).st_mode
                if not stat.S_ISREG(mode):
                    raise AgentError("RuntimeExecutionError", f"{path!r} is {_kind_words(mode)}")
                return _read_all(fd, offset, limit)
            finally:
                os.close(fd)

    def write(self, path: str, data: bytes) -> None:
        limit = self._max_file_size
        if limit is not None and len(data) > limit:
            raise AgentError("RuntimePermissionDenied", f"{path!r}: {len(data)} bytes, the limit is {limit}")
        root, rest = self._place(path, writing=True)
        with _failing(path), root_fd(root.real) as top:
            rest = _follow(top, rest)
            folder, name = os.path.split(rest)
            _make_folders(top, folder)
            with _folder(top, folder) as parent:
                self._refuse_protected(path, parent, name)
                _put(parent, name, data)

    def remove(self, path: str) -> None:
        root, rest = self._place(path, writing=True)
        folder, name = os.path.split(rest)
        with _failing(path), root_fd(root.real) as top, _folder(top, folder) as parent:
            self._refuse_protected(path, parent, name)
            if stat.S_ISDIR(os.stat(name or ".", dir_fd=parent, follow_symlinks=False).st_mode):
                os.rmdir(name or ".", dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

    def stat(self, path: str) -> FileInfo | None:
        root, rest = self._place(path)
        folder, name = os.path.split(rest)
        try:
            with _failing(path), root_fd(root.real) as top, _folder(top, folder) as parent:
                found = os.stat(name or ".", dir_fd=parent, follow_symlinks=False)
        except AgentError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                self._check_workspace()
                return None
            raise
        return self._info(_join(root.shown, rest), found)

    def list_files(self, path: str) -> list[FileInfo]:
        root, rest = self._place(path)
        with _failing(path), root_fd(root.real) as top, _folder(top, rest, listing=True) as folder:
            found: list[FileInfo] = []
            for name in sorted(os.listdir(folder)):
                try:
                    entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                found.append(self._info(_join(_join(root.shown, rest), name), entry))
            return found

    def _place(self, path: str, *, writing: bool = False) -> tuple[Root, str]:
        """The folder that a path is in, and the path below it."""
        if "\0" in path or not path:
            raise AgentError("RuntimeExecutionError", f"{path!r} cannot be the path of a file")
        whole = os.path.normpath(os.path.join(self._workspace, path))
        fitting = [root for root in self._roots if is_below(whole, root.shown)]
        if not fitting or not (os.path.isabs(path) or is_below(whole, self._workspace)):
            raise AgentError(
                "RuntimePermissionDenied", f"{path!r} is outside of the workspace and of the folders allowed"
            )
        root = fitting[0]  # the innermost
        if writing and not root.writable:
            raise AgentError("RuntimePermissionDenied", f"{path!r} is outside of the writable folders")
        return root, os.path.relpath(whole, root.shown)

    def _refuse_protected(self, path: str, parent: int, name: str) -> None:
        # Asked of the kernel: the path that was given may have led here through a link.
        whole = os.path.join(os.readlink(f"/proc/self/fd/{parent}"), name)
        for each in PROTECTED:
            guarded = os.path.join(self._workspace, each)
            if is_below(whole, guarded) or is_below(guarded, whole):
                raise AgentError(
                    "RuntimePermissionDenied",
                    f"{path!r} is not writable: what is there would run or hold outside of the sandbox",
                )

    def _check_workspace(self) -> None:
        if not os.path.isdir(self._workspace):
            raise gone(self._workspace)

    def _info(self, whole: str, found: os.stat_result) -> FileInfo:
        inside = is_below(whole, self._workspace)
        return FileInfo(
            path=os.path.relpath(whole, self._workspace) if inside else whole,
            kind=_kind(found.st_mode),
            size=found.st_size,
            modified=datetime.fromtimestamp(found.st_mtime, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
        )


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def gone(workspace: str) -> AgentError:
    return AgentError("RuntimeExecutionError", f"the workspace {workspace} is no longer there")


def open_beneath(top: int, path: str, flags: int) -> int:
    """``openat2``: a path that leads out of ``top``, through a link too, is refused with ``EXDEV``."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, _BENEATH)
    while True:
        fd = _libc().syscall(_SYS_OPENAT2, top, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # a rename meanwhile: the kernel asks to try again
            raise OSError(number, os.strerror(number), path)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@contextmanager
def root_fd(path: str) -> Generator[int]:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _folder(top: int, path: str, *, listing: bool = False) -> Generator[int]:
    flags = os.O_RDONLY if listing else os.O_PATH
    fd = open_beneath(top, path or ".", flags | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _failing(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise AgentError(
                "RuntimePermissionDenied", f"{path!r} leads out of the folders allowed, through a link"
            ) from error
        code = "RuntimePermissionDenied" if error.errno in _FORBIDDEN else "RuntimeExecutionError"
        raise AgentError(code, f"{path!r}: {error.strerror or error}") from error


def _follow(top: int, path: str) -> str:
    """The path of the file itself where ``path`` is a link to one beneath ``top``."""
    try:
        fd = open_beneath(top, path, os.O_PATH)
    except FileNotFoundError:
        return path
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        start = os.readlink(f"/proc/self/fd/{top}")
        return os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), start)
    finally:
        os.close(fd)


def _make_folders(top: int, path: str) -> None:
    parts = path.split("/") if path else []
    for count in range(1, len(parts) + 1):
        try:
            os.close(open_beneath(top, "/".join(parts[:count]), os.O_PATH | os.O_DIRECTORY))
        except FileNotFoundError:
            # It may be made meanwhile, or be a link that leads nowhere: opening it tells.
            with _folder(top, "/".join(parts[: count - 1])) as parent, suppress(FileExistsError):
                os.mkdir(parts[count - 1], dir_fd=parent)


def _put(parent: int, name: str, data: bytes) -> None:
    """Put a file in place whole: written without a name first, then renamed over what is there."""
    try:
        mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        mode = None
    beside = f".{name[:200]}.{os.urandom(4).hex()}.new"
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=parent)
        named = False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        fd = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=parent)
        named = True
    try:
        with open(fd, "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            if mode is not None:
                os.fchmod(fd, mode)
            os.fsync(fd)
            if not named:
                os.link(f"/proc/self/fd/{fd}", beside, dst_dir_fd=parent, follow_symlinks=True)
                named = True
        os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        if named:
            os.unlink(beside, dir_fd=parent)
        raise


def _read_all(fd: int, offset: int, limit: int | None) -> bytes:
    pieces: list[bytes] = []
    left = sys.maxsize if limit is None else limit
    while left and (piece := os.pread(fd, min(left, 1 << 20), offset)):
        pieces.append(piece)
        offset += len(piece)
        left -= len(piece)
    return b"".join(pieces)


def _join(folder: str, rest: str) -> str:
    return folder if rest in ("", ".") else os.path.join(folder, rest)


def _kind(mode: int) -> Literal["file", "directory", "link", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _kind_words(mode: int) -> str:
    return "a folder, not a file" if stat.S_ISDIR(mode) else "no ordinary file: a device, a pipe or a socket"
