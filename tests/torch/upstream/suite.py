"""PyTorch's distributed tests, as its wheel ships them, over a backend of our choice.

Which tests there are, PyTorch decides by the backend's name while it builds the class. Here that name is always "gloo": what
applies to Gloo applies to a backend that delegates to it. Which backend the ranks then really use is set in each rank.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import re
import time
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANKS = int(os.environ.setdefault("WORLD_SIZE", "4"))
os.environ |= {
    "BACKEND": "gloo",
    "INIT_METHOD": "file://",  # tests of timeouts ask for this kind; each test gets a file of its own
    "CUDA_VISIBLE_DEVICES": "",  # with fewer GPUs than ranks PyTorch would skip every test, also those of CPU tensors
    "OMP_NUM_THREADS": "1",  # the ranks share the machine
}

import torch.testing._internal.common_distributed as common  # noqa: E402  needs the environment above


def _without_gpus(test: Any) -> Any:
    """Instead of what skips a test for want of GPUs: it gets the CPU, and Gloo's outcome tells whether that will do."""
    test.asks_for_gpus = True
    return test


common.skip_if_no_gpu = _without_gpus
common.skip_if_lt_x_gpu = lambda *count, **options: _without_gpus

import torch.distributed as dist  # noqa: E402
import torch.testing._internal.distributed.ddp_under_dist_autograd_test as autograd_tests  # noqa: E402
import torch.testing._internal.distributed.distributed_test as tests  # noqa: E402
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (  # noqa: E402
    TensorPipeRpcAgentTestFixture,
)

from tests.torch.upstream.gpus import replaced_by_the_cpu  # noqa: E402

MANY_RANKS = 8  # for tests that want so many
# Why PyTorch skips a test over Gloo without knowing: it says so of the CPU's all_to_all, which Gloo has learned since.
NAME_DECIDES = r"Only (MPI|Nccl|NCCL)|NCCL .*Only|Test requires backend|Coalescing manager"
BARRIER_S = 60.0  # PyTorch's 10 s until a rank has started are short on a machine with fewer cores than ranks
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

common.logger.setLevel(logging.WARNING)  # a line for each process is much
common.logger.propagate = False

# Ranks are forked from a process that has loaded PyTorch and the engine, but not gRPC, which does not survive a fork.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.torch.upstream.loaded"])


@dataclass(frozen=True)
class Outcome:
    """How a test ended on one backend: status, why (one line) unless it passed, and with how many ranks."""

    status: str
    reason: str
    seconds: float
    ranks: int


class _Ranks(common.MultiProcessTestCase):
    """How every test here starts and ends its ranks."""

    backend: str
    log: Path  # what the ranks print

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def tearDown(self) -> None:
        for process in self.processes:
            process.kill()  # PyTorch only asks them to end
            process.join()
        super().tearDown()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file_name)  # where the ranks met; PyTorch leaves it

    def _spawn_processes(self) -> None:
        environment = {**os.environ, "BACKEND": self.backend}

        def process(target: Callable[..., None], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return _processes.Process(target=_rank, name=name, args=(target, self.log, environment, *args), kwargs=kwargs)

        self._start_processes(process)

    def _check_return_codes(self, test: Callable[..., None], seconds: float) -> None:
        super()._check_return_codes(test, seconds)
        statuses = [process.exitcode for process in self.processes]
        if test not in self.skip_return_code_checks and any(statuses):  # PyTorch looks at rank 0 only
            raise RuntimeError(f"the ranks ended with {statuses}")


class Distributed(_Ranks, tests.TestDistBackend, tests.DistributedTest._DistTestBase):
    def _barrier(self, *arguments: Any, **options: Any) -> None:
        tests.Barrier.sync(*arguments, **{"timeout": BARRIER_S, **options})

    def _test_accumulate_gradients_no_sync(self, *arguments: Any, **options: Any) -> None:
        tests.BACKEND = "gloo"  # here PyTorch asks for the name in the rank, to choose a device
        super()._test_accumulate_gradients_no_sync(*arguments, **options)


for _name in dir(Distributed):
    _test = getattr(Distributed, _name)
    _why = getattr(_test, "__unittest_skip_why__", "")
    if re.match(NAME_DECIDES, _why):
        _test.__unittest_skip__ = False
        _test.asks_for_gpus = "nccl" in _why.lower()


class DdpComparison(autograd_tests.DdpComparisonTest, TensorPipeRpcAgentTestFixture, _Ranks):
    pass


class DdpUnderDistAutograd(autograd_tests.DdpUnderDistAutogradTest, TensorPipeRpcAgentTestFixture, _Ranks):
    pass


_class_of = {
    name: suite
    for suite in (Distributed, DdpComparison, DdpUnderDistAutograd)
    for name in unittest.TestLoader().getTestCaseNames(suite)
}


def _rank(run: Callable[..., None], log: Path, environment: dict[str, str], *arguments: Any, **options: Any) -> None:
    """Body of a rank's process."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)  # the forked process has that of the moment when the first rank of all was started
    tests.BACKEND = environment["BACKEND"]
    tests.INIT_METHOD = environment["INIT_METHOD"]
    if run.__self__ is not Distributed:  # the others always name Gloo
        init = dist.init_process_group
        dist.init_process_group = lambda **options: init(**{**options, "backend": environment["BACKEND"]})
    _, name, *_ = arguments
    with replaced_by_the_cpu() if asks_for_gpus(name) else contextlib.nullcontext():
        run(*arguments, **options)


def names() -> list[str]:
    return list(_class_of)


def asks_for_gpus(name: str) -> bool:
    return getattr(getattr(_class_of[name], name), "asks_for_gpus", False)


def says_all(name: str, over_gloo: Outcome) -> bool:
    """Whether this outcome over Gloo is that over any other backend: skipped as whatever, or for want of a real GPU."""
    return over_gloo.status == SKIPPED or (over_gloo.status == FAILED and asks_for_gpus(name))


def run(backend: str, name: str, limit_s: float, log: Path) -> Outcome:
    """Run one test; whatever it does, this returns soon after `limit_s` seconds. `log` gets what the ranks print."""
    outcome = _run(backend, name, limit_s, log, RANKS)
    if outcome.reason == common.TEST_SKIPS["small_worldsize"].message and RANKS < MANY_RANKS:
        outcome = _run(backend, name, limit_s, log, MANY_RANKS)
    return outcome


def _run(backend: str, name: str, limit_s: float, log: Path, ranks: int) -> Outcome:
    common.TIMEOUT_OVERRIDE.clear()
    common.TIMEOUT_DEFAULT = limit_s
    os.environ["WORLD_SIZE"] = str(ranks)
    test = _class_of[name](name)
    test.backend, test.log = backend, log
    result = unittest.TestResult()
    began = time.monotonic()
    with log.open("w") as file, contextlib.redirect_stdout(file):
        common.logger.handlers = [logging.StreamHandler(file)]
        test.run(result)
    seconds = time.monotonic() - began
    ranks = int(test.world_size)  # some tests choose it themselves
    if result.skipped:
        return Outcome(SKIPPED, result.skipped[0][1], seconds, ranks)
    for _, text in result.errors + result.failures:
        return Outcome(FAILED, _cause(text, log.read_text(errors="replace")), seconds, ranks)
    return Outcome(PASSED, "", seconds, ranks)


def _cause(text: str, printed: str) -> str:
    """One line that says why a test failed, from unittest's report or, if that has only exit codes, from what ranks printed."""
    if "terminated or timed out" in text:
        return "did not end in time"
    reports = re.split(r"Process \d+ exited with error code \d+ and exception:\n", text)[1:] or [printed, text]
    for report in reports:
        lines = report.splitlines()
        found = [number for number, line in enumerate(lines) if re.match(r"[A-Za-z_][\w.]*(Error|Exception)\b", line)]
        if found:
            line, *following = filter(None, lines[found[-1] :])
            return f"{line} {following[0]}" if following and line.endswith(("!", ":")) else line
    return text.strip().splitlines()[-1]
