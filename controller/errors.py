"""What can go wrong on the controller's side; every message says what was wrong, where, and what to do.

ControllerError
    FabricError         the fabric's description
    TenantsError        the file of tenants and their tokens
    WrongProgram        the compiled switch program
    StateError          the file in which the controller keeps its state
    SwitchError         the switch: what follows, and whatever else it answers
        SwitchUnreachable   nothing answers there, or it stopped answering
        NotPrimary          another controller is in charge of it
        ElectionIdTaken     another live controller has our election id
        WriteRefused        it refused an update
"""


class ControllerError(RuntimeError):
    """Base of everything the controller raises about its surroundings."""


class FabricError(ControllerError):
    """The description of ports and hosts is wrong; the message names line and field."""


class TenantsError(ControllerError):
    """The file of tenants is wrong, or open to others; the message names line and field."""


class WrongProgram(ControllerError):
    """The compiled switch program is missing, damaged or of another version."""


class StateError(ControllerError):
    """The state file cannot be read or written, or is another controller's now; the message names it."""


class SwitchError(ControllerError):
    """The switch did not do what was asked."""


class SwitchUnreachable(SwitchError):
    """The switch does not answer."""


class NotPrimary(SwitchError):
    """Another controller is primary at this switch."""


class ElectionIdTaken(SwitchError):
    """A controller that lives, or whose end the switch has not noticed yet, has this election id."""


class WriteRefused(SwitchError):
    """The switch refused at least one update; the message names the first few."""
