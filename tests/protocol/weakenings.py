"""Rules that one could think to be enough, and that are not: each is p4src/state_machine.yaml, or a worker's rule, made weaker.

The model check must find what each breaks (test_model_check.py), and the comparison with the program that it is another
(test_slot_rules.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Table = dict[str, Any]


def rules_of(table: Table, *names: str) -> list[dict[str, Any]]:
    """The rules with these names. Raises KeyError."""
    by_name = {rule["name"]: rule for rule in table["rules"]}
    return [by_name[name] for name in names]


def remove(table: Table, *names: str) -> None:
    gone = rules_of(table, *names)
    table["rules"] = [rule for rule in table["rules"] if rule not in gone]


def forget(table: Table, condition: str) -> None:
    """No rule asks for this any more."""
    for rule in table["rules"]:
        rule["when"].pop(condition, None)


def stale_packets_join(table: Table) -> None:
    """A packet of an earlier phase is taken for one of the row's."""
    remove(table, "stale")
    for rule in table["rules"]:
        if rule["when"].get("phase") == "same":
            rule["when"]["phase"] = ["same", "earlier"]


def rows_know_no_epoch(table: Table) -> None:
    """Only a later phase empties a row."""
    remove(table, "new_epoch", "new_epoch_of_one_worker")
    forget(table, "epoch")


def earlier_epochs_are_admitted(table: Table) -> None:
    """The job table knows jobs, not epochs."""
    table["admission"] = [entry for entry in table["admission"] if entry["check"] != "job"]


def duplicates_are_added(table: Table) -> None:
    remove(table, "duplicate", "duplicate_that_asks", "repair")
    forget(table, "bit")


def tags_are_not_compared(table: Table) -> None:
    remove(table, "mismatch")
    forget(table, "tag")


def sums_are_not_repeated(table: Table) -> None:
    """Who lost the result asks in vain."""
    for rule in rules_of(table, "repair"):
        del rule["answer"]


def sums_are_not_multicast(table: Table) -> None:
    """Only the last worker gets the sum at once: no failure, the others ask for it."""
    for rule in rules_of(table, "completes"):
        rule["answer"] = {**rule["answer"], "to": "sender"}


def new_phases_add(table: Table) -> None:
    """The first packet of a phase does not overwrite what the row held."""
    for rule in rules_of(table, "new_phase"):
        rule["write"] = {**rule["write"], "values": "sum"}


def new_phases_keep_workers(table: Table) -> None:
    for rule in rules_of(table, "new_phase"):
        rule["write"] = {**rule["write"], "bitmap": "with_worker"}


def the_last_exponent_counts(table: Table) -> None:
    for rule in rules_of(table, "joins", "completes"):
        rule["write"] = {**rule["write"], "exponent": "packet"}


def one_row_a_slot(table: Table) -> None:
    """A phase overwrites the one before, whose sum a worker may still miss."""
    table["slot_rows"] = 1


def phases_of_three_bits(table: Table) -> None:
    """Eight phases later, a late packet looks new again."""
    table["phase_bits"] = 3


TABLE_WEAKENINGS: list[Callable[[Table], None]] = [
    stale_packets_join,
    rows_know_no_epoch,
    earlier_epochs_are_admitted,
    duplicates_are_added,
    tags_are_not_compared,
    sums_are_not_repeated,
    new_phases_add,
    new_phases_keep_workers,
    the_last_exponent_counts,
    one_row_a_slot,
    phases_of_three_bits,
]
HARMLESS = [sums_are_not_multicast]
