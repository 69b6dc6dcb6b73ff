"""What a job does when it has lost the switch, and no rank."""

from enum import Enum


class OnLoss(Enum):
    """GLOO: go on without it, and return when it is back. WAIT: finish what is under way, then wait until it is back."""

    GLOO = "gloo"
    WAIT = "wait"
    FAIL = "fail"
