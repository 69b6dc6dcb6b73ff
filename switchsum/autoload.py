"""Registers the backend when `import torch` runs (entry point group `torch.backends`), at no noticeable cost.

Every `import torch` in the environment comes through here, also those that never use this backend: so nothing heavy is
imported, and nothing that fails here may break them.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Any

CAPTURE = "SWITCHSUM_CAPTURE"  # STEPS:FOLDER, set by `switchsum bench capture`
PROFILE = "SWITCHSUM_PROFILE"  # a ProfilePlan as text, set by `switchsum profile`
LOADED = "loaded"  # a file of this name in the commands' folders: some process imported torch, and this package with it
CAPTURE_STOPPED = "stopped"  # and this one: recording met an error, which is in it


def register() -> None:
    """Make `init_process_group("switchsum")` known to torch.distributed."""
    try:
        import torch.distributed as dist  # not at the top: torch itself calls this while it is being imported

        if dist.is_available() and "switchsum" not in dist.Backend.backend_list:
            dist.Backend.register_backend("switchsum", _create, devices=["cpu", "cuda"])
    except Exception as error:  # an exception here would make `import torch` fail for everybody
        warnings.warn(f"the switchsum backend could not be registered with PyTorch: {error}", stacklevel=1)
    if wanted := os.environ.get(CAPTURE):
        try:
            from switchsum import bucket_recorder

            bucket_recorder.install(wanted)
        except Exception as error:  # of a folder that is gone, say, in a shell that a captured training left behind
            warnings.warn(f"switchsum bench capture cannot record this process: {error}", stacklevel=1)
    if wanted := os.environ.get(PROFILE):
        try:
            from switchsum import step_profiler

            step_profiler.install(wanted)
        except Exception as error:
            warnings.warn(f"switchsum profile cannot profile this process: {error}", stacklevel=1)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    from switchsum.torch_backend import create_process_group

    return create_process_group(store, rank, size, timeout)
