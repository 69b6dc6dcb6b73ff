"""What can go wrong on the host side, as one small family: every message says what was wrong, where, and what to do.

SwitchSumError
    ControllerUnreachable   no controller at that address, or it went away
    NotTrusted              controller and host do not accept each other: TLS, a certificate, a token
    JoinRefused             the controller said no, and why
        SwitchFull          it has no slots left, or no job number
    EpochEnded              the job is over: a lost worker, a mismatch, a lost switch, a lost controller
    TransportError          this host's sockets
    CollectiveMismatch      the ranks sum different things
    SwitchSilent            no answer from the switch
    PeersMissing            the switch answers, other ranks do not come
    PeersLost               without the switch: the ranks do not reach each other either
"""


class SwitchSumError(RuntimeError):
    """Base of everything this package raises about a job."""


class ControllerUnreachable(SwitchSumError):
    """Nothing answers at the controller's address, or it stopped answering."""


class NotTrusted(SwitchSumError):
    """Controller and host do not accept each other; the sentence says which of them misses what."""


class JoinRefused(SwitchSumError):
    """The controller refused the join; its sentence says why."""


class SwitchFull(JoinRefused):
    """Other jobs hold the switch's slots; the sentence says how many each."""


class EpochEnded(SwitchSumError):
    """The job's epoch is over; the sentence names the culprit.

    `cause`: a name of job.proto's Cause, or "CONTROLLER_LOST" when the controller itself went away. `ranks`: those it names.
    `resumable`: no rank is to blame, so the job could go on without the switch, or in another epoch.
    """

    def __init__(
        self, message: str, cause: str = "CAUSE_UNSPECIFIED", ranks: tuple[int, ...] = (), resumable: bool = False
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.ranks = ranks
        self.resumable = resumable


class TransportError(SwitchSumError):
    """A socket of this host could not be set up."""


class CollectiveMismatch(SwitchSumError):
    """Ranks disagree on which tensor they are summing."""


class SwitchSilent(SwitchSumError):
    """The switch answered nothing within the limit."""


class PeersMissing(SwitchSumError):
    """Other ranks did not take part within the limit."""


class PeersLost(SwitchSumError):
    """The ranks cannot reach each other without the switch."""
