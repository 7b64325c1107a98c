"""A path, bytes or an address in; a part of a message out. What a file is, its bytes say."""

from ._fetch import fetch
from ._file import File, read_part

__all__ = ["File", "fetch", "read_part"]
