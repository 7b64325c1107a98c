"""Commands and files behind a policy: the runtime of this machine, and what runtimes share.

Everything is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._drain import drain as drain
    from ._local import LocalRuntime as LocalRuntime
    from ._probes import Probe as Probe
    from ._probes import probe_sandbox as probe_sandbox
    from ._sandbox import SandboxLevel as SandboxLevel
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "._drain": "drain",
            "._local": "LocalRuntime",
            "._probes": "Probe probe_sandbox",
            "._sandbox": "SandboxLevel",
        },
    )
