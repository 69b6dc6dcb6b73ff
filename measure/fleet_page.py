"""A fleet as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from switchsum.measure import fleet, markup
from switchsum.measure.drawing import Picture
from switchsum.measure.fleet import LEVELS, PARTS, PER_HOST, Fleet, Job
from switchsum.measure.prediction import NOT_MODELLED, Ground

# What the paper's abstract says, and nothing else of it: arXiv 1910.05930.
ABSTRACT = (
    "It presents an analytical framework that breaks the execution time of workloads down by component and architecture.",
    "By it, communication of weights and gradients takes almost 62 % of the total execution time, averaged over all workloads.",
    "Computation, of the GPU and of its memory together, is not the biggest bottleneck in the workloads' collective behaviour.",
    "60 % of the PS/Worker workloads could potentially be sped up by porting them to AllReduce with NVLink.",
    "Workloads would be 1.7 times as fast on average if Ethernet went from 25 to 100 Gbit/s.",
)


def render(found: Fleet, pictures: Sequence[Picture], ground: Ground) -> str:
    """HTML 5."""
    title = "A fleet of training jobs"
    workers = sum(job.features.workers for job in found.jobs)
    parts = [
        f"<h1>{title}</h1>",
        _banner(found),
        f"<p>{len(found.jobs):,} jobs with {workers:,} workers (cNodes).</p>",
        "<h2>Pictures</h2>" if pictures else "",
        *map(markup.figure, pictures),
        "<h2>Classes</h2>",
        _classes(found),
        *(["<h2>Changes</h2>", _changes(found)] if found.changes else []),
        "<h2>Assumptions</h2>",
        markup.bullets(map(markup.text, _assumptions(found, ground))),
        "<h2>What Alibaba-PAI's paper says of its own fleet</h2>",
        f"<p>{markup.bad('None of it was found here.')} Wang et al., Characterizing Deep Learning Training Workloads on "
        "Alibaba-PAI (IISWC 2019, arXiv 1910.05930), abstract, about other jobs on other machines:</p>",
        markup.bullets(map(markup.text, ABSTRACT)),
        *(["<h2>Notes</h2>", markup.bullets(map(markup.text, found.notes))] if found.notes else []),
    ]
    return markup.document(title, parts)


def _banner(found: Fleet) -> str:
    if not found.synthetic:
        return ""
    count = "All" if found.synthetic == len(found.jobs) else f"{found.synthetic:,} of {len(found.jobs):,}"
    said = (
        f"SYNTHETIC: {count} jobs on this page are made up by a generator. Nothing about them was measured, and no figure here "
        "says anything about real jobs."
    )
    return f"<p>{markup.bad(said)}</p>"


def _classes(found: Fleet) -> str:
    titles = [
        "class",
        "jobs",
        "workers",
        *(f"{part}, {level} level" for level in LEVELS for part in PARTS),
        "exposed, measured",
    ]
    groups: list[tuple[str, Sequence[Job]]] = [("all", found.jobs), *((name, found.of_class(name)) for name in found.classes)]
    rows = []
    for name, jobs in groups:
        shares = [fleet.mean_shares(jobs, level) for level in LEVELS]
        cells = ["-" if each is None else f"{100 * each[part]:.1f} %" for each in shares for part in PARTS]
        workers = sum(job.features.workers for job in jobs)
        exposed = f"{100 * fleet.mean_exposed(jobs, 'job'):.1f} %"
        rows.append([markup.text(name), f"{len(jobs):,}", f"{workers:,}", *cells, exposed])
    return markup.table(titles, rows, 1)


def _changes(found: Fleet) -> str:
    rows = []
    for name in found.changes:
        able = sum(name in job.gains for job in found.jobs)
        share = [f"{100 * fleet.gaining(found.jobs, name, level):.1f} %" for level in LEVELS]
        rows.append([markup.text(name), f"{able:,}", *share, *(f"{each:.2f}" for each in fleet.speedups(found.jobs, name))])
    titles = ["change", "jobs that could", "would gain, job level", "cNode level", "least speed-up", "median", "most"]
    return markup.table(titles, rows, 1)


def _assumptions(found: Fleet, ground: Ground) -> Iterator[str]:
    yield (
        "Shares are of T_input + T_compute + T_weights without overlap; input and computing as measured, sums as the model has "
        "them. A rest that steps had besides is left out."
    )
    if ground.calibration is None:
        yield f"Every nominal rate times {ground.efficiency:g}, without latency: a guess, nothing of it was measured."
    else:
        yield f"Links calibrated by {', '.join(ground.calibration.sources)}, taken to hold for all jobs."
        if ground.efficiency is None:
            yield "pcie and nvlink: 100 % of their rates, since the calibration is of links between hosts alone."
    yield (
        "1wng, allreduce-local and pearl sum inside one host; ps/worker by as many dedicated servers as workers; "
        f"allreduce-cluster in hosts of up to {PER_HOST}, then between them; ddp around a ring; switch by one, or by a tree."
    )
    yield "A change is made alone: workers, batch and schedule stay; a job whose link is not known has the first Ethernet rate."
    for name, why in NOT_MODELLED.items():
        if count := len(found.of_class(name)):
            yield f"{count} jobs of class {name} are not modelled and in no share: {why}."
