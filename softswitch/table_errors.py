"""What can go wrong in a control operation, on tables, multicast groups and clone sessions alike."""

from __future__ import annotations


class TableError(ValueError):
    """A control operation that cannot be done. The table is as it was before."""


class EntryExists(TableError):
    """An entry with this key (and priority) is there already."""


class NoSuchEntry(TableError):
    """No entry has this key (and priority)."""


class TableFull(TableError):
    """The table has as many entries as it was declared for."""


class ConstTable(TableError):
    """Entries (or the default action) were declared const in the program."""


class BadEntry(TableError):
    """The key, action or parameters do not fit the table."""
