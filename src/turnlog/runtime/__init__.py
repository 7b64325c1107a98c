"""Commands and files behind a policy: the runtime of this machine, and what runtimes share.

Everything is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._drain import drain as drain
    from ._local import LocalRuntime as LocalRuntime
    from ._sandbox import SandboxLevel as SandboxLevel
else:
    __getattr__, __dir__ = lazy(
        __name__, {"._drain": "drain", "._local": "LocalRuntime", "._sandbox": "SandboxLevel"}
    )
