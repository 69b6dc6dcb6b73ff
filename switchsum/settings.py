"""What users may set, by environment variable: torchrun passes the environment to every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from switchsum.host_agent.credentials import IN_THE_CLEAR, NAMES, Credentials
from switchsum.host_agent.policy import OnLoss
from switchsum.metrics_endpoint import parse_address
from switchsum.protos.tls import ClientTls, check_private

LONGEST_JOB = 64  # so that the names of its groups fit where a controller shows them

Value = TypeVar("Value", int, float)
Choice = TypeVar("Choice", int, str)


@dataclass(frozen=True)
class Settings:
    """Settings of one training process.

    controller: SWITCHSUM_CONTROLLER, "HOST:PORT", and those that stand by for it, with commas between; empty: an embedded
        switch, if all ranks are on one machine.
    credentials: SWITCHSUM_CA, SWITCHSUM_CERT, SWITCHSUM_KEY, SWITCHSUM_TOKEN or SWITCHSUM_TOKEN_FILE, SWITCHSUM_INSECURE:
        files for TLS, and the token; empty: neither.
    job: SWITCHSUM_JOB on rank 0, the name by which people know the job; each group of it adds a number of its own.
    data_address: SWITCHSUM_DATA_ADDRESS, IPv4 address of this host towards the switch; empty: the way to the controller.
    slots: SWITCHSUM_SLOTS, slots to ask for; 0: the controller's default.
    lanes: SWITCHSUM_LANES, bits in which each number of a large float32 sum travels: 32, 16 or 8.
    gloo_below: SWITCHSUM_GLOO_BELOW, bytes; smaller tensors are summed by Gloo.
    least_slots: SWITCHSUM_LEAST_SLOTS, be content with so few; 0: no fewer than asked for.
    queue_s: SWITCHSUM_QUEUE, seconds to wait for slots that other jobs hold.
    timeout_s: SWITCHSUM_TIMEOUT, seconds until a silent controller or switch is an error.
    on_loss: SWITCHSUM_ON_LOSS, what a job does that has lost the switch: gloo, wait or fail.
    metrics: SWITCHSUM_METRICS, "[HOST:]PORT" where Prometheus finds this machine's first rank; empty: no metrics.
    log: SWITCHSUM_LOG, which of our log lines are told and how (log_format.py); empty: the program's own logging decides.
    """

    controller: str = ""
    credentials: Credentials = IN_THE_CLEAR
    job: str = ""
    data_address: str = ""
    slots: int = 0
    lanes: int = 32
    gloo_below: int = 0
    least_slots: int = 0
    queue_s: float = 0.0
    timeout_s: float = 30.0
    on_loss: OnLoss = OnLoss.GLOO
    metrics: str = ""
    log: str = ""

    @classmethod
    def from_environment(cls) -> Settings:
        """Read and check the environment; raises ValueError that names the variable."""
        return cls(
            controller=_addresses("SWITCHSUM_CONTROLLER"),
            credentials=credentials(),
            job=_name("SWITCHSUM_JOB"),
            data_address=os.environ.get("SWITCHSUM_DATA_ADDRESS", ""),
            lanes=_choice("SWITCHSUM_LANES", cls.lanes, (32, 16, 8)),
            gloo_below=_number("SWITCHSUM_GLOO_BELOW", int, cls.gloo_below, 0, 2**62, " of bytes"),
            slots=_number("SWITCHSUM_SLOTS", int, cls.slots, 0, 2048),
            least_slots=_number("SWITCHSUM_LEAST_SLOTS", int, cls.least_slots, 0, 2048),
            queue_s=_number("SWITCHSUM_QUEUE", float, cls.queue_s, 0.0, 86400.0),
            timeout_s=_number("SWITCHSUM_TIMEOUT", float, cls.timeout_s, 0.1, 86400.0),
            on_loss=OnLoss(_choice("SWITCHSUM_ON_LOSS", cls.on_loss.value, [each.value for each in OnLoss])),
            metrics=_endpoint("SWITCHSUM_METRICS"),
            log=os.environ.get("SWITCHSUM_LOG", ""),
        )


def credentials() -> Credentials:
    """What the environment says about trust alone. Raises ValueError that names the variable."""
    return Credentials(
        tls=ClientTls.load(_path(NAMES.ca), _path(NAMES.certificate), _path(NAMES.key), NAMES),
        token=_token(),
        insecure=_choice("SWITCHSUM_INSECURE", 0, (0, 1)) == 1,
    )


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable, "")
    return Path(text) if text else None


def _token() -> str:
    """Never shown, not even in an error."""
    token, path = os.environ.get("SWITCHSUM_TOKEN", ""), _path("SWITCHSUM_TOKEN_FILE")
    where = "SWITCHSUM_TOKEN"
    if path is not None:
        if token:
            raise ValueError("SWITCHSUM_TOKEN and SWITCHSUM_TOKEN_FILE are both set: which of them holds? Unset one")
        where = f"SWITCHSUM_TOKEN_FILE {path}"
        check_private(path, "SWITCHSUM_TOKEN_FILE")
        try:
            token = path.read_text("utf-8", "replace").strip()
        except OSError as error:
            raise ValueError(f"{where}: cannot be read: {error.strerror}") from None
        if not token:
            raise ValueError(f"{where}: is empty; write the token into it, and nothing else")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError(f"{where}: holds no token: those are letters, digits, - and _ in one line")
    return token


def _addresses(variable: str) -> str:
    text = os.environ.get(variable, "")
    for one in text.split(",") if text else ():
        host, _, port = one.rpartition(":")
        if not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{variable}={text!r}: {one!r} is not an address: write HOST:PORT, such as 127.0.0.1:50099")
    return text


def _endpoint(variable: str) -> str:
    text = os.environ.get(variable, "")
    if text:
        parse_address(text, variable)
    return text


def _name(variable: str) -> str:
    text = os.environ.get(variable, "")
    if len(text) > LONGEST_JOB or not text.isprintable():
        raise ValueError(f"{variable}={text!r} must be a name of at most {LONGEST_JOB} printable characters")
    return text


def _choice(variable: str, default: Choice, choices: Sequence[Choice]) -> Choice:
    text = os.environ.get(variable, "")
    found = next((choice for choice in choices if str(choice) == text), default if not text else None)
    if found is None:
        raise ValueError(f"{variable}={text!r} must be one of {', '.join(map(str, choices))}")
    return found


def _number(variable: str, kind: Callable[[str], Value], default: Value, low: Value, high: Value, unit: str = "") -> Value:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise ValueError(f"{variable}={text!r} must be a number{unit} from {low} to {high}")
    return value
