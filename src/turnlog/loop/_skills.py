"""Skills: folders of instructions and files that a model reads when it needs them. Their names stand in the
instructions from the start; what they hold is read by a tool, and so is in the log."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from turnlog.contract import AgentError, JsonObject, TextPart, decode_text, text_part
from turnlog.files import File
from turnlog.tools import Tool, ToolContext, ToolError

SKILL_FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
_LONGEST = 1_024
"""Characters of a description."""
_LARGEST = 1_000_000
"""Bytes of a file that a model may read."""
_MOST_FILES = 500

_HEAD = """\
# Skills
Folders of instructions for particular tasks. When a task fits a description, read that skill first, with \
the tool skill, and follow it."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill. ``hashes`` are those of its files, by their paths, where they may not change any more."""

    name: str
    description: str
    folder: Path
    hashes: Mapping[str, str] | None = None

    def files(self) -> list[str]:
        """Its files, by their paths below the folder. Raises ``ConfigInvalid`` for a link in it."""
        return sorted(_walk(self.folder))

    def read(self, path: str) -> bytes:
        """A file of the skill. No component of its path may be a link, nor lead out of the folder. Raises
        ``ToolError``."""
        data = _read_below(self.folder, path)
        if self.hashes is not None and self.hashes.get(path) != hashlib.sha256(data).hexdigest():
            raise ToolError(f"{path} of the skill {self.name} has changed since it was trusted; ask the user")
        return data


class Skills:
    """Skills by name; of two with one name the first counts."""

    def __init__(self, skills: Iterable[Skill] = ()) -> None:
        named: dict[str, Skill] = {}
        for skill in skills:
            named.setdefault(skill.name, skill)
        self._named = dict(sorted(named.items()))  # the same list every time: prompts are cached

    @classmethod
    def load(cls, *folders: str | os.PathLike[str]) -> Skills:
        """The skills in these folders: each is a skill, with a ``SKILL.md``, or holds folders of skills.
        Raises ``ConfigInvalid`` with the file and what is wrong with it."""
        return cls(skill for folder in folders for skill in find_skills(Path(folder), must_exist=True))

    def __len__(self) -> int:
        return len(self._named)

    def __iter__(self) -> Iterator[Skill]:
        return iter(self._named.values())

    def instructions(self, own: str | None) -> str | None:
        """``own`` instructions, followed by the list of skills."""
        if not self._named:
            return own
        lines = [f"- {skill.name}: {skill.description}" for skill in self]
        return "\n\n".join(filter(None, (own, "\n".join([_HEAD, *lines]))))

    def tools(self) -> list[Tool[..., Any]]:
        if not self._named:
            return []
        properties: JsonObject = {
            "name": {"type": "string", "enum": list(self._named), "description": "The skill."},
            "file": {"type": "string", "description": "A file of the skill; without it, its instructions."},
        }
        schema: JsonObject = {
            "type": "object",
            "properties": properties,
            "required": ["name"],
            "additionalProperties": False,
        }
        about = "Read the instructions of a skill, or one of its files."
        return [
            Tool.from_schema(
                "skill", about, schema, self._execute, idempotent=True, annotations={"read_only": True}
            )
        ]

    async def _execute(self, arguments: JsonObject, ctx: ToolContext) -> Any:
        skill = self._named[arguments["name"]]
        path = arguments.get("file") or SKILL_FILE
        data = skill.read(path)
        text = decode_text(data)
        if path != SKILL_FILE:
            return text if text is not None else [File.from_bytes(data, name=path).part()]
        _, body = split_front_matter(text or "")
        parts: list[TextPart] = [text_part(body.strip() or "(this skill has no instructions)")]
        if others := [name for name in skill.files() if name != SKILL_FILE]:
            listed = "\n".join(f"- {name}" for name in others)
            parts.append(text_part(f"Files of this skill, which the tool skill reads:\n{listed}"))
        return parts


SkillSource: TypeAlias = Skills | Sequence[str | os.PathLike[str]] | None
"""Where an agent has its skills from: ``Skills``, or a list of folders."""


def read_skills(given: Any) -> Skills:
    if given is None or isinstance(given, Skills):
        return given or Skills()
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise AgentError("ConfigInvalid", f"skills is {given!r}; pass a list of folders, or Skills.load(…)")
    return Skills.load(*given)  # pyright: ignore[reportUnknownArgumentType]


def find_skills(folder: Path, *, must_exist: bool = False) -> list[Skill]:
    """The skill that ``folder`` is, or those that it holds."""
    if (folder / SKILL_FILE).exists():
        return [read_skill(folder)]
    if not folder.is_dir():
        if must_exist:
            raise AgentError("ConfigInvalid", f"there is no folder {folder} with skills")
        return []
    return [read_skill(place.parent) for place in sorted(folder.glob(f"*/{SKILL_FILE}"))]


def read_skill(folder: Path) -> Skill:
    """Raises ``ConfigInvalid`` for a folder or a ``SKILL.md`` that is a link, and for bad front matter."""
    place = folder / SKILL_FILE
    if folder.is_symlink() or place.is_symlink():
        raise _wrong(place, "is reached through a link, which may lead anywhere; copy the skill")
    try:
        text = decode_text(_read_below(folder, SKILL_FILE))
    except ToolError as error:
        raise _wrong(place, f"cannot be read: {error}") from error
    if text is None:
        raise _wrong(place, "is no text")
    try:
        fields, _ = split_front_matter(text)
    except ValueError as error:
        raise _wrong(place, str(error)) from error
    name, description = fields.get("name", ""), " ".join(fields.get("description", "").split())
    if not _NAME.fullmatch(name):
        raise _wrong(place, f"has the name {name!r}; it is 1 to 64 of a-z, 0-9, - and _")
    if not 0 < len(description) <= _LONGEST:
        raise _wrong(place, f"has a description of {len(description)} characters; write 1 to {_LONGEST}")
    return Skill(name, description, folder)


def split_front_matter(text: str) -> tuple[dict[str, str], str]:
    """(the fields between the first two lines ``---``, the rest). Raises ``ValueError``."""
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        raise ValueError("does not begin with front matter: a line ---, name, description, a line ---")
    end = next((at for at in range(1, len(lines)) if lines[at].strip() == "---"), None)
    if end is None:
        raise ValueError("has front matter without an end: a second line --- is missing")
    fields: dict[str, str] = {}
    key = ""
    for number, line in enumerate(lines[1:end], 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0] in " \t-":
            if not key:
                raise ValueError(f"has an indented line {number} that belongs to nothing")
            fields[key] = f"{fields[key]} {line.strip()}".strip()
            continue
        key, colon, value = line.partition(":")
        key = key.strip()
        if not colon or not key:
            raise ValueError(f"has a line {number} in its front matter that is no field: {line[:60]!r}")
        fields[key] = _plain(value.strip())
    return fields, "\n".join(lines[end + 1 :])


def _plain(value: str) -> str:
    if value in (">", "|", ">-", "|-"):  # the text follows, indented
        return ""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def _walk(folder: Path) -> Iterator[str]:
    found = 0
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                raise _wrong(path, "is a link, which may lead out of the skill; copy what it leads to")
        for name in files:
            found += 1
            if found > _MOST_FILES:
                raise _wrong(folder, f"holds more than {_MOST_FILES} files; a skill is smaller")
            yield Path(place, name).relative_to(folder).as_posix()


def _read_below(folder: Path, path: str) -> bytes:
    """Opened step by step, without following a link: a check of the path beforehand can be raced."""
    words = path.split("/")
    if path.startswith("/") or any(word in ("", ".", "..") or "\0" in word for word in words):
        raise ToolError(f"{path!r} is no path inside the skill")
    steps = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(folder, os.O_RDONLY)
        for word in words:
            above, handle = handle, -1
            try:
                handle = os.open(word, steps, dir_fd=above)
            finally:
                os.close(above)
        with open(handle, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ToolError(f"{path} is no file")
            if about.st_size > _LARGEST:
                raise ToolError(
                    f"{path} has {about.st_size:,} bytes; a skill's file has at most {_LARGEST:,}"
                )
            return file.read(_LARGEST + 1)
    except IsADirectoryError:
        raise ToolError(f"{path} is no file") from None
    except OSError as error:
        raise ToolError(f"the skill has no file {path}: {error.strerror}") from error


def _wrong(place: Path, why: str) -> AgentError:
    return AgentError("ConfigInvalid", f"{place} {why}")
