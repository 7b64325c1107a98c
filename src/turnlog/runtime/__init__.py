"""Commands and files behind a policy: what runtimes share."""

from ._drain import drain

__all__ = ["drain"]
