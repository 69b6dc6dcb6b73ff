"""How the P4Info of Tofino's programs differs from v1model's.

python -m tests.protocol.p4info_diff        the table of docs/tofino.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from switchsum.p4src import build_tna
from tests.protocol.switch_under_test import BUILD

REFERENCE = "switchsum_lanes_64"
_VALUES = re.compile(r"pair_\d+\.row_pair|row_v\d+")


def load(path: Path) -> p4info_pb2.P4Info:
    """The P4Info in a file of the compiler's."""
    p4info = p4info_pb2.P4Info()
    text_format.Parse(path.read_text(), p4info, allow_unknown_field=True)
    return p4info


def tables(p4info: p4info_pb2.P4Info) -> dict[str, object]:
    """Table -> all that an entry may say of it, by name."""
    names = {action.preamble.id: action.preamble.name for action in p4info.actions}
    return {
        table.preamble.name: (
            [(field.name, field.bitwidth, field.match_type) for field in table.match_fields],
            sorted(names[reference.id] for reference in table.action_refs),
            table.size,
            names.get(table.const_default_action_id),
            names.get(table.initial_default_action.action_id),
        )
        for table in p4info.tables
    }


def actions(p4info: p4info_pb2.P4Info) -> dict[str, list[tuple[int, str, int]]]:
    """Action -> its parameters."""
    return {
        action.preamble.name: [(param.id, param.name, param.bitwidth) for param in action.params] for action in p4info.actions
    }


def counters(p4info: p4info_pb2.P4Info) -> dict[str, object]:
    """Counter -> unit and size, or the table whose entries have one each."""
    names = {table.preamble.id: table.preamble.name for table in p4info.tables}
    found: dict[str, object] = {c.preamble.name: (c.spec.unit, c.size) for c in p4info.counters}
    return found | {c.preamble.name: (c.spec.unit, names[c.direct_table_id]) for c in p4info.direct_counters}


def entry_actions(p4info: p4info_pb2.P4Info) -> dict[str, list[tuple[int, str, int]]]:
    """Those that an entry of a table may name, as a controller writes them."""
    usable = {reference.id for table in p4info.tables for reference in table.action_refs}
    names = {action.preamble.name for action in p4info.actions if action.preamble.id in usable}
    return {name: params for name, params in actions(p4info).items() if name in names}


def registers(p4info: p4info_pb2.P4Info) -> dict[str, object]:
    """Register -> cells, and of how many such; those of values have one name."""
    cells = {register.size for register in p4info.registers}
    names = Counter(_VALUES.sub("*", register.preamble.name) for register in p4info.registers)
    return {name: (cells, number) for name, number in names.items()}


def table(stems: Sequence[str]) -> str:
    """What v1model's has, and what is the same, other, missing and more in each of `stems`; in Markdown."""
    reference = load(BUILD / f"{REFERENCE}.p4info.txtpb")
    lines = [f"| | {REFERENCE} | {' | '.join(stems)} |", f"|---|---|{'---|' * len(stems)}"]
    kinds = [("tables", tables), ("counters", counters), ("actions of tables", entry_actions), ("all actions", actions)]
    for name, kind in [*kinds, ("registers", registers)]:
        theirs = kind(reference)
        cells = [_difference(theirs, kind(load(BUILD / "tna" / f"{stem}.p4info.txtpb"))) for stem in stems]
        lines.append(f"| {name} | {len(theirs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _difference(theirs: Mapping[str, object], ours: Mapping[str, object]) -> str:
    shared = theirs.keys() & ours.keys()
    parts = [f"{sum(theirs[name] == ours[name] for name in shared)} the same"]
    for word, names in (
        ("other parameters", {name for name in shared if theirs[name] != ours[name]}),
        ("missing", theirs.keys() - ours.keys()),
        ("more", ours.keys() - theirs.keys()),
    ):
        if names:
            parts.append(f"{len(names)} {word}")
    return ", ".join(parts)


if __name__ == "__main__":
    print(table([build_tna.stem(chip, elements) for chip, elements in build_tna.PROGRAMS]))
