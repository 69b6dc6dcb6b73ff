"""What a rack's workers run in tests: `python -m tests.rack.job sum`, or `train`, on NumPy arrays, without PyTorch."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np

from switchsum.host_agent.agent import Agent, Terms
from switchsum.host_agent.errors import SwitchSumError
from switchsum.host_agent.quantizer import reference_sum

VALUES = 30_000


def join(elements: int) -> Agent:
    return Agent.join(
        Terms(
            controller=os.environ["SWITCHSUM_CONTROLLER"],
            job_name="rack-test",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            data_address=os.environ["SWITCHSUM_DATA_ADDRESS"],
            elements=elements,
            timeout_s=10.0,
            peer_timeout_s=60.0,
        )
    )


def total(agent: Agent, values: np.ndarray) -> np.ndarray:
    target = np.empty_like(values)
    done = threading.Event()
    errors: list[SwitchSumError | None] = []

    def finished(error: SwitchSumError | None) -> None:
        errors.append(error)
        done.set()

    agent.all_reduce(values, target, f"sum of {values.dtype}[{values.size}]", finished)
    done.wait()
    if errors[0] is not None:
        raise errors[0]
    return target


def inputs(world_size: int) -> np.ndarray:
    return np.stack([np.random.default_rng(rank).standard_normal(VALUES, np.float32) for rank in range(world_size)])


def main(task: str, elements: int) -> int:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent = join(elements)
    everything = inputs(world_size)
    expected = reference_sum(everything, elements)
    try:
        for number in range(1_000_000 if task == "train" else 1):
            found = total(agent, everything[rank])
            assert found.tobytes() == expected.tobytes(), "wrong sum"
            if number == 0:
                print("right", flush=True)
            else:
                time.sleep(0.01)
    except SwitchSumError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)  # a rank whose job is dead has nothing to say to the controller
    agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
