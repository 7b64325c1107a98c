"""What a repository brings along for agents that work in it: instructions, skills, hooks. None of it takes
effect before the user has said so, and what the user said holds for these very bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from turnlog.contract import AgentError, decode_text, encode
from turnlog.system import TrustStore, config_folder

from ._command_hooks import read_hooks
from ._ports import Hooks
from ._skills import Skill, Skills, find_skills

ProjectKind: TypeAlias = Literal["instructions", "skill", "hooks"]
_SKILLS = (".agents/skills", ".claude/skills")
_SETTINGS = (".agents/settings.json", ".claude/settings.json")
_LARGEST = 200_000


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """Something that may take effect. ``content`` is what trust is given for: the file, or of a skill the
    names and hashes of all its files. ``about`` says what it does, for the question."""

    kind: ProjectKind
    path: Path
    content: bytes
    about: str
    value: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Project:
    """What was found in a folder and its parents up to the root of the repository. Read once: what is asked
    about is what takes effect."""

    root: Path
    files: tuple[ProjectFile, ...]
    problems: tuple[str, ...] = ()
    """What cannot be used, and why."""
    own: tuple[ProjectFile, ...] = ()
    """What the user has in folders of their own; it needs no question."""

    @classmethod
    def find(cls, folder: str | os.PathLike[str] = ".") -> Project:
        """``AGENTS.md`` of the repository's root down to ``folder``, skills and hooks of the root. Nothing is
        run, and nothing takes effect by this."""
        here = Path(folder).resolve()
        root = _root_of(here)
        problems: list[str] = []
        files = [*_instructions(root, here, problems)]
        files += _skills([root / name for name in _SKILLS], problems)
        files += _hooks([root / name for name in _SETTINGS], root, problems)
        mine = _skills([Path.home() / name for name in _SKILLS], problems) if root != Path.home() else []
        mine += _hooks([config_folder() / "settings.json"], here, problems)
        return cls(root, tuple(files), tuple(problems), tuple(mine))

    def untrusted(self, trust: TrustStore) -> list[tuple[ProjectFile, Literal["new", "changed"]]]:
        found: list[tuple[ProjectFile, Literal["new", "changed"]]] = []
        for file in self.files:
            status = trust.status(file.kind, file.path, file.content)
            if status != "trusted":
                found.append((file, status))
        return found

    def trust(self, trust: TrustStore) -> None:
        """Remember that the user trusts everything here, as it is. Raises ``OSError``."""
        for file in self.files:
            trust.trust(file.kind, file.path, file.content)

    def trusted(self, trust: TrustStore) -> Project:
        """The same with what is trusted alone."""
        left_out = {file.path for file, _ in self.untrusted(trust)}
        return replace(self, files=tuple(file for file in self.files if file.path not in left_out))

    def instructions(self, own: str | None = None) -> str | None:
        """``own`` instructions, followed by those of the project; the nearest file comes last."""
        texts = [
            f"# Instructions of the project, from {file.path.relative_to(self.root).as_posix()}\n{file.value}"
            for file in self.files
            if file.kind == "instructions"
        ]
        return "\n\n".join(filter(None, (own, *texts))) or None

    @property
    def skills(self) -> Skills:
        return Skills(file.value for file in (*self.files, *self.own) if file.kind == "skill")

    @property
    def hooks(self) -> Hooks:
        found = [file.value for file in (*self.own, *self.files) if file.kind == "hooks"]
        return Hooks(
            check_tool=[hook for hooks in found for hook in hooks.check_tool],
            check_result=[hook for hooks in found for hook in hooks.check_result],
            on_event=[hook for hooks in found for hook in hooks.on_event],
        )

    def parts(self, instructions: str | None = None) -> dict[str, Any]:
        """Arguments of ``Agent``: ``Agent(model, **Project.find().trusted(TrustStore()).parts())``."""
        return {
            "instructions": self.instructions(instructions),
            "skills": self.skills,
            "hooks": self.hooks,
        }


def _root_of(folder: Path) -> Path:
    """The root of the repository that ``folder`` is in, or ``folder``."""
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return place
    return folder


def _instructions(root: Path, here: Path, problems: list[str]) -> Iterator[ProjectFile]:
    below = here.relative_to(root).parts
    for depth in range(len(below) + 1):
        path = root.joinpath(*below[:depth], "AGENTS.md")
        data = _read(path, root, problems)
        if data is None:
            continue
        text = decode_text(data)
        if text is None:
            problems.append(f"{path} is no text")
        elif text.strip():
            about = f"adds {len(data):,} bytes to the instructions"
            yield ProjectFile("instructions", path, data, about, text.strip())


def _skills(folders: list[Path], problems: list[str]) -> list[ProjectFile]:
    found: list[ProjectFile] = []
    for folder in folders:
        for place in sorted(folder.glob("*/SKILL.md")):
            try:
                (skill,) = find_skills(place.parent)
                hashes = _hashes(skill)
            except AgentError as error:
                problems.append(error.message)
                continue
            fixed = replace(skill, hashes=hashes)
            about = f"offers the skill {skill.name}: {skill.description}"
            found.append(ProjectFile("skill", place.parent, encode(hashes), about, fixed))
    return found


def _hashes(skill: Skill) -> dict[str, str]:
    try:
        return {path: hashlib.sha256(skill.read(path)).hexdigest() for path in skill.files()}
    except AgentError:
        raise
    except Exception as error:  # a ToolError, whose words are for a model
        raise AgentError("ConfigInvalid", f"{skill.folder}: {error}") from error


def _hooks(settings: list[Path], folder: Path, problems: list[str]) -> list[ProjectFile]:
    found: list[ProjectFile] = []
    for path in settings:
        data = _read(path, path.parent.parent, problems)
        if data is None or b'"hooks"' not in data:
            continue
        try:
            hooks, others = read_hooks(data, where=str(path), cwd=folder)
        except AgentError as error:
            problems.append(error.message)
            continue
        if others:
            problems.append(f"{path} has hooks for {', '.join(others)}, which are not called")
        commands = [hook.__name__ for hook in (*hooks.check_tool, *hooks.check_result, *hooks.on_event)]  # pyright: ignore
        if commands:
            about = f"runs commands on this machine: {'; '.join(commands)}"
            found.append(ProjectFile("hooks", path, data, about, hooks))
    return found


def _read(path: Path, root: Path, problems: list[str]) -> bytes | None:
    """A file of the project; one that a link leads out of it is none."""
    try:
        if not path.is_file():
            return None
        if not path.resolve().is_relative_to(root.resolve()):
            problems.append(f"{path} is a link that leads out of {root}")
            return None
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
        return None
    if len(data) > _LARGEST:
        problems.append(f"{path} has more than {_LARGEST:,} bytes")
        return None
    return data
