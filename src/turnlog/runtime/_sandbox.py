"""What the system can enforce on a command: bubblewrap, else landlock; nothing only by the user's word."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from turnlog.contract import AgentError, ExecutionEnv

from ._files import PROTECTED, Root, is_below
from ._seccomp import INET, INET6, NETLINK, UNIX, build_filter

SandboxLevel: TypeAlias = Literal["workspace", "landlock", "none"]

_SYSTEM = (
    "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/nix", "/gnu",
    "/sys/devices/system/cpu",
)  # fmt: skip
_SECRET = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d",
    "/etc/ssh", "/etc/ssl/private", "/etc/krb5.keytab", "/etc/NetworkManager", "/etc/wireguard",
)  # fmt: skip
"""Below ``_SYSTEM``, and of use to an intruder alone. As root a command could read them."""

_COMPANIONS = {
    ".cargo/bin": (".rustup",),
    ".local/bin": (".local/lib", ".local/pipx", ".local/share/pipx", ".local/share/uv"),
}
"""Folder of programs in the home → where the programs themselves are."""

PASSED = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TERM", "TZ", "USER")
"""Variables of the host that a command sees, where they are set; everything else stays outside."""

_READ_FILE, _READ_DIR, _EXECUTE, _WRITE_FILE, _TRUNCATE = 1 << 2, 1 << 3, 1 << 0, 1 << 1, 1 << 14
_ON_FILES = _READ_FILE | _EXECUTE | _WRITE_FILE | _TRUNCATE
_READ = _READ_FILE | _READ_DIR | _EXECUTE
_OLDEST_LANDLOCK = 3  # the first that stops a file outside from being cut to nothing


@dataclass(frozen=True, kw_only=True)
class Box:
    """How commands are started here. ``roots`` are for file actions, as a command sees the folders."""

    level: SandboxLevel
    workspace: str
    policy: ExecutionEnv
    roots: tuple[Root, ...]
    seccomp: bytes = b""
    mounts: tuple[str, ...] = ()
    landlock: dict[str, Any] | None = None
    bubblewrap: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def spec(
        self,
        argv: Sequence[str],
        cwd: str,
        variables: Mapping[str, str],
        *,
        proxy_port: int | None = None,
    ) -> dict[str, Any]:
        """What the keeper is told of a command."""
        limits = {"CORE": 0}
        if self.policy.max_memory is not None:
            limits["DATA"] = self.policy.max_memory
        if self.policy.max_file_size is not None:
            limits["FSIZE"] = self.policy.max_file_size
        boxed = self.level == "workspace"
        landlock = self.landlock
        if landlock is not None and proxy_port is not None:
            landlock = {**landlock, "ports": [proxy_port]}
        return {
            "argv": [*self._wrapping(cwd), *argv] if boxed else list(argv),
            "shown": argv[0],
            "env": {**self.environment, **self.policy.variables, **variables},
            "cwd": "/" if boxed else cwd,
            "limits": limits,
            "memory": self.policy.max_memory,
            "processes": self.policy.max_processes,
            "boxed": boxed,
            "seccomp": self.seccomp.hex(),
            "landlock": landlock,
        }

    def _wrapping(self, cwd: str) -> list[str]:
        return [self.bubblewrap, *self.mounts, *_guards(self.workspace, self.roots), "--chdir", cwd, "--"]


def find_boxes(
    level: SandboxLevel | Literal["auto"], workspace: str, policy: ExecutionEnv, scratch: str
) -> Iterator[Box | AgentError]:
    """The boxes that may do for ``level``, strictest first, to be tried; an error in place of one that this
    machine cannot do. Raises ``RuntimeUnavailable`` for folders that no sandbox can enclose."""
    places = _Places(workspace, policy, scratch)
    if level == "none":
        yield places.open_box()
        return
    places.check_enclosed()
    for name, make in (("workspace", places.bubblewrap_box), ("landlock", places.landlock_box)):
        if level in ("auto", name):
            try:
                yield make()
            except AgentError as error:
                yield error


def no_box(problems: Sequence[str]) -> AgentError:
    """Nothing is weakened without the user's word."""
    return AgentError(
        "RuntimeUnavailable",
        f"no sandbox can be set up here: {'; '.join(problems)}. Install bubblewrap (apt-get install "
        "bubblewrap, dnf install bubblewrap) and allow user namespaces, or use a kernel with landlock; "
        'LocalRuntime(…, level="none") runs commands without any',
    )


class _Places:
    """The folders of a policy, as they are on this machine."""

    def __init__(self, workspace: str, policy: ExecutionEnv, scratch: str) -> None:
        self.workspace, self.policy, self.scratch = workspace, policy, scratch
        self.home = os.path.realpath(os.path.expanduser("~"))
        self.writable = [self._root(name, "writable") for name in policy.writable_roots]
        self.readable = [self._root(name, "readable") for name in policy.readable_roots]
        self.toolchains = _toolchains(self.home, workspace)
        self.paths = os.environ.get("PATH") or os.defpath

    def _root(self, name: str, what: str) -> str:
        whole = os.path.join(self.workspace, os.path.expanduser(name))
        real = os.path.realpath(whole)
        if not os.path.isabs(os.path.expanduser(name)) and not is_below(real, self.workspace):
            raise AgentError(
                "RuntimeUnavailable", f"the {what} folder {name!r} leads out of the workspace, to {real}"
            )
        if not os.path.isdir(real):
            raise AgentError("RuntimeUnavailable", f"the {what} folder {name!r} is not a folder")
        return real

    def check_enclosed(self) -> None:
        """A sandbox around everything is none."""
        for folder in (self.workspace, *self.writable):
            for kept in (self.home, *_SYSTEM):
                if is_below(kept, folder):
                    raise AgentError(
                        "RuntimeUnavailable",
                        f"{folder} holds {kept}, which a sandbox has to keep commands out of; use a folder "
                        "for the work alone",
                    )

    def roots(self, *more: Root) -> tuple[Root, ...]:
        inside = any(is_below(self.workspace, root) for root in self.writable)
        found = [Root(self.workspace, self.workspace, inside)]
        found += [Root(root, root, True) for root in self.writable if root != self.workspace]
        found += [Root(root, root, False) for root in self.readable]
        return (*found, *more)

    def open_box(self) -> Box:
        passed = {name: os.environ[name] for name in (*PASSED, "HOME", "TMPDIR") if name in os.environ}
        return Box(
            level="none",
            workspace=self.workspace,
            policy=self.policy,
            roots=self.roots(),
            environment={"PATH": self.paths, **passed},
        )

    def bubblewrap_box(self) -> Box:
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            raise AgentError("RuntimeUnavailable", "bubblewrap (bwrap) is not installed")
        tmp = Root("/tmp", os.path.join(self.scratch, "tmp"), True)
        return Box(
            level="workspace",
            workspace=self.workspace,
            policy=self.policy,
            roots=self.roots(tmp),
            bubblewrap=bubblewrap,
            mounts=tuple(self._mounts()),
            seccomp=build_filter([UNIX, INET, INET6, NETLINK]),
            environment=self._environment(self.home, "/tmp"),
        )

    def landlock_box(self) -> Box:
        version = landlock_version()
        if version < _OLDEST_LANDLOCK:
            found = f"it has version {version}" if version > 0 else "it has none"
            raise AgentError(
                "RuntimeUnavailable", f"landlock {_OLDEST_LANDLOCK} of the kernel is needed; {found}"
            )
        if self.policy.network == "hosts" and version < 4:
            raise AgentError("RuntimeUnavailable", "landlock 4 is needed to allow hosts; use deny")
        families = {"deny": [], "hosts": [INET, INET6], "allow": [INET, INET6, NETLINK]}[self.policy.network]
        return Box(
            level="landlock",
            workspace=self.workspace,
            policy=self.policy,
            roots=self.roots(Root(f"{self.scratch}/tmp", f"{self.scratch}/tmp", True)),
            seccomp=build_filter(families, tcp_only=self.policy.network == "hosts"),
            landlock=self._landlock(version),
            environment=self._environment(f"{self.scratch}/home", f"{self.scratch}/tmp"),
        )

    def _environment(self, home: str, tmp: str) -> dict[str, str]:
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        return {"PATH": self.paths, **passed, "HOME": home, "TMPDIR": tmp}

    def _mounts(self) -> list[str]:
        args = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
        args += [] if self.policy.network == "allow" else ["--unshare-net"]
        args += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        for path in _SYSTEM:
            if os.path.islink(path):
                args += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                args += ["--ro-bind", path, path]
        for path in _SECRET if os.geteuid() == 0 else ():  # others may not read them anyway
            if os.path.isdir(path):
                args += ["--tmpfs", path]
            elif os.path.exists(path):
                args += ["--ro-bind", "/dev/null", path]
        args += ["--dev", "/dev", "--proc", "/proc", "--dir", "/run", "--dir", "/var"]
        args += ["--bind", f"{self.scratch}/tmp", "/tmp", "--symlink", "/tmp", "/var/tmp"]
        args += ["--bind", f"{self.scratch}/home", self.home]
        for path in (*self.toolchains, *self.readable):
            args += ["--ro-bind", path, path]
        for root in sorted(self.roots(), key=lambda root: len(root.shown)):
            if root.real not in self.readable:
                args += ["--bind" if root.writable else "--ro-bind", root.real, root.shown]
        resolver = os.path.realpath("/etc/resolv.conf")
        if self.policy.network == "allow" and not is_below(resolver, "/etc") and os.path.exists(resolver):
            args += ["--ro-bind", resolver, resolver]
        return [*args, "--remount-ro", "/"]

    def _landlock(self, version: int) -> dict[str, Any]:
        handled = (1 << (15 if version < 5 else 16)) - 1  # of version 5 on: device controls
        rules: list[tuple[str, int]] = [("/proc", _READ), ("/dev", _READ_DIR)]
        rules += [(path, _READ) for path in _SYSTEM if path != "/etc" and os.path.exists(path)]
        rules += [("/etc", _READ_DIR)]
        rules += [(f"/etc/{name}", _READ) for name in os.listdir("/etc") if f"/etc/{name}" not in _SECRET]
        rules += [(path, _READ) for path in (*self.toolchains, *self.readable, self.workspace)]
        rules += [(path, handled) for path in (*self.writable, f"{self.scratch}/tmp", f"{self.scratch}/home")]
        devices = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")
        rules += [(f"/dev/{name}", handled) for name in devices]
        return {
            "size": 8 if version < 4 else 16 if version < 6 else 24,
            "handled": handled,
            "ports_handled": 3 if self.policy.network != "allow" and version >= 4 else 0,
            "scoped": 3 if version >= 6 else 0,  # abstract sockets and signals
            "paths": rules,
            "ports": [],
            "on_files": _ON_FILES | (handled & 1 << 15),
        }


def _guards(workspace: str, roots: Sequence[Root]) -> list[str]:
    """Mounts over what must stay as it is in a writable workspace, as it is now: it may be new."""
    if not roots[0].writable:
        return []
    args: list[str] = []
    for name in PROTECTED:
        whole = os.path.join(workspace, name)
        real = os.path.realpath(whole)
        # A link out of the workspace leads to nothing that is writable, and must not be made visible.
        if not is_below(real, workspace) or not os.path.exists(real):
            continue
        folder = os.path.dirname(real)
        if folder != workspace and folder not in args:
            args += [
                "--bind",
                folder,
                folder,
            ]  # as a mount it cannot be renamed, and another put in its place
        args += ["--ro-bind", real, real]
    return args


def landlock_version() -> int:
    """Of the running kernel; below 1 when it has none."""
    return ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1)


def _toolchains(home: str, workspace: str) -> list[str]:
    """Folders outside of the system's that programs on PATH, and the Pythons in use, are installed in."""
    folders = [os.path.realpath(each) for each in (os.environ.get("PATH") or "").split(":") if each]
    wanted = [_installation(each, home) for each in folders]
    for programs, companions in _COMPANIONS.items():
        if os.path.join(home, programs) in folders:
            wanted += [os.path.join(home, each) for each in companions]
    interpreters = [sys.executable, os.path.join(workspace, ".venv", "bin", "python")]
    for each in interpreters:
        if os.path.exists(each):
            wanted.append(os.path.dirname(os.path.dirname(os.path.realpath(each))))
    wanted += [sys.prefix, sys.base_prefix]
    found: list[str] = []
    for each in sorted({os.path.realpath(each) for each in wanted}):
        hidden = not any(is_below(each, known) for known in (*_SYSTEM, workspace, *found))
        exposing = any(is_below(kept, each) for kept in (home, workspace, *_SYSTEM))
        if hidden and not exposing and os.path.isdir(each):
            found.append(each)
    return found


def _installation(folder: str, home: str) -> str:
    """The folder that a program folder belongs to: ``~/.pyenv`` of ``~/.pyenv/shims``. Folders that hold
    more than one installation are not made visible as a whole."""
    above = os.path.dirname(folder)
    shared = above in (home, os.path.join(home, ".local"), os.path.join(home, ".cargo"))
    own = os.path.basename(folder) in ("bin", "sbin", "shims", "condabin") and not shared
    return above if own and above != "/" else folder
