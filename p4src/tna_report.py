"""What a program takes of a Tofino, from the reports of its compiler: `resources.json`, `phv.json` and `power.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Use:
    """So many of so many."""

    used: int
    of: int

    def __str__(self) -> str:
        return f"{self.used} of {self.of}"


@dataclass(frozen=True)
class Fit:
    """One program on one chip. Memories and stateful ALUs are summed over the pipeline's stages; PHV containers by kind."""

    program: str
    target: str
    compiler: str
    stages: Use
    sram_blocks: Use
    tcam_blocks: Use
    stateful_alus: Use
    logical_tables: Use
    phv: dict[str, Use]  # "32-bit" and so on -> containers that match and action units can reach
    phv_bits: Use  # of these containers
    cycles: dict[str, int]  # gress -> clock cycles from its parser to its deparser
    stateful_by_stage: list[int]


def read(logs: Path, program: str) -> Fit:
    """The reports in the compiler's folder `pipe/logs`. Raises OSError without them, ValueError for what is none."""
    try:
        resources = json.loads((logs / "resources.json").read_text())
        phv = json.loads((logs / "phv.json").read_text())
        power = json.loads((logs / "power.json").read_text())
        return _fit(program, resources, phv, power)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{logs}: not the reports of p4c-barefoot -g ({type(error).__name__}: {error})") from None


def _fit(program: str, resources: dict[str, Any], phv: dict[str, Any], power: dict[str, Any]) -> Fit:
    mau = resources["resources"]["mau"]
    stages = mau["mau_stages"]
    count = int(mau["nStages"])

    def rows_by_columns(unit: str) -> int:
        return int(stages[0][unit]["nRows"]) * int(stages[0][unit]["nColumns"]) * count

    stateful = [len(stage["meter_alus"]["meters"]) for stage in stages]
    containers = {
        f"{group['width']}-bit": (int(group["width"]), int(group["units"]))
        for group in resources["resources"]["phv_containers"]["normal"]
    }
    used = Counter(f"{c['bit_width']}-bit" for c in phv["containers"] if c["container_type"] == "normal")
    return Fit(
        program=program,
        target=str(phv["target"]),
        compiler=str(resources["compiler_version"]),
        stages=Use(sum(1 for stage in stages if stage["logical_tables"]["ids"]), count),
        sram_blocks=Use(sum(len(stage["rams"]["srams"]) for stage in stages), rows_by_columns("rams")),
        tcam_blocks=Use(sum(len(stage["tcams"]["tcams"]) for stage in stages), rows_by_columns("tcams")),
        stateful_alus=Use(sum(stateful), int(stages[0]["meter_alus"]["nAlus"]) * count),
        logical_tables=Use(sum(len(stage["logical_tables"]["ids"]) for stage in stages), _LOGICAL_TABLES * count),
        phv={name: Use(used[name], units) for name, (_, units) in sorted(containers.items(), key=lambda item: item[1])},
        phv_bits=Use(
            sum(width * used[name] for name, (width, _) in containers.items()), sum(w * n for w, n in containers.values())
        ),
        cycles={str(item["gress"]): int(item["latency"]) for item in power["total_latency"]},
        stateful_by_stage=stateful,
    )


_LOGICAL_TABLES = 16  # of a stage; the reports do not say


def table(fits: Sequence[Fit]) -> str:
    """The fits side by side, as a table in Markdown."""
    rows: list[tuple[str, list[str]]] = [
        ("stages", [str(fit.stages) for fit in fits]),
        ("stateful ALUs", [str(fit.stateful_alus) for fit in fits]),
        ("stateful ALUs by stage", [" ".join(map(str, fit.stateful_by_stage)) for fit in fits]),
        ("SRAM blocks", [str(fit.sram_blocks) for fit in fits]),
        ("TCAM blocks", [str(fit.tcam_blocks) for fit in fits]),
        ("logical tables", [str(fit.logical_tables) for fit in fits]),
    ]
    rows += [(f"PHV, {kind} containers", [str(fit.phv[kind]) for fit in fits]) for kind in fits[0].phv]
    rows.append(("PHV, bits", [str(fit.phv_bits) for fit in fits]))
    rows += [(f"cycles, {gress}", [str(fit.cycles[gress]) for fit in fits]) for gress in fits[0].cycles]
    lines = [f"| | {' | '.join(fit.program for fit in fits)} |", f"|---|{'---|' * len(fits)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]
    return "\n".join(lines)


def to_json(fit: Fit) -> str:
    """For a file that load() reads."""
    return json.dumps(asdict(fit), indent=2) + "\n"


def load(path: Path) -> Fit:
    """What to_json() wrote."""
    fields = json.loads(path.read_text())
    for name in ("stages", "sram_blocks", "tcam_blocks", "stateful_alus", "logical_tables", "phv_bits"):
        fields[name] = Use(**fields[name])
    fields["phv"] = {kind: Use(**use) for kind, use in fields["phv"].items()}
    return Fit(**fields)
