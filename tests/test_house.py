"""The house rules of DESIGN section 1: who may import whom, and what a training host needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "p4src": set[str](),
    "protos": set[str](),
    "controller": {"protos", "p4src"},
    "host_agent": {"protos", "p4src"},
    "softswitch": set[str](),
    "bmv2_topologies": {"controller", "softswitch", "p4src"},
    "measure": {"host_agent", "p4src"},
}


def imported_parts(path: Path) -> set[str]:
    """Our own parts that a module imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "switchsum" else {node.module}
    return {name.split(".")[1] for name in names if name.startswith("switchsum.")}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_arrows_go_one_way(part: str) -> None:
    files = list((ROOT / part).glob("**/*.py"))
    assert files
    for path in files:
        assert imported_parts(path) <= MAY_IMPORT[part] | {part}, path


def test_no_module_is_called_after_nothing() -> None:
    names = {path.stem for part in (*MAY_IMPORT, "switchsum") for path in (ROOT / part).glob("**/*.py")}
    assert not names & {"utils", "util", "common", "helpers", "misc"}


def test_a_training_host_needs_neither_controller_nor_softswitch() -> None:
    """The host part and the backend load nothing of the extra "switch"."""
    program = (
        "import sys, switchsum.torch_backend, switchsum.host_agent.agent; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('p4', 'p4runtime_sh', 'IPython')"
        " or m.startswith(('switchsum.controller', 'switchsum.softswitch'))]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
