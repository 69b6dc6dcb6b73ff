"""What an event's name says: communication of which kind, a wrapper around operators, or an operator."""

from __future__ import annotations

import re

STEP = re.compile(r"ProfilerStep#(\d{1,12})", re.ASCII)
DATA_LOADER = "enumerate(DataLoader)"
# Ranges that begin where a collective is issued and end with it.
RANGE = re.compile(r"(gloo|switchsum):(\w+)")
# NCCL's and RCCL's kernels; both call theirs so.
NCCL_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_?(\w*)")
# CPU operators that issue a collective, or wait for one: no measure of how long it takes.
ISSUE = re.compile(r"record_param_comms$|(?:_?c10d(?:_functional)?|symm_mem)::(\w+)|nccl:(\w+)")

# What looks like communication of a kind that nobody here knows.
_STRANGE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device|shmem|multimem|[a-z]{0,8}ccl(?:[_:A-Z]|$)|\bmpi[_:]",
    re.IGNORECASE,
)
# A backend's title of its work: "spyreccl:allreduce".
_STRANGE_RANGE = re.compile(
    r"\w+:(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|gather|scatter|barrier|send|recv)\w*",
    re.IGNORECASE,
)
# Operators that hold whatever autograd, DistributedDataParallel and hooks do: also waiting for a collective.
_WRAPPER = re.compile(
    r"autograd::engine::|torch::autograd::|torch[.:]+distributed|\w+Backward\d*$|CompiledFunction|Torch-Compiled Region"
)
AUTOGRAD = "autograd::engine::evaluate_function"

_COLLECTIVES = (
    "allreduce", "reducescatter", "allgather", "alltoall", "broadcast", "reduce", "gather", "scatter", "barrier", "send",
    "recv",
)  # fmt: skip
# Those that end on all ranks at about the same time, because each needs something of all the others.
SYNCHRONOUS = frozenset(("allreduce", "reducescatter", "allgather", "alltoall", "barrier"))

_ITEM_BYTES = {
    1: ("byte", "char", "bool", "uint8", "int8", "unsigned char", "signed char", "float8"),
    2: ("half", "bfloat16", "float16", "short", "int16", "c10::half", "c10::bfloat16", "short int"),
    4: ("float", "int", "float32", "int32"),
    8: ("double", "long", "float64", "int64", "long int", "complexfloat", "complex64", "c10::complex<float>"),
    16: ("complexdouble", "complex128", "c10::complex<double>"),
}
_ITEMS = {name: size for size, names in _ITEM_BYTES.items() for name in names}


def collective(name: str) -> str:
    """One name for what backends, kernels and traces call differently ("_allgather_base", "AllGather_RING_LL": "allgather").

    What is none of torch.distributed's is returned in lower case.
    """
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((known for known in _COLLECTIVES if plain.startswith(known)), "") or plain.removeprefix("sparse") or "unknown"


def item_bytes(dtype: str) -> int | None:
    """Of an element, by the names of torch ("float32"), of its C++ side ("Float") and of its traces ("long int")."""
    plain = dtype.lower()
    return 1 if plain.startswith("float8") else _ITEMS.get(plain)


def looks_like_communication(name: str, of_range: bool) -> bool:
    """`of_range`: an annotation, which anybody may name anything; only backends' way of naming counts there."""
    return bool(_STRANGE_RANGE.fullmatch(name) if of_range else _STRANGE.search(name) and not name.startswith("aten::"))


def is_wrapper(name: str) -> bool:
    return bool(_WRAPPER.match(name))
