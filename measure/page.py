"""A report as one page of HTML that needs nothing else: pictures are in it, and it can be printed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from switchsum.measure import findings, markup, numerals, paper
from switchsum.measure.drawing import Picture
from switchsum.measure.result_files import Found, Measured
from switchsum.measure.results import Results
from switchsum.measure.rows import Figure, Row
from switchsum.measure.table import wrong_elements

_BUSY_BEFORE = 0.05  # above, others had a part in the figures


def render(found: Found, measured: Sequence[Measured], pictures: Sequence[Picture], notes: Sequence[str]) -> str:
    """HTML 5. `measured`: what the pictures show; the tables show all of `found`."""
    title = "Communication benchmark"
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{markup.text(_between(found))}; {len(found.files)} file{'s' if len(found.files) > 1 else ''} of results.</p>",
        "<h2>Verdict</h2>",
        markup.bullets(_verdicts(found)),
        "<h2>The paper's findings, looked for here</h2>",
        markup.bullets(_paper_findings(measured)),
        "<h2>Pictures</h2>",
        *map(markup.figure, pictures),
        "<h2>How to read it</h2>",
        markup.bullets(map(markup.text, _LEGEND)),
        "<h2>Machine</h2>",
        _machine(found),
        "<h2>All rows</h2>",
        *(_rows(path.name, results) for path, results in found.files.items()),
        _conservation(found),
        *(["<h2>Notes</h2>", markup.bullets(map(markup.text, notes))] if notes else []),
    ]
    return markup.document(title, parts)


_LEGEND = (
    "A run is the unit: figures are means over runs, ± is the half-width of the 95 % interval (Student's t); p50 and p99 are "
    "over all operations of all runs. Transports took turns, run by run.",
    "MB and GB are 1e6 and 1e9 bytes, KiB and MiB 2^10 and 2^20. Payloads by the paper's names are decimal (1 KB = 1,000 "
    "bytes); sizes of sums are binary, as in nccl-tests.",
    "p2p-latency is one way: half of an echo's round trip. p2p-bandwidth: payload sent and acknowledged. ps-throughput: calls "
    "of all workers together. allreduce: the slowest worker's time.",
    "message: making one message of the buffers and buffers of a message, both sides together; part of the time.",
    "linkbw: what the busiest direction of a link carried; link: that beside its nominal rate. worker: CPU seconds that a "
    "worker spends on a GB of its payload. busy: share of all cores.",
    "limit: what held a row back: link (90 to 105 % of its rate), burst (more: credit from a pause), cpu (75 % of all cores, "
    "or 95 % of one by one process), - if nothing was full. A row that the processor limits says nothing about networks.",
    f"Hollow markers: published figures of other machines ({paper.SOURCE}). Method and shapes can be compared with them; their "
    "numbers are not to be reproduced, and are not claimed to be.",
)


def _verdicts(found: Found) -> list[str]:
    rows = [row for results in found.files.values() for row in results.rows]
    checked = [row for row in rows if row.wrong is not None]
    wrong = wrong_elements(rows)
    said = []
    if wrong:
        places = "; ".join(f"{row.benchmark} {row.label} {row.payload}: {row.wrong}" for row in rows if row.wrong)
        said.append(f"{markup.bad('Wrong results')}: {wrong:,} elements; {markup.text(places)}. Their times mean nothing.")
    elif checked:
        said.append(f"{markup.good('All results right')}: 0 wrong elements or bytes in {len(checked)} of {len(rows)} rows.")
    if len(checked) < len(rows):
        names = dict.fromkeys(row.label for row in rows if row.wrong is None)
        said.append(
            f"Not to be checked: {len(rows) - len(checked)} rows of {markup.text(', '.join(names))}, where nothing is summed."
        )
    ended = [path.name for path, results in found.files.items() if not results.complete]
    if ended:
        said.append(f"{markup.bad('Ended early')}: {markup.text(', '.join(ended))}; only the rows that were finished are here.")
    verdicts = [each for results in found.files.values() for each in results.verdicts]
    judged = [each for each in verdicts if each.get("ok") is not None]
    failed = [each for each in judged if not each["ok"]]
    if failed:
        which = dict.fromkeys(f"{each.get('label')} {each.get('payload')}" for each in failed)
        said.append(
            f"{markup.bad('Conservation failed')}: {len(failed)} of {len(judged)} counts are not what the algorithm must move "
            f"({markup.text(', '.join(which))})."
        )
    elif judged:
        said.append(f"{markup.good('Conservation holds')}: all {len(judged)} counts are what the algorithm must move.")
    else:
        said.append("Conservation was not checked: no counts in these files can be compared with what must be moved.")
    limited = [row for row in rows if row.limited_by == "cpu"]
    if limited:
        said.append(f"The processor limited {len(limited)} of {len(rows)} rows: they say nothing about networks.")
    lost = [row for row in rows if row.lost]
    if lost:
        where = ", ".join(f"{row.label} {row.payload}: {row.lost}" for row in lost)
        said.append(f"Datagrams lost and not sent again ({markup.text(where)}): these times are of fewer bytes.")
    busy = {path.name: results.environment.get("busy_before") for path, results in found.files.items()}
    others = [
        f"{name} {_percent(share)}" for name, share in busy.items() if isinstance(share, int | float) and share > _BUSY_BEFORE
    ]
    if others:
        said.append(f"{markup.bad('Busy machine')}: others used it before ({markup.text(', '.join(others))}); repeat it later.")
    return said


def _conservation(found: Found) -> str:
    """Of each row all counts that are wrong, or else the one that is farthest off."""
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for path, results in found.files.items():
        for each in results.verdicts:
            rows.setdefault((path.name, str(each.get("label")), str(each.get("payload"))), []).append(each)
    shown = []
    for (name, _, _), verdicts in rows.items():
        failed = [each for each in verdicts if each.get("ok") is False]
        shown += [{"file": name, **each} for each in failed or [max(verdicts, key=_off)]]
    if not shown:
        return ""
    columns = list(dict.fromkeys(name for each in shown for name in each))
    cells = [[_cell(each.get(name)) for name in columns] for each in shown]
    told = "Payload bytes of an operation; of each row the host and direction farthest off, or all that are wrong."
    return f"<h2>Conservation: counted against what must be moved</h2><p>{told}</p>{markup.table(columns, cells, 5)}"


def _off(verdict: dict[str, Any]) -> float:
    ratio = verdict.get("ratio")
    return abs(ratio - 1) if isinstance(ratio, int | float) else -1.0


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return markup.good("yes") if value else markup.bad("no")
    if isinstance(value, int):
        return f"{value:,}"
    return numerals.significant(value) if isinstance(value, float) else markup.text("-" if value is None else str(value))


def _paper_findings(measured: Sequence[Measured]) -> list[str]:
    said = []
    for compared in findings.skew_against_uniform(measured):
        what = "Latency rises from uniform to skew" if compared.above else "Calls a second fall from uniform to skew"
        said.append(
            f"{what}: {markup.text(compared.test.label)}, {markup.text(compared.test.setting.told)}: ratio "
            f"{numerals.ratio(compared.ratio)}, {_judged(compared.verdict)}."
        )
    for rates in findings.message_time_over_rates(measured):
        base, test = ((each.series.link_rate_bps or 0) / 1e6 for each in (rates.base, rates.test))
        at = f"{test:g} Mbit/s" if test else "links without a rate"
        differs = markup.bad("it differs") if rates.ratio.differs else markup.good("no difference shown")
        said.append(
            f"Serialization costs the same on every link: {markup.text(rates.test.label)}, "
            f"{markup.text(rates.test.row.payload)}: at {at} {numerals.ratio(rates.ratio)} times that at {base:g} Mbit/s, "
            f"{differs}."
        )
    for line in findings.count_lines(measured):
        agreement = f", slope × bandwidth = {numerals.ratio(line.agreement)}" if line.agreement else ""
        said.append(
            f"Latency grows with the number of buffers as a line with the slope 1/bandwidth: {markup.text(line.label)}, "
            f"{markup.text(line.setting.told)}: R² {line.line.r_squared:.5f}{agreement}, "
            f"{markup.good(line.verdict) if line.agrees else markup.bad(line.verdict)}."
        )
    return said or [
        "These files have neither uniform beside skew, nor one payload at several link rates, nor several counts of buffers."
    ]


def _judged(verdict: str) -> str:
    return {"reproduced": markup.good, "the opposite": markup.bad}.get(verdict, markup.text)(verdict)


def _between(found: Found) -> str:
    dates = sorted(str(results.environment.get("date", "")) for results in found.files.values())
    return f"Measured {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")


def _machine(found: Found) -> str:
    told: dict[str, Callable[[Results], str]] = {
        "CPU": lambda results: str(results.environment.get("cpu", "")),
        "cores": lambda results: str(results.environment.get("cores", "")),
        "kernel": lambda results: str(results.environment.get("kernel", "")),
        "Python": lambda results: str(results.environment.get("python", "")),
        "packages": lambda results: pairs(results.environment.get("packages")),
        "commit": lambda results: str(results.environment.get("git", "")) or "not a checkout",
        "links": lambda results: links(results),
        "variables": lambda results: pairs(results.environment.get("variables")),
        "where": lambda results: results.title.partition(": ")[2].partition(";")[0],
        "date": lambda results: str(results.environment.get("date", "")),
        "busy before": lambda results: _percent(results.environment.get("busy_before")),
        "command": lambda results: command(results),
    }
    lines: list[str] = []
    for name, of in told.items():
        files: dict[str, list[str]] = {}
        for path, results in found.files.items():
            files.setdefault(of(results), []).append(path.name)
        if len(files) == 1:
            shown = markup.text(next(iter(files)))
        else:
            shown = "<br>".join(f"{markup.text(value)} ({markup.text(', '.join(names))})" for value, names in files.items())
        if name == "command":
            shown = f"<code>{shown}</code>"
        if shown:
            lines.append(f'<tr><th class="text" scope="row">{name}</th><td class="text">{shown}</td></tr>')
    return f'<table class="about">{"".join(lines)}</table>'


def pairs(values: Any) -> str:
    """Names and values on a line."""
    return ", ".join(f"{name} {value}" for name, value in values.items()) if isinstance(values, dict) else ""


def _percent(value: Any) -> str:
    return f"{100 * value:.0f} %" if isinstance(value, int | float) else ""


def command(results: Results) -> str:
    """As it would be typed."""
    words = results.environment.get("command")
    return shlex.join(["switchsum", *map(str, words[1:])]) if isinstance(words, list) else ""


def links(results: Results) -> str:
    """What is known of the workers' links, each kind once."""
    kinds: dict[str, None] = {}
    for each in results.links:
        link = each.get("link") if isinstance(each, dict) else None
        if isinstance(link, dict):
            rate = link.get("rate_bps")
            shaped = f"tbf of {rate / 1e6:g} Mbit/s" if isinstance(rate, int | float) else "not shaped"
            rest = [
                f"{name.replace('_bytes', '')} {link[name]} B" for name in ("burst_bytes", "limit_bytes", "mtu") if name in link
            ]
            kinds[", ".join([shaped, *rest])] = None
    return "; ".join(kinds) or "the machine's own (loopback, or not told)"


_Column = tuple[str, Callable[[Row], str]]


_SUMS: list[_Column] = [
    ("algbw (MB/s)", lambda row: numerals.significant(1000 * row.algbw)),
    ("busbw (MB/s)", lambda row: numerals.significant(1000 * (row.busbw or 0.0))),
    ("switch (s/GB)", lambda row: "-" if row.switch_cpu is None else numerals.significant(row.switch_cpu, 3)),
]
_CALLS: list[_Column] = [("message", lambda row: "-" if row.serialize is None else _time(row.serialize))]
_RATE: list[_Column] = [("rate", lambda row: numerals.interval(row.headline, row.unit))]
_EVERY: list[_Column] = [
    ("time", lambda row: numerals.time(_micro(row.time))),
    ("p50", lambda row: _time(row.p50)),
    ("p99", lambda row: _time(row.p99)),
    ("linkbw (MB/s)", lambda row: numerals.significant(1000 * row.linkbw)),
    ("link", lambda row: "-" if row.link_share is None else f"{100 * row.link_share:.1f} %"),
    ("wrong", lambda row: "-" if row.wrong is None else markup.bad(f"{row.wrong:,}") if row.wrong else markup.good("0")),
    ("worker (s/GB)", lambda row: numerals.significant(row.worker_cpu, 3)),
    ("busy", lambda row: f"{100 * row.busy:.0f} %"),
    ("limit", lambda row: markup.text(row.limited_by)),
]
_USED: list[_Column] = [
    ("user, system (s)", lambda row: f"{row.user_s:.2f}, {row.system_s:.2f}"),
    ("switches: own, forced", lambda row: f"{row.voluntary_switches:,}, {row.involuntary_switches:,}"),
    ("sent, received (MB)", lambda row: f"{row.sent_bytes / 1e6:,.1f}, {row.received_bytes / 1e6:,.1f}"),
    ("dropped", lambda row: f"{row.dropped:,}"),
    ("resent", lambda row: "-" if row.resent is None else f"{row.resent:,}"),
]


def _rows(name: str, results: Results) -> str:
    sums = results.benchmark == "allreduce"
    rates = [] if sums or results.benchmark == "p2p-latency" else _RATE
    tables = []
    for columns in ([*rates, *_EVERY, *(_SUMS if sums else _CALLS)], _USED):
        cells = [
            [
                markup.text(row.payload),
                markup.text(row.label),
                f"{row.size_bytes:,}",
                str(row.buffers),
                *(of(row) for _, of in columns),
            ]
            for row in results.rows
        ]
        tables.append(markup.table(["payload", "transport", "bytes", "buffers", *(title for title, _ in columns)], cells, 2))
    told = "<p>What all processes of a row used in all runs, and what its links carried:</p>"
    title = "; ".join(results.title.split("; ")[:2])  # the rest is in the legend
    return f"<h3>{markup.text(title)} ({markup.text(name)})</h3>{told.join(tables)}"


def _micro(time: Figure) -> Figure:
    return Figure(1e6 * time.mean, 1e6 * time.ci95, ())


def _time(seconds: float) -> str:
    size, unit = numerals.microseconds(1e6 * seconds)
    return f"{numerals.significant(1e6 * seconds / size)} {unit}"
