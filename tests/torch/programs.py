"""Programs as PyTorch users write them, run on ranks: `python -m tests.torch.programs NAME` with torchrun's environment."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import switchsum

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
TOTAL = sum(range(WORLD))


def error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def different_collectives_are_named_on_all_ranks() -> None:
    """Each in a group of its own, because it ends the group. Plain Gloo hangs, ends the process, or gives garbage."""
    dist.init_process_group("switchsum")
    last = RANK == WORLD - 1

    def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(count, dtype=dtype)

    operations = dist.ReduceOp
    cases: list[tuple[Callable[[dist.ProcessGroup], object], str, Callable[[dist.ProcessGroup], object], str]] = [
        (
            lambda group: dist.broadcast(numbers(10), 0, group=group), "#0 broadcast of float32[10], root 0",
            lambda group: dist.all_reduce(numbers(10), group=group), "#0 all_reduce(sum) of float32[10]",
        ),
        (
            lambda group: dist.broadcast(numbers(10), 0, group=group), "broadcast of float32[10], root 0",
            lambda group: dist.broadcast(numbers(20), 0, group=group), "broadcast of float32[20], root 0",
        ),
        (
            lambda group: dist.broadcast(numbers(10), 0, group=group), "broadcast of float32[10], root 0",
            lambda group: dist.broadcast(numbers(10), 1, group=group), "broadcast of float32[10], root 1",
        ),
        (
            lambda group: dist.all_reduce(numbers(5), operations.MAX, group=group), "all_reduce(max) of float32[5]",
            lambda group: dist.all_reduce(numbers(5), operations.MIN, group=group), "all_reduce(min) of float32[5]",
        ),
        (
            lambda group: dist.all_reduce(numbers(5, torch.float64), group=group), "all_reduce(sum) of float64[5] by Gloo",
            lambda group: dist.all_reduce(numbers(5), group=group), "all_reduce(sum) of float32[5]",
        ),
        (
            lambda group: dist.barrier(group=group), "barrier",
            lambda group: dist.all_reduce(torch.empty(0), group=group), "all_reduce(sum) of float32[0]",
        ),
        (
            lambda group: dist.all_gather_object([None] * WORLD, "x", group=group), "all_gather of int64[1]",
            lambda group: dist.barrier(group=group, async_op=True).wait(), "barrier",
        ),
        (
            lambda group: dist.broadcast(numbers(4), 0, group=group, async_op=True).wait(), "broadcast of float32[4]",
            lambda group: dist.broadcast(numbers(4, torch.int8), 0, group=group, async_op=True).wait(), "broadcast of int8[4]",
        ),
    ]  # fmt: skip
    for one, its_name, other, other_name in cases:
        group = dist.new_group()
        text = error_of(lambda one=one, other=other, group=group: (other if last else one)(group))
        assert its_name in text, text
        assert other_name in text, text
        assert f"rank {WORLD - 1}" in text, text
        # What comes later fails with the same words, at once.
        assert its_name in error_of(lambda group=group: dist.broadcast(torch.ones(1), 0, group=group))
    value = torch.ones(1000)
    dist.all_reduce(value)  # the default group is another job
    assert value.eq(WORLD).all()
    dist.destroy_process_group()


def handles_of_every_kind() -> None:
    """Gloo's collectives and the switch's in flight together; waits with limits; coalescing; who is done when."""
    dist.init_process_group("switchsum")
    for count in range(20):
        sums = torch.full((count * 100 + 1,), float(RANK))
        spread = torch.full((7,), float(RANK))
        most = torch.full((3,), float(RANK))
        gathered = [torch.empty(2) for _ in range(WORLD)]
        works = [
            dist.all_reduce(sums, async_op=True),
            dist.broadcast(spread, count % WORLD, async_op=True),
            dist.all_reduce(most, dist.ReduceOp.MAX, async_op=True),
            dist.all_gather(gathered, torch.full((2,), float(RANK)), async_op=True),
            dist.barrier(async_op=True),
        ]
        if count % 2:
            dist.barrier()
        if count % 3 == 0:
            works.reverse()
        for work in works:
            assert work.wait(timedelta(seconds=60))
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None
        assert sums.eq(TOTAL).all()
        assert spread.eq(count % WORLD).all()
        assert most.eq(WORLD - 1).all()
        assert [int(each[0]) for each in gathered] == list(range(WORLD))
    # A wait with a limit ends at the limit, the collective goes on.
    for late in (
        lambda tensor: dist.all_reduce(tensor, async_op=True),
        lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True),
    ):
        dist.barrier()
        tensor = torch.full((100,), float(RANK))
        if RANK == 0:
            work = late(tensor)
            assert "is not done after 0.2 s" in error_of(lambda work=work: work.wait(timedelta(seconds=0.2)))
            assert not work.is_completed()
            dist.send(torch.ones(1), 1)
            work.wait()
        else:
            if RANK == 1:
                dist.recv(torch.ones(1), 0)
            late(tensor).wait()
        assert tensor.eq(tensor[0]).all()
    # Point to point inside collectives' order.
    if RANK == 0:
        dist.send(torch.full((3,), 5.0), 1)
    elif RANK == 1:
        got = torch.empty(3)
        dist.irecv(got, 0).wait()
        assert got.eq(5).all()
    # Coalescing, with a device (which plain Gloo cannot) and without.
    tensors = [torch.full((300 * i + 1,), float(RANK + i)) for i in range(5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.eq(WORLD * (TOTAL + WORLD * i)).all()
    dist.all_reduce_coalesced(tensors)
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    if RANK == 0:
        dist.barrier(timeout=timedelta(seconds=60))
    else:
        dist.barrier()
    dist.destroy_process_group()


def waits_that_are_interrupted() -> None:
    """As by Ctrl-C, inside a collective of Gloo's that others are late for: it goes on, and so do those that follow."""
    dist.init_process_group("switchsum")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for collective in (
        lambda tensor: dist.broadcast(tensor, 1),
        lambda tensor: dist.all_reduce(tensor, dist.ReduceOp.MAX),
        lambda tensor: dist.barrier(),
        lambda tensor: dist.all_reduce(tensor),
    ):
        tensor = torch.ones(100)
        if RANK == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            try:
                collective(tensor)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("was not interrupted")
            dist.send(torch.ones(1), 1)
        else:
            if RANK == 1:
                dist.recv(torch.ones(1), 0)
            collective(tensor)
        for operation in (dist.ReduceOp.MAX, dist.ReduceOp.SUM):
            after = torch.full((50,), float(RANK))
            dist.all_reduce(after, operation)
            assert after.eq(TOTAL if operation == dist.ReduceOp.SUM else WORLD - 1).all()
    dist.destroy_process_group()


def modes_of_the_caller() -> None:
    """Tensors made under inference_mode, and parameters under no_grad, by collectives that other threads run."""
    dist.init_process_group("switchsum")
    operations = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX)
    for dtype in (torch.float32, torch.float16, torch.float64, torch.int16):
        for operation in operations[: 2 if dtype == torch.int16 else 3]:
            with torch.inference_mode():
                tensor = torch.full((300,), 2).to(dtype)
                dist.all_reduce(tensor, operation, async_op=True).wait()
                assert tensor.eq(2 * WORLD if operation == dist.ReduceOp.SUM else 2).all(), (dtype, operation)
    parameter = nn.Parameter(torch.full((2,), float(RANK)))
    with torch.no_grad():
        dist.broadcast(parameter, 1, async_op=True).wait()
        assert parameter.eq(1).all()
        dist.all_gather_into_tensor(nn.Parameter(torch.empty(2 * WORLD)), torch.ones(2), async_op=True).wait()
        dist.reduce_scatter_tensor(parameter, torch.ones(2 * WORLD), async_op=True).wait()
        assert parameter.eq(WORLD).all()
        dist.all_reduce(parameter, dist.ReduceOp.AVG, async_op=True).wait()
    negative = torch.full((1,), 1 + 2j).conj().imag  # with a minus sign that is not in memory
    assert negative.is_neg()
    dist.all_reduce(negative)
    assert negative.eq(-2 * WORLD).all()
    dist.destroy_process_group()


def a_monitored_barrier_among_others() -> None:
    """Gloo counts its collectives on each rank: all must come to them in one order, whoever begins them."""
    dist.init_process_group("switchsum")
    for _ in range(20):
        works = [dist.broadcast(torch.ones(1000), rank % WORLD, async_op=True) for rank in range(3)]
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        for work in works:
            work.wait()
    # Nobody waits for the last ones: a process may end in the middle of them.
    dist.broadcast(torch.ones(5_000_000), 0, async_op=True)
    dist.all_reduce(torch.ones(1_000_000), async_op=True)


def a_rank_that_is_replaced() -> None:
    """Rank 1 is another process the second time, which knows of no embedded switch; rank 0 still has one."""
    dist.init_process_group("switchsum")
    dist.all_reduce(torch.ones(5))
    dist.destroy_process_group()
    port = int(os.environ["SECOND_PORT"])
    if RANK == 1:
        torch.multiprocessing.spawn(_second, args=(port,), nprocs=1)
    else:
        _spawned(0, 2, port)


def one_store_for_many_groups() -> None:
    """As torchrun's, which outlives a group: the next one finds what the last one has written."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)
    for number in range(6):
        dist.init_process_group("switchsum", store=store, rank=RANK, world_size=WORLD)
        value = torch.full((100,), float(RANK + number))
        dist.all_reduce(value)
        dist.broadcast(value, 0)
        assert value.eq(TOTAL + WORLD * number).all()
        dist.barrier()
        dist.destroy_process_group()


def a_controller_on_some_ranks_is_told() -> None:
    if RANK:
        del os.environ["SWITCHSUM_CONTROLLER"]
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)
    text = error_of(lambda: dist.init_process_group("switchsum", store=store, rank=RANK, world_size=WORLD))
    assert "SWITCHSUM_CONTROLLER is set on some ranks, but not on ranks [1, 2]" in text, text
    store.set(f"told {RANK}", "")
    if RANK == 0:  # it serves the store
        store.wait([f"told {rank}" for rank in range(WORLD)])


def tensors_of_every_make() -> None:
    """Expanded ones, and such as are resized afterwards: what Gloo leaves as it was."""
    dist.init_process_group("switchsum")
    expanded = torch.full((1, 4, 1), float(RANK)).expand(3, 4, 5)
    dist.all_reduce(expanded)
    assert expanded.eq(TOTAL).all()
    value = torch.ones(10)
    dist.all_reduce(value)
    value.resize_(100)
    value.untyped_storage().resize_(0)
    dist.destroy_process_group()


def the_profiler_stops_first() -> None:
    """While collectives are under way: a range that ended after that wrote to freed memory."""
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("switchsum")
    for _ in range(40):
        with profile(activities=[ProfilerActivity.CPU]):
            works = [
                dist.all_reduce(torch.ones(100_000), async_op=True),
                dist.broadcast(torch.ones(100_000), 0, async_op=True),
                dist.barrier(async_op=True),
            ]
        for work in works:
            work.wait()
    dist.destroy_process_group()


def _second(number: int, port: int) -> None:
    _spawned(1, 2, port)


def groups_of_every_kind() -> None:
    """Groups of one, many groups, meshes, and a string that names a backend for each device."""
    dist.init_process_group("cpu:switchsum,cuda:nccl")
    assert dist.get_backend_config() == "cpu:switchsum,cuda:nccl"
    alone = dist.new_group([RANK], use_local_synchronization=True)
    for dtype in (torch.float32, torch.int16, torch.float64):
        value = torch.full((300,), 3).to(dtype)
        dist.all_reduce(value, group=alone)
        dist.all_reduce(value, dist.ReduceOp.AVG, group=alone)
        assert value.eq(3).all()
    dist.broadcast(value, RANK, group=alone)
    dist.barrier(group=alone)
    # More groups than the switch has room for: the later ones use Gloo, and nobody need know.
    groups = [dist.new_group() for _ in range(12)]
    for number, group in enumerate(groups):
        for dtype in (torch.float32, torch.int16):
            value = torch.full((700,), RANK + number).to(dtype)
            dist.all_reduce(value, group=group)
            assert value.eq(TOTAL + WORLD * number).all(), (number, dtype)
            dist.all_reduce(value, dist.ReduceOp.AVG, group=group)
            assert value.eq(TOTAL + WORLD * number).all(), (number, dtype)
    for group in groups:
        dist.destroy_process_group(group)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
    value = torch.full((1000,), float(RANK))
    dist.all_reduce(value, group=mesh.get_group("shard"))
    dist.all_reduce(value, group=mesh.get_group("replicate"))
    assert value.eq(TOTAL).all()
    dist.destroy_process_group()


def two_threads_with_a_group_each() -> None:
    dist.init_process_group("switchsum")
    groups = [dist.new_group() for _ in range(3)]
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                value = torch.full((500 + step,), float(RANK + step))
                dist.all_reduce(value, group=groups[number])
                dist.broadcast(value, 0, group=groups[number])
                if not value.eq(TOTAL + WORLD * step).all():
                    wrong.append((number, step))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    dist.destroy_process_group()


def a_tensor_of_more_than_two_gigabytes() -> None:
    dist.init_process_group("switchsum")
    numel = 2**29 + 1000  # times 4 bytes
    tensor = torch.empty(numel).fill_(RANK + 1)
    tensor[-1] = RANK
    dist.all_reduce(tensor)
    assert tensor[:-1].eq(WORLD * (WORLD + 1) / 2).all()
    assert tensor[-1] == TOTAL
    dist.destroy_process_group()


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(RANK)
    inputs = [torch.randn(16, 20, generator=generator) for _ in range(steps)]
    return [(each, each.argmax(1).remainder(3)) for each in inputs]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def equal_on_all_ranks(tensor: torch.Tensor) -> bool:
    everybodys = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(everybodys, tensor.contiguous())
    return all(torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)) for other in everybodys)


def train(replica: nn.Module, steps: int = 8, accumulate: int = 1) -> torch.Tensor:
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    for step, (inputs, labels) in enumerate(batches(steps * accumulate)):
        last = (step + 1) % accumulate == 0
        synchronized = replica.require_backward_grad_sync if isinstance(replica, DistributedDataParallel) else True
        assert synchronized
        if not last:
            with replica.no_sync():  # type: ignore[operator]
                nn.functional.cross_entropy(replica(inputs), labels).backward()
            continue
        nn.functional.cross_entropy(replica(inputs), labels).backward()
        nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return weights(replica)


def a_hook_beside_gloo() -> None:
    """The group stays Gloo; gradients go through the switch by the hook. The same bits as with the backend itself."""
    dist.init_process_group("gloo")
    group = dist.new_group(backend="switchsum")
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(group, switchsum.ddp_hook)
    by_hook = train(hooked)
    assert switchsum.statistics().collectives >= 8
    by_gloo = train(DistributedDataParallel(network()))
    assert (by_hook - by_gloo).abs().max() < 1e-5
    assert equal_on_all_ranks(by_hook)
    wrong = DistributedDataParallel(network())
    wrong.register_comm_hook(None, switchsum.ddp_hook)
    inputs, labels = batches(1)[0]
    try:
        nn.functional.cross_entropy(wrong(inputs), labels).backward()
    except (TypeError, RuntimeError) as error:
        assert 'dist.new_group(backend="switchsum")' in str(error), error
    else:
        raise AssertionError("a hook without a group summed")
    dist.destroy_process_group()


def a_rank_can_be_watched() -> None:
    """SWITCHSUM_METRICS and SWITCHSUM_LOG; neither leaves anything behind."""
    import logging
    import urllib.request

    dist.init_process_group("switchsum")
    url = f"http://127.0.0.1:{int(os.environ['SWITCHSUM_METRICS']) + RANK}/metrics"
    second = dist.new_group(backend="switchsum")
    dist.all_reduce(torch.ones(1000))
    dist.all_reduce(torch.ones(1000), group=second)
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    told = re.findall(r'switchsum_host_collectives_total{job="(\w+)",rank="(\d)"} (\S+)', text)
    assert len({job for job, _, _ in told}) == 2, text
    assert {rank for _, rank, _ in told} == {str(RANK)}, text
    assert all(float(value) >= 1 for _, _, value in told), text
    assert logging.getLogger("switchsum").level == logging.INFO
    assert logging.getLogger().level == logging.WARNING  # the program's own
    dist.destroy_process_group()
    try:
        urllib.request.urlopen(url, timeout=60)
    except OSError:
        pass
    else:
        raise AssertionError("the endpoint is there still")
    assert "switchsum-metrics" not in {thread.name for thread in threading.enumerate()}


def gradients_accumulate_without_sums() -> None:
    dist.init_process_group("switchsum")
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    before = switchsum.statistics().collectives
    ours = train(model, steps=4, accumulate=3)
    sums = switchsum.statistics().collectives - before
    theirs = train(DistributedDataParallel(network(), process_group=dist.new_group(backend="gloo")), steps=4, accumulate=3)
    assert (ours - theirs).abs().max() < 1e-5
    assert equal_on_all_ranks(ours)
    once = switchsum.statistics().collectives
    train(model, steps=4)
    assert switchsum.statistics().collectives - once >= sums - 5  # a step of three backward passes sums as often as one of one
    dist.destroy_process_group()


def fully_sharded_trains_as_with_gloo() -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("switchsum")
    results = []
    for backend in ("switchsum", "gloo"):
        mesh = dist.device_mesh.DeviceMesh.from_group(dist.new_group(backend=backend), "cpu")
        model = network()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for inputs, labels in batches(6):
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()]))
    assert (results[0] - results[1]).abs().max() < 1e-5
    assert equal_on_all_ranks(results[0])
    dist.destroy_process_group()


def overflow_reaches_every_rank() -> None:
    """One rank's Inf makes all skip the step, and halves all scales; clipping by norm sees the NaN."""
    dist.init_process_group("switchsum")
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step, (inputs, labels) in enumerate(batches(4)):
        before = weights(model)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if step == 2 and RANK == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert bool(norm.isfinite()) == (step != 2)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(before, weights(model)) == (step == 2)
    assert scaler.get_scale() == 2.0**9
    assert equal_on_all_ranks(weights(model))
    dist.destroy_process_group()


def the_same_bits_in_a_second_run() -> None:
    """Whatever the order of packets and whichever rank is late; floats over Gloo have this only by chance."""
    dist.init_process_group("switchsum")
    runs = []
    for attempt in range(3):
        time.sleep(0.05 * ((RANK + attempt) % WORLD))
        values = [torch.randn(n, generator=torch.Generator().manual_seed(RANK * 100 + n)) for n in (3, 1000, 40_000)]
        works = [dist.all_reduce(value, async_op=True) for value in values]
        for work in works:
            work.wait()
        runs.append(torch.cat(values))
    assert all(torch.equal(run.view(torch.int32), runs[0].view(torch.int32)) for run in runs)
    assert equal_on_all_ranks(runs[0])
    dist.destroy_process_group()


def nothing_is_left_after_destroy() -> None:
    """Threads, sockets and other descriptors, after groups were made, used and destroyed again and again."""

    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)
    counts = []
    for number in range(5):
        dist.init_process_group("switchsum", store=dist.PrefixStore(str(number), store), rank=RANK, world_size=WORLD)
        model = DistributedDataParallel(network())
        train(model, steps=2)
        dist.broadcast(torch.ones(3), 0, async_op=True).wait()
        group = dist.new_group()
        dist.all_reduce(torch.ones(5), group=group)
        del model, group
        dist.destroy_process_group()
        time.sleep(0.2)  # for threads that have been told
        counts.append(held())
    assert max(counts[2:]) <= counts[1], counts


def failures_in_backward_are_errors() -> None:
    """A rank dies during backward: the others get an error there that names it, no crash, no hang."""
    dist.init_process_group("switchsum")
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    train(model, steps=2)
    if RANK == 1:
        os._exit(7)
    text = error_of(lambda: train(model, steps=2))
    assert "rank 1" in text, text
    text = error_of(lambda: dist.broadcast(torch.ones(3), 0))
    assert "rank 1" in text, text
    os._exit(0)  # Gloo's own destructor may wait for the one who is gone


def a_silent_rank_is_named_by_gloos_collectives() -> None:
    """Rank 1 stops to answer in the middle of a broadcast that Gloo runs: no TCP connection ends by that."""
    dist.init_process_group("switchsum")
    dist.barrier()
    if RANK == 1:
        print("ready", flush=True)
        sys.stdin.read()  # the test stops the process here
        return
    text = error_of(lambda: dist.broadcast(torch.ones(3), 1))
    assert "rank 1" in text, text
    print("named", flush=True)
    os._exit(0)


def collectives_show_in_the_profiler() -> None:
    from torch.profiler import ProfilerActivity, profile

    dist.init_process_group("switchsum")
    torch.set_num_threads(1)
    width = 512
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(8))), bucket_cap_mb=1)
    inputs = torch.randn(64, width)
    for _ in range(3):
        model(inputs).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        model(inputs).sum().backward()
        dist.broadcast(torch.ones(10), 0)
        dist.all_reduce(torch.ones(10, dtype=torch.int32))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    issued = [event for event in events if event["name"] == "c10d::allreduce_"]
    spans = [event for event in events if event["name"] == "switchsum:all_reduce"]
    assert len(issued) == len(spans) >= 5
    metadata = issued[-1]["args"]
    assert metadata["Collective name"] == "allreduce"
    assert (metadata["In msg nelems"], metadata["Out msg nelems"], metadata["dtype"]) == (10, 10, "Int")
    assert (metadata["Group size"], metadata["Rank"]) == (WORLD, RANK)
    assert (metadata["In split size"], metadata["Out split size"]) == ("[]", "[]")
    numbers: list[object] = [None] * WORLD
    dist.all_gather_object(numbers, [event["args"]["Seq"] for event in issued])
    assert all(each == numbers[0] for each in numbers)  # also of those that were issued before the profiler began
    assert metadata["Process Group Ranks"] == str(list(range(WORLD)))
    assert any(event["name"] == "c10d::broadcast_" for event in events)
    assert any(event["name"] == "switchsum:broadcast" for event in events)
    # Sums of the first buckets are under way while backward computes the next gradients.
    computing = [event for event in events if event["name"] in ("aten::mm", "aten::addmm")]
    overlapped = sum(
        max(0.0, min(span["ts"] + span["dur"], work["ts"] + work["dur"]) - max(span["ts"], work["ts"]))
        for span in spans
        for work in computing
    )
    assert overlapped > 0
    dist.destroy_process_group()


def every_import_is_enough() -> None:
    """`import switchsum` before torch, and a spawned child."""
    torch.multiprocessing.spawn(_spawned, args=(WORLD, int(os.environ["MASTER_PORT"])), nprocs=WORLD)


def _spawned(rank: int, world: int, port: int) -> None:
    dist.init_process_group("switchsum", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    value = torch.full((1000,), float(rank))
    dist.all_reduce(value)
    assert value.eq(sum(range(world))).all()
    dist.destroy_process_group()


def forked_ranks() -> None:
    """Ranks that are forks of one process which has imported everything and summed already (torch.multiprocessing's "fork")."""
    dist.init_process_group("switchsum", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    port = int(os.environ["SECOND_PORT"])
    children = [torch.multiprocessing.get_context("fork").Process(target=_spawned, args=(rank, 2, port)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0


def small_tensors_by_gloo() -> None:
    """SWITCHSUM_GLOO_BELOW is set: below it nothing is summed by the switch; dtypes that Gloo does not know are."""
    dist.init_process_group("switchsum")
    below = int(os.environ["SWITCHSUM_GLOO_BELOW"])
    for numel, dtype in ((below // 4 - 1, torch.float32), (below // 4, torch.float32), (3, torch.int16)):
        before = switchsum.statistics().packets_sent
        value = torch.full((numel, 2), RANK).to(dtype)[:, 0]  # with gaps, on which Gloo alone would fail
        dist.all_reduce(value)
        assert value.eq(TOTAL).all()
        packets = switchsum.statistics().packets_sent - before
        assert (packets > 1) == (numel == below // 4), (numel, packets)  # one alone agrees on what Gloo does
    dist.destroy_process_group()


def sums_staged_as_on_a_gpu() -> None:
    """What a sum of a CUDA tensor does, on the CPU: copies, its place among other sums, dtypes, averages, tensors with gaps."""
    from switchsum.staging import Staging
    from switchsum.torch_backend import WIRE_DTYPES

    dist.init_process_group("switchsum")
    group = dist.group.WORLD
    staging = Staging(torch.device("cpu"))
    works, sums = [], []
    for step, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8) * 4):
        whole = torch.full((30, 2 * step), RANK + 1).to(dtype)
        staged = whole[:, ::2]  # with gaps; empty at first
        plain = torch.full((step + 1,), float(RANK))
        divisor = WORLD if step % 3 == 0 else 1
        works.append(staging.sum(group._agent, staged, WIRE_DTYPES[dtype], divisor, f"sum {step} of {dtype}", lambda: None))
        works.append(dist.all_reduce(plain, async_op=True))
        sums.append((whole, staged, plain, divisor))
    for work in works:
        assert work.wait(timedelta(seconds=60))
    for whole, staged, plain, divisor in sums:
        expected = (torch.tensor(WORLD * (WORLD + 1) // 2).to(staged.dtype) / divisor).to(staged.dtype)
        assert staged.eq(expected).all(), (staged, expected)
        assert whole[:, 1::2].eq(RANK + 1).all()
        assert plain.eq(TOTAL).all()
    dist.barrier()
    staging.close()
    dist.destroy_process_group()
    late = staging.sum(group._agent, torch.ones(5), torch.float32, 1, "sum after the end", lambda: None)
    assert "destroyed" in error_of(late.wait)


def thresholds_that_differ_are_told() -> None:
    """One rank would agree on a sum by Gloo with the packet that the other takes for its contribution."""
    os.environ["SWITCHSUM_GLOO_BELOW"] = "1000" if RANK else "0"
    dist.init_process_group("switchsum")
    text = error_of(lambda: dist.all_reduce(torch.ones(100)))
    assert "rank 0: #0 all_reduce(sum) of float32[100]; rank 1: #0 all_reduce(sum) of float32[100] by Gloo" in text, text


if __name__ == "__main__":
    globals()[sys.argv[1]]()
