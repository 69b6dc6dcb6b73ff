"""Who may use a switch, and how much of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one tenant may hold at a time; None: no limit but the switch's."""

    jobs: int | None = None
    workers: int | None = None
    slots: int | None = None


@dataclass(frozen=True)
class Tenant:
    """`operator`: sees and may change every tenant's jobs."""

    name: str
    limits: Limits = Limits()
    operator: bool = False


# Everybody, where the controller asks for no tokens.
ANYBODY = Tenant("", operator=True)
