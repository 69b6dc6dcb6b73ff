"""docs/pytorch-conformance.md from the outcomes of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import torch

from tests.torch.upstream.suite import FAILED, MANY_RANKS, PASSED, RANKS, SKIPPED, Outcome, asks_for_gpus

WIDTH = 128

HEAD = """\
# PyTorch's own distributed tests

PyTorch ships tests for its backends in `torch.testing._internal.distributed`: `distributed_test`, and
`ddp_under_dist_autograd_test` for DDP beside RPC. This page says which of them pass over `switchsum` and over Gloo, on CPU
tensors, with PyTorch {version} and {ranks} ranks.

{summary}

A test applies if it passes over at least one of the two. What fails over Gloo too, or is skipped by PyTorch itself, is listed
at the end with the reason. This page is generated:

```console
$ .venv/bin/python -m tests.torch.upstream --table docs/pytorch-conformance.md
```

The run takes a quarter of an hour on two cores and is bounded: a test that does not end in time is stopped and counts as
failed. `-k PATTERN` runs a part, `--backend switchsum` leaves Gloo out, `--logs FOLDER` keeps what the ranks printed. One
embedded switch serves the whole run, or the one that `SWITCHSUM_CONTROLLER` names. `make test` runs a few of the tests.

## How they are run

Each rank is a process of its own; a test passes only if every rank ends well (PyTorch looks at rank 0 alone). PyTorch picks
tests by the backend's name; here it is told "gloo" while it picks, and each rank then opens a group of the backend under test.
Three of its conditions are lifted, and Gloo's outcome tells whether the test makes sense all the same:

- "needs GPUs": what the test wants on a GPU is on the CPU (`tests/torch/upstream/gpus.py`). Most tests of DDP are of this kind.
- "only NCCL", "only MPI": Gloo has learned `all_to_all` since, for instance.
- "needs {many} ranks": it gets {many}.

One thing is checked for Gloo only: that PyTorch's profiler shows a collective under the backend's name. PyTorch has a list of
the backends of which it expects that.
"""


def page(outcomes: dict[str, dict[str, Outcome]]) -> str:
    """Needs outcomes of both backends; a test that one of them lacks is left out."""
    gloo, ours = outcomes["gloo"], outcomes["switchsum"]
    names = sorted(gloo.keys() & ours.keys())
    applies = [name for name in names if PASSED in (gloo[name].status, ours[name].status)]
    skipped = [name for name in names if gloo[name].status == SKIPPED]
    fails = [name for name in names if name not in applies and name not in skipped]
    rows = [("", "Gloo", "switchsum"), ("---", "---:", "---:")]
    rows += [
        (status, *(str(sum(of[name].status == status for name in applies)) for of in (gloo, ours)))
        for status in (PASSED, FAILED)
    ]
    for what, of in (("apply", applies), ("not applicable: fail over Gloo too", fails), ("skipped by PyTorch", skipped)):
        rows.append((what, str(len(of)), str(len(of))))
    summary = "\n".join(map(_row, rows))
    head = HEAD.format(version=torch.__version__.partition("+")[0], ranks=RANKS, many=MANY_RANKS, summary=summary)
    table = [("test", "Gloo", "switchsum", "remark"), ("---",) * 4]
    table += [(f"`{name}`", gloo[name].status, ours[name].status, _remark(name, gloo[name], ours[name])) for name in applies]
    for_gpus = [name for name in fails if asks_for_gpus(name)]
    others = [name for name in fails if name not in for_gpus]
    parts = [
        head,
        "## Tests that apply\n",
        "\n".join(map(_row, table)) + "\n",
        "## Not applicable: fail over Gloo too\n",
        "These ask for GPUs, and Gloo shows that the CPU will not do; they were not run over `switchsum`:\n",
        _wrapped(_names(for_gpus)) + "\n",
        "These are of another backend, or of what Gloo does not do:\n",
        _by_reason(others, gloo) + "\n",
        "## Skipped by PyTorch\n",
        _by_reason(skipped, gloo) + "\n",
    ]
    return "\n".join(parts)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _remark(name: str, gloo: Outcome, ours: Outcome) -> str:
    remarks = [f"{ours.ranks} ranks"] if ours.ranks != RANKS else []
    remarks += ["asks for GPUs"] if asks_for_gpus(name) else []
    remarks += [f"Gloo: {gloo.reason}"] if gloo.status == FAILED else []
    remarks += [ours.reason] if ours.status == FAILED else []
    return "; ".join(remarks)


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _wrapped(text: str, first: str = "") -> str:
    rest = " " * len(first)
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _by_reason(names: list[str], outcomes: dict[str, Outcome]) -> str:
    reasons = sorted({outcomes[name].reason for name in names})
    return "\n".join(
        _wrapped(f"{reason}: {_names([name for name in names if outcomes[name].reason == reason])}", "- ") for reason in reasons
    )
