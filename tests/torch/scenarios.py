"""What the ranks of tests/torch do: `python -m tests.torch.scenarios NAME` with torchrun's environment."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from switchsum.host_agent.quantizer import error_bound

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def begin(**options: object) -> None:
    dist.init_process_group("switchsum", **options)


def sums_of_every_dtype() -> None:
    """Each dtype, sizes around the packet, sum and average; results equal on all ranks."""
    begin()
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.int16,
        torch.uint8,
    ):
        for numel in (1, 63, 256, 257, 5000):
            mine = torch.arange(numel).remainder(17).to(dtype) + RANK
            expected = sum(torch.arange(numel).remainder(17).to(torch.int64) + r for r in range(WORLD))
            dist.all_reduce(mine)
            assert torch.equal(mine.to(torch.int64), expected), (dtype, numel)
    x = torch.full((1000,), float(RANK))
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert torch.allclose(x, torch.full_like(x, (WORLD - 1) / 2))
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        whole = torch.full((300,), 7 + (RANK == 0)).to(dtype)
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        assert whole.eq((7 * WORLD + 1) // WORLD).all(), dtype
    negative = torch.full((3,), -1 - (RANK == 0))
    dist.all_reduce(negative, op=dist.ReduceOp.AVG)
    assert negative.eq(-1).all()
    half = torch.full((300,), RANK + 0.5, dtype=torch.float64)
    dist.all_reduce(half, op=dist.ReduceOp.AVG)
    assert half.eq(WORLD / 2).all()
    big = torch.full((300,), 2**62 + RANK, dtype=torch.int64)
    dist.all_reduce(big)
    expected = (2**62 * WORLD + sum(range(WORLD)) + 2**63) % 2**64 - 2**63
    assert big.unique().tolist() == [expected]
    special = torch.ones(600)
    if RANK == 1:
        special[3], special[4], special[5] = float("nan"), float("inf"), float("-inf")
    if RANK == 0:
        special[5] = float("inf")
    dist.all_reduce(special)
    assert special[3].isnan()
    assert special[4] == float("inf")
    assert special[5].isnan()
    assert special[6:].eq(WORLD).all()
    torch.manual_seed(RANK)
    values = torch.randn(100_000)
    dist.all_reduce(values)
    gathered = [torch.empty_like(values) for _ in range(WORLD)]
    dist.all_gather(gathered, values)
    assert all(torch.equal(values.view(torch.int32), other.view(torch.int32)) for other in gathered)
    dist.destroy_process_group()


def narrow_lanes() -> None:
    """SWITCHSUM_LANES is set: large sums within the stated bound and the same bits on all ranks, small ones as ever."""
    begin()
    lanes = int(os.environ["SWITCHSUM_LANES"])
    for numel in (257, 38_282, 70_000):
        inputs = torch.stack([torch.randn(numel, generator=torch.Generator().manual_seed(rank)) for rank in range(WORLD)])
        for _ in range(3):
            mine = inputs[RANK].clone()
            dist.all_reduce(mine)
            bound = error_bound(inputs.numpy(), 256, lanes)
            assert (abs(mine.double() - inputs.double().sum(0)).numpy() <= bound).all(), numel
            everybodys = [torch.empty(numel) for _ in range(WORLD)]
            dist.all_gather(everybodys, mine)
            assert all(torch.equal(mine, other) for other in everybodys), numel
    dist.destroy_process_group()


def lanes_that_differ_are_told_to_all() -> None:
    os.environ["SWITCHSUM_LANES"] = "8" if RANK else "32"
    begin()
    large = torch.ones(100_000)
    try:
        dist.all_reduce(large)
    except RuntimeError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert "float32[100000] in 8-bit lanes" in text, text
    assert "disagree" in text, text


def a_busy_python_thread_costs_no_milliseconds() -> None:
    """The interval between forced thread switches is short while a sum is under way, and the program's own afterwards."""
    begin()
    before = sys.getswitchinterval()
    stop = threading.Event()
    seen = set()

    def compute() -> None:
        while not stop.is_set():
            seen.add(sys.getswitchinterval())

    thread = threading.Thread(target=compute)
    thread.start()
    x = torch.ones(10)
    for _ in range(200):
        dist.all_reduce(x)
        x.div_(WORLD)
    stop.set()
    thread.join()
    assert min(seen) < 1e-4 < before
    deadline = time.monotonic() + 10
    while sys.getswitchinterval() != before and time.monotonic() < deadline:  # the agent's thread is just about to say so
        time.sleep(0.01)
    assert sys.getswitchinterval() == before
    sys.setswitchinterval(1e-6)  # shorter than ours: somebody's choice, which is left alone
    dist.all_reduce(x)
    assert sys.getswitchinterval() < 1e-5
    sys.setswitchinterval(before)
    dist.destroy_process_group()


def shapes_and_handles() -> None:
    """Non-contiguous, empty, many in flight, futures, several threads, several groups."""
    begin()
    whole = torch.zeros(40, 30)
    part = whole[::2, 1:7]
    part += RANK + 1
    dist.all_reduce(part)
    assert part.eq(WORLD * (WORLD + 1) / 2).all()
    assert whole.sum() == part.sum()
    dist.all_reduce(torch.empty(0))
    tensors = [torch.full((i * 37 + 1,), float(i + RANK)) for i in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert tensor.eq(WORLD * i + sum(range(WORLD))).all()
    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2.0 * WORLD] * 10
    requires = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(requires.data)
    pair = dist.new_group([0, 1])
    if RANK < 2:
        two = torch.full((700,), float(RANK + 1))
        dist.all_reduce(two, group=pair)
        assert two.eq(3).all()
    errors: list[BaseException] = []

    def in_thread() -> None:
        try:
            value = torch.full((500,), 1.0)
            dist.all_reduce(value)
            assert value.eq(WORLD).all()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert not errors
    dist.destroy_process_group()
    begin(init_method=f"tcp://127.0.0.1:{os.environ['SECOND_PORT']}", rank=RANK, world_size=WORLD)  # again, in the same process
    again = torch.ones(5)
    dist.all_reduce(again)
    assert again.eq(WORLD).all()


def everything_else_through_gloo() -> None:
    """The other collectives and reductions, as a user calls them."""
    begin()
    assert dist.get_backend() == "switchsum"
    tensor = torch.full((4,), float(RANK))
    dist.broadcast(tensor, 1)
    assert tensor.eq(1).all()
    gathered = [torch.empty(2) for _ in range(WORLD)]
    dist.all_gather(gathered, torch.full((2,), float(RANK)))
    assert [int(piece[0]) for piece in gathered] == list(range(WORLD))
    flat = torch.empty(2 * WORLD)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(RANK)))
    assert flat.view(WORLD, 2)[:, 0].tolist() == list(range(WORLD))
    objects: list[object] = [None] * WORLD
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": r} for r in range(WORLD)]
    holder = [RANK if RANK == 0 else None]
    dist.broadcast_object_list(holder, 0)
    assert holder == [0]
    reduced = torch.ones(3)
    dist.reduce(reduced, 0)
    assert RANK != 0 or reduced.eq(WORLD).all()
    part = torch.empty(2)
    dist.reduce_scatter(part, [torch.full((2,), float(RANK)) for _ in range(WORLD)])
    assert part.eq(sum(range(WORLD))).all()
    dist.scatter(part, [torch.full((2,), float(r)) for r in range(WORLD)] if RANK == 0 else None, 0)
    assert part.eq(RANK).all()
    dist.gather(part, gathered if RANK == 0 else None, 0)
    received = torch.empty(WORLD)
    dist.all_to_all_single(received, torch.full((WORLD,), float(RANK)))
    assert received.tolist() == list(range(WORLD))
    if RANK == 0:
        dist.send(torch.full((2,), 7.0), 1)
    elif RANK == 1:
        dist.recv(part, 0)
        assert part.eq(7).all()
    for operation, expected in ((dist.ReduceOp.MAX, WORLD - 1), (dist.ReduceOp.MIN, 0), (dist.ReduceOp.PRODUCT, 0)):
        value = torch.full((2,), float(RANK))
        dist.all_reduce(value, op=operation)
        assert value.eq(expected).all()
    dist.barrier()
    dist.destroy_process_group()


def train(backend: str) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    group = dist.new_group(backend=backend)
    replica = torch.nn.parallel.DistributedDataParallel(model, process_group=group, find_unused_parameters=True)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(RANK)
    for _ in range(12):
        inputs = torch.randn(16, 20, generator=generator)
        loss = torch.nn.functional.cross_entropy(replica(inputs), inputs.argmax(1).remainder(3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def ddp_trains_as_with_gloo() -> None:
    """The same steps over both: weights equal but for the rounding of gradients; equal bits on all ranks."""
    begin()
    ours, theirs = train("switchsum"), train("gloo")
    assert (ours - theirs).abs().max() < 1e-4
    others = [torch.empty_like(ours) for _ in range(WORLD)]
    dist.all_gather(others, ours)
    assert all(torch.equal(ours, other) for other in others)
    dist.destroy_process_group()


def expect_error(*words: str) -> None:
    """One all_reduce must fail with all of these words; the process then ends with status 0, within the test's bound."""
    tensor = torch.ones(2000)
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        text = str(error)
        assert all(word in text for word in words), text
        print(f"as expected: {text}")
        return
    raise AssertionError("the sum succeeded")


def unsupported_tensors_are_refused() -> None:
    begin()
    for tensor, word in (
        (torch.ones(3).to(torch.uint16), "torch.uint16"),
        (torch.ones(3, device="meta"), "meta"),
    ):
        try:
            dist.all_reduce(tensor)
        except ValueError as error:
            assert word in str(error), error
            continue
        raise AssertionError(f"{tensor} was summed")
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.bool), op=dist.ReduceOp.AVG)
    except ValueError as error:
        assert "AVG" in str(error), error
    else:
        raise AssertionError("an average of truth values")
    dist.barrier()
    dist.destroy_process_group()


def sizes_that_differ_are_told_to_all() -> None:
    """Rank 1 sums another size: every rank learns who does what."""
    begin()
    dist.all_reduce(torch.ones(10))
    tensor = torch.ones(3000 if RANK == 1 else 2000)
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        assert "float32[3000]" in str(error), error
        assert "float32[2000]" in str(error), error
        return
    raise AssertionError("ranks that disagree got a sum")


def a_dead_rank_is_named() -> None:
    begin()
    dist.all_reduce(torch.ones(10))
    if RANK == 1:
        os._exit(7)
    expect_error("rank 1")


def a_dead_controller_is_told() -> None:
    begin()
    dist.all_reduce(torch.ones(10))
    print("ready", flush=True)
    time.sleep(float(os.environ["WAIT_S"]))
    expect_error("controller")


def a_dead_switch_is_told() -> None:
    begin()
    dist.all_reduce(torch.ones(10))
    print("ready", flush=True)
    time.sleep(float(os.environ["WAIT_S"]))
    expect_error("switch")


def a_rank_that_does_not_come_is_named() -> None:
    begin(timeout=timedelta(seconds=4))
    if RANK == 1:
        sys.stdin.read()  # until rank 0 has ended
        return
    expect_error("missing ranks: 1")


def end_without_destroy() -> None:
    begin()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.eq(WORLD).all()


def no_controller() -> None:
    try:
        begin()
    except RuntimeError as error:
        assert os.environ["SWITCHSUM_CONTROLLER"] in str(error), error
        return
    raise AssertionError("joined nothing")


def forked_children_do_no_harm() -> None:
    """A data loader's workers, and a child that ends as any Python process does: the ranks sum on."""
    begin()
    numbers = torch.arange(12.0)
    for (batch,) in torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(numbers), batch_size=4, num_workers=2, multiprocessing_context="fork"
    ):
        dist.all_reduce(batch)
        assert batch.remainder(WORLD).eq(0).all()
    for _ in range(10):  # in the middle of something, as a child may be that ends at once
        under_way = dist.broadcast(torch.ones(1000), 0, async_op=True)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        under_way.wait()
        assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            sys.exit(0 if "forked" in str(error) else 3)  # runs atexit's functions
        sys.exit(4)
    assert os.waitpid(child, 0)[1] == 0
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.eq(WORLD).all()
    dist.destroy_process_group()


def ctrl_c_ends_a_wait() -> None:
    """Rank 1 does not come to the sum; a signal takes rank 0 out of it, and rank 1 out of its sleep."""
    begin()
    dist.all_reduce(torch.ones(10))
    try:
        print("ready", flush=True)
        if RANK == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(10))
    except KeyboardInterrupt:
        print("interrupted")
        dist.destroy_process_group()


def one_rank_ends_early() -> None:
    """As by sys.exit(): the rank that stays is told who left."""
    begin()
    dist.all_reduce(torch.ones(10))
    if RANK == 1:
        return
    expect_error("rank 1", "left job", "all_reduce(sum) of float32[2000]")


def sums_until_each_job_ends() -> None:
    """For each port number on standard input: a job that sums until something ends it, its error in one line."""
    for line in sys.stdin:
        begin(init_method=f"tcp://127.0.0.1:{line.strip()}", rank=RANK, world_size=WORLD)
        try:
            for number in itertools.count():
                tensor = torch.full((3000,), float(RANK + number))
                dist.all_reduce(tensor)
                assert tensor.eq(WORLD * number + sum(range(WORLD))).all(), "a wrong sum"
                if number == 5:
                    print("sums", flush=True)
        except RuntimeError as error:
            print(f"error: {error}", flush=True)
        dist.destroy_process_group()


def sums_under_fire() -> None:
    """Sums of every kind of packet until standard input closes; the test throws foreign datagrams meanwhile."""
    begin()
    fired = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), fired.set()), daemon=True).start()
    for number in itertools.count():
        mine = torch.arange(2000).remainder(97) - 40 + RANK
        whole = sum(torch.arange(2000).remainder(97) - 40 + rank for rank in range(WORLD))
        for factor, dtype in ((1, torch.float32), (1, torch.int32), (2**40, torch.int64)):
            tensor = (mine * factor).to(dtype)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, (whole * factor).to(dtype)), (number, dtype)
        special = torch.ones(300)
        if RANK == 0:
            special[7] = float("nan")
        dist.all_reduce(special)
        assert special.isnan().nonzero().tolist() == [[7]], number
        if number == 5:
            print("sums", flush=True)
        done = torch.tensor([int(fired.is_set())], dtype=torch.int32)
        dist.all_reduce(done)
        if done == WORLD:
            break
    print(f"{number + 1} times right")
    dist.destroy_process_group()


def sums_through_losses() -> None:
    """Several sums in flight at once, of every kind of packet, until standard input closes; says when their way changes."""
    begin()
    agent = dist.group.WORLD.agent
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    way = ""
    for number in itertools.count():
        base = torch.arange(200_000 + number % 7).remainder(1013) - 500
        whole = WORLD * base + sum(range(WORLD)) + WORLD * number
        tensors = [(base + RANK + number).to(dtype) for dtype in (torch.float32, torch.int32, torch.float32)]
        tensors += [(base[:3000] + RANK + number) * 2**40, (base[:100] + RANK + number).to(torch.float32)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        for tensor in tensors:
            factor = 2**40 if tensor.dtype == torch.int64 else 1
            error = (tensor.to(torch.float64) - whole[: len(tensor)] * factor).abs().max()
            assert error <= (0.01 if tensor.is_floating_point() else 0), (number, tensor.dtype, len(tensor), error)
        same = tensors[0].view(torch.int32).to(torch.int64).sum().reshape(1)
        gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(WORLD)]
        dist.all_gather(gathered, same)
        assert all(other.equal(same) for other in gathered), (number, "ranks differ")
        if way != (way := agent.path):
            print(f"way: {way} in epoch {agent.epoch} at {number}", flush=True)
        done = torch.tensor([int(over.is_set())], dtype=torch.int32)
        dist.all_reduce(done)
        if done == WORLD:
            break
    counters = agent.counters()
    print(f"{number + 1} times right, {counters['detours']} detours, {counters['gloo_sums']} sums over Gloo", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
