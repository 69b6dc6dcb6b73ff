"""Where the time of a step went, on one rank: computation, communication, input, and the rest.

A moment counts once. Computation comes first, then input, then communication that is known, then communication of unknown
kinds; the rest is idle or other work, such as Python between operators. So step = compute + input + exposed + unclassified +
other, and communication = exposed + overlapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from switchsum.measure import spans
from switchsum.measure.spans import Spans
from switchsum.measure.traces.kineto import Trace

_US = 1e-6


@dataclass(frozen=True)
class StepTimes:
    """One step of one rank, in seconds.

    compute, input, exposed, unclassified, other: add up to step. input_s counts where nothing was computed, loading_s wherever
    input was prepared or copied. exposed: nothing but communication ran; exposed_wait is the part in which all collectives
    under way waited for peers. communication: all time with a collective under way; = overlapped + exposed = wait + transfer.
    """

    number: int
    step_s: float
    compute_s: float
    input_s: float
    exposed_s: float
    unclassified_s: float
    other_s: float
    loading_s: float
    communication_s: float
    overlapped_s: float
    wait_s: float
    transfer_s: float
    exposed_wait_s: float

    @property
    def exposed_share(self) -> float:
        """Time in which only communication ran, of the step."""
        return self.exposed_s / self.step_s

    @property
    def pai_share(self) -> float:
        """T_w / (T_d + T_c + T_w) as Alibaba-PAI's study has it: as if nothing overlapped, and nobody waited."""
        together = self.loading_s + self.compute_s + self.transfer_s
        return self.transfer_s / together if together else 0.0

    @property
    def overlap_share(self) -> float:
        """Of communication, what computation or input hid."""
        return self.overlapped_s / self.communication_s if self.communication_s else 0.0


TIMES = tuple(each.name for each in fields(StepTimes) if each.name != "number")


@dataclass(frozen=True)
class Parts:
    """What ran when, over the whole trace; see StepTimes."""

    compute: Spans
    input: Spans
    loading: Spans
    transfer: Spans
    wait: Spans
    exposed: Spans
    unclassified: Spans

    @classmethod
    def of(cls, trace: Trace, waits: Mapping[int, float]) -> Parts:
        """`waits`: see Matched. A rank waits at the beginning of a collective, and transfers from then on."""
        operations = trace.operations
        begun = [each.begin for each in operations]
        moving = [each.begin + waits.get(id(each), 0.0) for each in operations]
        ended = [each.end for each in operations]
        communication, transfer = spans.union(begun, ended), spans.union(moving, ended)
        busy = spans.together(trace.compute, trace.input)
        strange = spans.together(*trace.unclassified.values())
        return cls(
            compute=trace.compute,
            input=spans.without(trace.input, trace.compute),
            loading=trace.input,
            transfer=transfer,
            wait=spans.without(communication, transfer),
            exposed=spans.without(communication, busy),
            unclassified=spans.without(strange, spans.together(busy, communication)),
        )


def steps(trace: Trace, parts: Parts) -> list[StepTimes]:
    exposed_wait = spans.both(parts.exposed, parts.wait)
    found = []
    for step in trace.steps:

        def within(part: Spans, begin: float = step.begin, end: float = step.end) -> float:
            return _US * spans.length(spans.clip(part, begin, end))

        length = _US * (step.end - step.begin)
        compute, loaded, exposed, strange = map(within, (parts.compute, parts.input, parts.exposed, parts.unclassified))
        wait, transfer = within(parts.wait), within(parts.transfer)
        found.append(
            StepTimes(
                number=step.number,
                step_s=length,
                compute_s=compute,
                input_s=loaded,
                exposed_s=exposed,
                unclassified_s=strange,
                other_s=max(0.0, length - compute - loaded - exposed - strange),  # rounding must not make it negative
                loading_s=within(parts.loading),
                communication_s=wait + transfer,
                overlapped_s=max(0.0, wait + transfer - exposed),
                wait_s=wait,
                transfer_s=transfer,
                exposed_wait_s=within(exposed_wait),
            )
        )
    return found
