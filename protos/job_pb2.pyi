# ruff: noqa
# fmt: off
# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CAUSE_UNSPECIFIED: Cause
CONTROLLER_STOPPED: Cause
DESCRIPTOR: _descriptor.FileDescriptor
FAILED: Cause
FINISHED: Cause
IDLE: Cause
LOST_WORKER: Cause
MISMATCH: Cause
SHRUNK: Cause
SWITCH_LOST: Cause

class Describe(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class EpochEnded(_message.Message):
    __slots__ = ["cause", "ranks", "reason", "resumable"]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    cause: Cause
    ranks: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    resumable: bool
    def __init__(self, cause: _Optional[_Union[Cause, str]] = ..., reason: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., resumable: bool = ...) -> None: ...

class InspectReply(_message.Message):
    __slots__ = ["clock_s", "data_address", "dropped_in", "dropped_out", "jobs", "lease_s", "pipeline", "rejected", "slots_free", "slots_total", "standby", "switch_address", "switch_problem", "uptime_s", "wire_version"]
    class DroppedInEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class DroppedOutEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class RejectedEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_IN_FIELD_NUMBER: _ClassVar[int]
    DROPPED_OUT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    SWITCH_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    clock_s: float
    data_address: str
    dropped_in: _containers.ScalarMap[int, int]
    dropped_out: _containers.ScalarMap[int, int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobReport]
    lease_s: float
    pipeline: str
    rejected: _containers.ScalarMap[str, int]
    slots_free: int
    slots_total: int
    standby: bool
    switch_address: str
    switch_problem: str
    uptime_s: float
    wire_version: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobReport, _Mapping]]] = ..., rejected: _Optional[_Mapping[str, int]] = ..., dropped_in: _Optional[_Mapping[int, int]] = ..., dropped_out: _Optional[_Mapping[int, int]] = ..., slots_total: _Optional[int] = ..., slots_free: _Optional[int] = ..., pipeline: _Optional[str] = ..., switch_address: _Optional[str] = ..., switch_problem: _Optional[str] = ..., standby: bool = ..., uptime_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., data_address: _Optional[str] = ..., wire_version: _Optional[int] = ..., clock_s: _Optional[float] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ["describe", "epoch_ended", "ready"]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ENDED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    describe: Describe
    epoch_ended: EpochEnded
    ready: Ready
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., describe: _Optional[_Union[Describe, _Mapping]] = ..., epoch_ended: _Optional[_Union[EpochEnded, _Mapping]] = ...) -> None: ...

class JobReport(_message.Message):
    __slots__ = ["age_s", "ended_because", "epoch", "idle_s", "job", "job_name", "running", "slot_base", "slots", "state", "tenant", "verdicts", "workers", "world_size"]
    class VerdictsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    ended_because: str
    epoch: int
    idle_s: float
    job: int
    job_name: str
    running: bool
    slot_base: int
    slots: int
    state: str
    tenant: str
    verdicts: _containers.ScalarMap[str, int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    world_size: int
    def __init__(self, job_name: _Optional[str] = ..., job: _Optional[int] = ..., epoch: _Optional[int] = ..., world_size: _Optional[int] = ..., slot_base: _Optional[int] = ..., slots: _Optional[int] = ..., running: bool = ..., ended_because: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ..., verdicts: _Optional[_Mapping[str, int]] = ..., tenant: _Optional[str] = ..., state: _Optional[str] = ..., idle_s: _Optional[float] = ..., age_s: _Optional[float] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ["elements", "epoch", "job", "lease_ms", "member", "slots", "switch_address", "switch_port", "worker"]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_PORT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    elements: int
    epoch: int
    job: int
    lease_ms: int
    member: str
    slots: int
    switch_address: str
    switch_port: int
    worker: int
    def __init__(self, member: _Optional[str] = ..., job: _Optional[int] = ..., epoch: _Optional[int] = ..., worker: _Optional[int] = ..., slots: _Optional[int] = ..., elements: _Optional[int] = ..., switch_address: _Optional[str] = ..., switch_port: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ["data_address", "data_port", "elements", "host", "job_name", "least_slots", "pid", "queue_ms", "rank", "slots", "wire_version", "world_size"]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    LEAST_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    data_address: str
    data_port: int
    elements: int
    host: str
    job_name: str
    least_slots: int
    pid: int
    queue_ms: int
    rank: int
    slots: int
    wire_version: int
    world_size: int
    def __init__(self, wire_version: _Optional[int] = ..., job_name: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., data_address: _Optional[str] = ..., data_port: _Optional[int] = ..., slots: _Optional[int] = ..., elements: _Optional[int] = ..., least_slots: _Optional[int] = ..., queue_ms: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class MemberRequest(_message.Message):
    __slots__ = ["member"]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RenewReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ["counters", "member"]
    class CountersEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, int]
    member: str
    def __init__(self, member: _Optional[str] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ["collective", "detail", "kind", "member"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION: ReportRequest.Kind
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FAILURE: ReportRequest.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: ReportRequest.Kind
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MISMATCH: ReportRequest.Kind
    SWITCH_SILENT: ReportRequest.Kind
    collective: str
    detail: str
    kind: ReportRequest.Kind
    member: str
    def __init__(self, member: _Optional[str] = ..., kind: _Optional[_Union[ReportRequest.Kind, str]] = ..., detail: _Optional[str] = ..., collective: _Optional[str] = ...) -> None: ...

class ShrinkReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ShrinkRequest(_message.Message):
    __slots__ = ["job_name", "slots"]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    slots: int
    def __init__(self, job_name: _Optional[str] = ..., slots: _Optional[int] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ["counters", "data_address", "data_port", "host", "lease_left_s", "pid", "rank", "switch_port", "verdicts"]
    class CountersEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class VerdictsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SWITCH_PORT_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, int]
    data_address: str
    data_port: int
    host: str
    lease_left_s: float
    pid: int
    rank: int
    switch_port: int
    verdicts: _containers.ScalarMap[str, int]
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., switch_port: _Optional[int] = ..., data_address: _Optional[str] = ..., data_port: _Optional[int] = ..., verdicts: _Optional[_Mapping[str, int]] = ..., pid: _Optional[int] = ..., lease_left_s: _Optional[float] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
# SHA-256 of job.proto: f3f4d806760bf6bc21c606ae744af4c6dcf7ce462824db057fd7f5fd18d6b0b4
