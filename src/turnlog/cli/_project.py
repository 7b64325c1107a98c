"""The question about a folder's own instructions, skills and hooks: asked once for what they are now."""

from __future__ import annotations

import sys

import click

from turnlog.contract import AgentError
from turnlog.loop import Project
from turnlog.system import TrustStore

from ._app import err
from ._text import safe, short


def ask_about(folder: str, *, trusts: bool) -> Project:
    """The project, with what the user trusts of it: everything with ``trusts``, else what was trusted before
    or is agreed to now. Raises ``ConfigInvalid`` where there is something new and nobody to ask."""
    project, store = Project.find(folder), TrustStore()
    for problem in project.problems:
        err.print(f"[yellow]left out[/]: {safe(problem)}")
    found = project.untrusted(store)
    if not found:
        return project
    if not trusts:
        for file, status in found:
            word = "has changed since you trusted it" if status == "changed" else "is new to you"
            err.print(f"[bold]{safe(str(file.path))}[/] {word}: {short(file.about, 400)}")
        if not (sys.stdin.isatty() and err.is_terminal):
            names = ", ".join(str(file.path) for file, _ in found)
            raise AgentError(
                "ConfigInvalid",
                f"{names}: not trusted as it is now; read it, then add --trust-project to use it, or "
                "--no-project to leave it out",
            )
        if not click.confirm("Use them, now and from now on?", default=False, err=True):
            return project.trusted(store)
    try:
        project.trust(store)
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot write {store.path}: {error.strerror}") from error
    return project
