"""A package whose names are loaded when first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str], *more: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for ``package``, whose ``__all__`` is set too.

    ``homes`` is module → the names it has, in one text with spaces between; a module that begins with a dot
    is below ``package``. ``more`` are public names that the package defines itself.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    public = sorted([*home_of, *more])
    namespace = vars(sys.modules[package])
    namespace["__all__"] = public

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(home, package), name)
        return value

    return load, lambda: public
