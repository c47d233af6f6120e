from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Solver(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOLVER_UNSPECIFIED: _ClassVar[Solver]
    SOLVER_EXACT: _ClassVar[Solver]
    SOLVER_PAPER: _ClassVar[Solver]
    SOLVER_UNIFORM: _ClassVar[Solver]
    SOLVER_HOMOGENEOUS: _ClassVar[Solver]
    SOLVER_UNIFORM_BANDWIDTH: _ClassVar[Solver]
    SOLVER_FIXED: _ClassVar[Solver]

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_SUM: _ClassVar[Objective]
    OBJECTIVE_PROPORTIONAL: _ClassVar[Objective]
    OBJECTIVE_MAX_MIN: _ClassVar[Objective]
SOLVER_UNSPECIFIED: Solver
SOLVER_EXACT: Solver
SOLVER_PAPER: Solver
SOLVER_UNIFORM: Solver
SOLVER_HOMOGENEOUS: Solver
SOLVER_UNIFORM_BANDWIDTH: Solver
SOLVER_FIXED: Solver
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_SUM: Objective
OBJECTIVE_PROPORTIONAL: Objective
OBJECTIVE_MAX_MIN: Objective

class TaskProfile(_message.Message):
    __slots__ = ("id", "draft_token_s", "spectral_efficiency", "accept_rate", "bits_per_token", "max_draft_length")
    ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    SPECTRAL_EFFICIENCY_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_RATE_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    id: str
    draft_token_s: float
    spectral_efficiency: float
    accept_rate: float
    bits_per_token: float
    max_draft_length: int
    def __init__(self, id: _Optional[str] = ..., draft_token_s: _Optional[float] = ..., spectral_efficiency: _Optional[float] = ..., accept_rate: _Optional[float] = ..., bits_per_token: _Optional[float] = ..., max_draft_length: _Optional[int] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("protocol_version", "epoch", "bandwidth_hz", "bits_per_token", "verify_fixed_s", "verify_per_draft_s", "max_draft_length", "min_draft_length", "solver", "objective", "gap", "devices")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_HZ_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIXED_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_PER_DRAFT_S_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MIN_DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SOLVER_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    epoch: int
    bandwidth_hz: float
    bits_per_token: float
    verify_fixed_s: float
    verify_per_draft_s: float
    max_draft_length: int
    min_draft_length: int
    solver: Solver
    objective: Objective
    gap: float
    devices: _containers.RepeatedCompositeFieldContainer[TaskProfile]
    def __init__(self, protocol_version: _Optional[int] = ..., epoch: _Optional[int] = ..., bandwidth_hz: _Optional[float] = ..., bits_per_token: _Optional[float] = ..., verify_fixed_s: _Optional[float] = ..., verify_per_draft_s: _Optional[float] = ..., max_draft_length: _Optional[int] = ..., min_draft_length: _Optional[int] = ..., solver: _Optional[_Union[Solver, str]] = ..., objective: _Optional[_Union[Objective, str]] = ..., gap: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[TaskProfile, _Mapping]]] = ...) -> None: ...

class DevicePlan(_message.Message):
    __slots__ = ("id", "draft_length", "bandwidth_hz")
    ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_HZ_FIELD_NUMBER: _ClassVar[int]
    id: str
    draft_length: int
    bandwidth_hz: float
    def __init__(self, id: _Optional[str] = ..., draft_length: _Optional[int] = ..., bandwidth_hz: _Optional[float] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("protocol_version", "epoch", "valid_s", "goodput", "upper_bound", "latency_s", "objective_value", "solve_s", "solver", "objective", "devices")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    UPPER_BOUND_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_VALUE_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    SOLVER_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    epoch: int
    valid_s: float
    goodput: float
    upper_bound: float
    latency_s: float
    objective_value: float
    solve_s: float
    solver: Solver
    objective: Objective
    devices: _containers.RepeatedCompositeFieldContainer[DevicePlan]
    def __init__(self, protocol_version: _Optional[int] = ..., epoch: _Optional[int] = ..., valid_s: _Optional[float] = ..., goodput: _Optional[float] = ..., upper_bound: _Optional[float] = ..., latency_s: _Optional[float] = ..., objective_value: _Optional[float] = ..., solve_s: _Optional[float] = ..., solver: _Optional[_Union[Solver, str]] = ..., objective: _Optional[_Union[Objective, str]] = ..., devices: _Optional[_Iterable[_Union[DevicePlan, _Mapping]]] = ...) -> None: ...
