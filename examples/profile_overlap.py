"""How much of the sums hides behind backward: one training step under torch.profiler, drawn.

    torchrun --nproc-per-node 2 examples/profile_overlap.py --backend switchsum --plot overlap.png

Rank 0 draws when backward computes and when each bucket's sum is under way, and prints the share of the sums' time in which
backward computed as well. `--trace FILE` keeps the trace itself, for chrome://tracing or Perfetto.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

parser = argparse.ArgumentParser(description="Draw one DDP step: backward and the sums of its buckets.")
parser.add_argument("--backend", default="switchsum", help="name of a torch.distributed backend")
parser.add_argument("--width", type=int, default=768, help="features of each of the 12 layers")
parser.add_argument("--bucket-mb", type=float, default=2.0)
parser.add_argument("--trace", type=Path, help="file for the trace (JSON)")
parser.add_argument("--plot", type=Path, help="file for the picture (PNG)")
options = parser.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores
dist.init_process_group(options.backend)
layers = [layer for _ in range(12) for layer in (nn.Linear(options.width, options.width), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=options.bucket_mb)
inputs = torch.randn(256, options.width)
for _ in range(4):  # the first step has one bucket of everything
    model(inputs).square().mean().backward()
dist.barrier()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    model(inputs).square().mean().backward()
dist.barrier()

if dist.get_rank() == 0:
    with tempfile.TemporaryDirectory() as folder:
        path = options.trace or Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == f"{options.backend}:all_reduce"]
    backward = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("autograd::engine::evaluate_function")]
    hidden = sum(max(0.0, min(b, d) - max(a, c)) for a, b in spans for c, d in backward)
    total = sum(end - start for start, end in spans)
    print(f"{len(spans)} sums over {options.backend}, {100 * hidden / total:.0f} % of their time beside backward's computing")
    if options.plot:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        origin = min(start for start, _ in backward)
        figure, axes = pyplot.subplots(figsize=(9, 3), layout="constrained")
        for row, (name, intervals) in enumerate((("backward", backward), *((f"sum {i}", [s]) for i, s in enumerate(spans)))):
            bars = [((start - origin) / 1000, (end - start) / 1000) for start, end in intervals]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors="tab:gray" if row == 0 else "tab:blue")
            axes.text(-0.01, row, name, ha="right", va="center", fontsize=7, transform=axes.get_yaxis_transform())
        axes.set_yticks([])
        axes.invert_yaxis()
        axes.set_xlabel("ms since backward began")
        axes.set_title(f"One DDP step on rank 0 of {dist.get_world_size()}, {options.backend}")
        figure.savefig(options.plot, dpi=100)
dist.destroy_process_group()
