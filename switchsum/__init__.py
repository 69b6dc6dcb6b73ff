"""SwitchSum: gradient sums inside the network.

`torch.distributed.init_process_group("switchsum")` needs no import of this package: PyTorch loads its entry point. This module
is imported by every `import torch` beside it, so it imports nothing heavy itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchsum.gradient_hook import ddp_hook
    from switchsum.step_profiler import profile
    from switchsum.torch_backend import Statistics, statistics

__version__ = "0.1.0"
__all__ = ["Statistics", "__version__", "ddp_hook", "profile", "statistics"]


def __getattr__(name: str) -> Any:
    if name in ("Statistics", "statistics"):
        from switchsum import torch_backend

        return getattr(torch_backend, name)
    if name == "ddp_hook":
        from switchsum.gradient_hook import ddp_hook

        return ddp_hook
    if name == "profile":
        from switchsum.step_profiler import profile

        return profile
    raise AttributeError(f"module 'switchsum' has no attribute {name!r}")


if "torch.distributed" in sys.modules:  # where PyTorch was told not to look for entry points, this import does it
    from switchsum.autoload import register

    register()
