"""The pictures of a report: each a PNG, a text for those who cannot see it, and sentences on how to read it and what it shows.

One colour per transport in all of them (Okabe and Ito's, which colour-blind people can tell apart). Bars and axes of amounts
begin at zero. What the paper published stands in a panel of its own, on an axis of its own: its links were 100 to 1000 times
faster than an emulated rack's, and on one axis one of the two would be flat. So shapes can be compared, and heights cannot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from switchsum.measure import drawing, findings, formulas, numerals, paper
from switchsum.measure.drawing import Picture
from switchsum.measure.findings import CountLine
from switchsum.measure.intervals import ratio
from switchsum.measure.result_files import Measured, Setting
from switchsum.measure.rows import Figure
from switchsum.measure.timelines import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "tcp": "#0072B2",
    "grpc": "#E69F00",
    "gloo": "#009E73",
    "switchsum": "#D55E00",
    "switchsum16": "#CC79A7",
    "switchsum8": "#7A3E9D",
    "nccl": "#56B4E9",
    "limit": "#8C8C8C",
}
# Of processes: Tol's muted ones, so that none is taken for a transport.
_PROCESS_COLOURS = ("#332288", "#882255", "#44AA99", "#999933", "#AA4499", "#661100", "#6699CC", "#DDCC77")
_MARKERS = dict(zip(_COLOURS, "os^DvPX*", strict=True))
_PAPER_MARKERS = "os^os^"
_SERIALIZED_HATCH = "///"
_MESSAGE_HATCH = "xxxx"
_MOST_PANELS = 3
_PAPER_TITLE = "the paper: other machines,\nnot comparable in height"
_64_KB = range(60_000, 70_000)  # 64 KB and 64 KiB


def all_pictures(measured: Sequence[Measured], timelines: Mapping[str, Timeline]) -> list[Picture]:
    """Those that the measurements suffice for. `timelines`: by file. Needs matplotlib."""
    lines = findings.count_lines(measured)
    counted = {id(each) for line in lines for each in line.measured}
    found = []
    for benchmark in paper.BY_SCHEME:
        for setting, members in findings.by_setting(measured, benchmark).items():
            mixed = [each for each in members if each.row.buffers > 1 and id(each) not in counted]
            found += [by_payload(setting, mixed)] if mixed else []
    for benchmark in ("p2p-bandwidth", "allreduce"):
        for setting, members in findings.by_setting(measured, benchmark).items():
            plain = [each for each in members if each.buffer_bytes is not None]
            for some in (plain, members):  # mixtures of sizes only where there is nothing plainer
                if len({each.row.size_bytes for each in some}) > 1:
                    found.append(over_size(setting, some))
                    break
    places = {(line.setting, line.buffer_bytes): None for line in lines}
    found += [over_buffers([line for line in lines if (line.setting, line.buffer_bytes) == place]) for place in places]
    for setting, members in findings.by_setting(measured, "p2p-latency").items():
        both = {each.row.payload for each in members if each.row.mode == "serialized"}
        if both:
            found.append(serialized(setting, [each for each in members if each.row.payload in both]))
    for setting, members in findings.by_setting(measured, "allreduce").items():
        # Sizes have a picture of their own, so where there are payloads besides, they stand here alone.
        mixed = [each for each in members if each.buffer_bytes is None]
        if len({each.label for each in members}) > 1:
            found.append(sums(setting, mixed or members))
    if measured:
        found.append(processor_cost(measured))
    found += [resources(name, timeline) for name, timeline in timelines.items()]
    return _named_apart(found)


def by_payload(setting: Setting, measured: Sequence[Measured]) -> Picture:
    """Grouped bars of the headline figure: payload by transport, the paper's values beside them."""
    benchmark = setting.benchmark
    unit, scale = _unit(measured)
    payloads, labels = _names(each.row.payload for each in measured), _names(each.label for each in measured)
    published = {name: values for name, values in paper.BY_SCHEME[benchmark].items() if name in payloads}
    width = max(5.0, 1.5 + 0.42 * len(payloads) * (len(labels) + 1))
    canvas, panels = drawing.canvas([width, *([3.6] if published else [])], 4.4)
    axes = panels[0]
    _bars(axes, payloads, labels, measured, lambda each: _scaled(each.row.headline, scale))
    what = {"p2p-latency": "latency, one way", "p2p-bandwidth": "bandwidth", "ps-throughput": "calls of all workers"}[benchmark]
    axes.set_ylabel(f"{what} ({unit})")
    link = _link_rate(setting, axes) if benchmark == "p2p-bandwidth" else None
    axes.set_title("here", fontsize=9)
    _legend(axes)
    if published:
        _published(panels[1], published, {"p2p-latency": "latency (ms)"}.get(benchmark, f"{what} ({unit})"))
    says = [
        "Bars are means over runs with their 95 % intervals"
        + ("; hollow markers are what the paper published for other machines, on an axis of their own." if published else ".")
    ]
    if benchmark == "ps-throughput" and (setting.servers, setting.workers) != (2, 3) and published:
        says.append(f"The paper had 2 servers and 3 workers; here: {setting.told}.")
    for compared in findings.skew_against_uniform(measured):
        numbers = (
            [skew / uniform for skew, uniform in zip(published["skew"], published["uniform"], strict=True)]
            if ({"skew", "uniform"} <= set(published))
            else []
        )
        there = f"; the paper's networks: {min(numbers):.2f} to {max(numbers):.2f}" if numbers else ""
        says.append(
            f"{compared.test.label}: skew is {numerals.ratio(compared.ratio)} times uniform, {compared.verdict}{there}."
        )
    if benchmark == "p2p-bandwidth":
        for label in labels:
            best = max((each for each in measured if each.label == label), key=lambda each: each.row.headline.mean)
            of_link = f", {100 * best.row.headline.mean / link:.1f} % of the link's nominal rate" if link else ""
            says.append(f"{label}: at most {numerals.interval(best.row.headline, 'MB/s')} ({best.row.payload}){of_link}.")
    alt = f"Grouped bars: {what} of {_and(labels)} for {_and(payloads)}."
    return drawing.picture(benchmark, f"{benchmark} by payload: {setting.told}", alt, says, canvas)


def over_size(setting: Setting, measured: Sequence[Measured]) -> Picture:
    """Bandwidth over size, a line per transport with its 95 % band, the link's nominal rate; of sums algbw, busbw, linkbw."""
    sums = setting.benchmark == "allreduce"
    quantities: dict[str, Callable[[Measured], Figure]] = (
        {
            name: lambda each, of=of: _scaled(of(each), 1000)  # type: ignore[misc]
            for name, of in (("algbw", findings.algbw), ("busbw", findings.busbw), ("linkbw", findings.linkbw))
        }
        if sums
        else {"bandwidth": lambda each: each.row.headline}
    )
    labels = _names(each.label for each in measured)
    canvas, panels = drawing.canvas([3.6] * 3 if sums else [7.0], 4.4, share_y=True)
    link, top = None, 0.0
    for axes, (name, of) in zip(panels, quantities.items(), strict=True):
        for label in labels:
            mine = sorted((each for each in measured if each.label == label), key=lambda each: each.row.size_bytes)
            if name == "busbw" and mine[0].row.wrong is None:  # nothing is summed, so the factor means nothing
                continue
            sizes, figures = [each.row.size_bytes for each in mine], [of(each) for each in mine]
            low, high = ([each.mean + sign * _known(each.ci95) for each in figures] for sign in (-1, 1))
            colour, marker, style = _look(mine[0])
            middle = [each.mean for each in figures]
            axes.plot(sizes, middle, color=colour, marker=marker, linestyle=style, markersize=4, label=label)
            axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
            top = max(top, *high)
        link = _link_rate(setting, axes)
        _size_axis(axes, [each.row.size_bytes for each in measured])
        axes.set_title(name, fontsize=9)
        axes.grid(True, alpha=0.3)
    panels[0].set_ylim(0, 1.05 * max(top, link or 0.0))
    panels[0].set_ylabel("MB/s")
    _legend(panels[0], canvas)
    dashed = "the dashed line the link's nominal rate" if link else "links without a rate have no line"
    says = [f"Lines are means over runs, bands their 95 % intervals; {dashed}."]
    if sums:
        says.append(
            "busbw is algbw times 2(n-1)/n, which a switch that adds can bring above the link's rate; linkbw is what the "
            "busiest direction of a link carried, headers included where the interface counts."
        )
    if any(each.row.limited_by == "burst" for each in measured):
        says.append(
            "Small payloads pass above the link's rate on credit: a token bucket gathers it in the pause before an operation."
        )
    for label in labels:
        mine = [each for each in measured if each.label == label]
        largest = max(mine, key=lambda each: each.row.size_bytes)
        name = "linkbw" if sums else "bandwidth"
        figure = quantities[name](largest)
        of_link = f", {100 * figure.mean / link:.1f} % of the link's rate" if link else ""
        says.append(f"{label}, {largest.row.payload}: {name} {numerals.interval(figure, 'MB/s')}{of_link}.")
    alt = f"Lines of {_and(quantities)} over size for {_and(labels)}."
    return drawing.picture(
        f"{setting.benchmark}-over-size", f"{setting.benchmark}, bandwidth over size: {setting.told}", alt, says, canvas
    )


def over_buffers(lines: Sequence[CountLine]) -> Picture:
    """Latency over the number of buffers of one size, with the fitted lines."""
    setting, buffer_bytes = lines[0].setting, lines[0].buffer_bytes
    unit, scale = _unit([each for line in lines for each in line.measured])
    canvas, panels = drawing.canvas([6.4, 3.6], 4.4)
    axes = panels[0]
    says = ["Points are means over runs with their 95 % intervals; the straight lines are fitted by least squares."]
    for line in lines:
        colour, marker, style = _look(line.measured[0])
        counts = [each.row.buffers for each in line.measured]
        figures = [_scaled(each.row.headline, scale) for each in line.measured]
        errors = [_known(each.ci95) for each in figures]
        axes.errorbar(
            counts, [each.mean for each in figures], yerr=errors, fmt=marker, color=colour, markersize=5, capsize=3,
            label=line.label,
        )  # fmt: skip
        ends = [min(counts), max(counts)]
        fitted = [line.line.at(count * buffer_bytes / formulas.MEGA) * scale for count in ends]
        axes.plot(ends, fitted, color=colour, linestyle=style, linewidth=1)
        says.append(_line_says(line))
    axes.set_xlabel(f"buffers of {_decimal(buffer_bytes)} each")
    axes.set_ylabel(f"latency, one way ({unit})")
    axes.set_title("here", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    _whole_numbers(axes)
    beside = panels[1]
    for number, (network, by_count) in enumerate(paper.BY_BUFFERS.items()):
        counts, values = list(by_count), list(by_count.values())
        beside.plot(counts, values, _PAPER_MARKERS[number + 1], color="black", fillstyle="none", markersize=7, label=network)
    beside.set_xlabel("buffers of 1 MB each")
    _paper_axes(beside, "latency (ms)")
    beside.set_xlim(left=0)
    beside.legend(fontsize=7, loc="upper left")
    alt = f"Latency of {_and(line.label for line in lines)} over the number of buffers, with fitted straight lines."
    return drawing.picture("latency-over-buffers", f"p2p-latency over the number of buffers: {setting.told}", alt, says, canvas)


def _line_says(line: CountLine) -> str:
    slope = numerals.interval(Figure(line.line.slope, line.line.slope_ci95, ()), "µs per MB")
    text = f"{line.label}: slope {slope}, R² = {line.line.r_squared:.5f}"
    if line.bandwidth is None or line.agreement is None:
        return f"{text}; {line.verdict}."
    rate = line.bandwidth.row
    inverse = numerals.significant(1e6 / rate.headline.mean)
    return (
        f"{text}; 1/bandwidth ({rate.payload}) is {inverse} µs per MB, and the slope is {numerals.ratio(line.agreement)} times "
        f"that: {100 * (line.agreement.value - 1):+.1f} %, {line.verdict}."
    )


def serialized(setting: Setting, measured: Sequence[Measured]) -> Picture:
    """Latency as communication and the making of messages, by transport; a panel for each payload, the smallest first."""
    sizes = {each.row.payload: each.row.size_bytes for each in measured}
    payloads = sorted(sizes, key=lambda name: sizes[name])[:_MOST_PANELS]
    measured = [each for each in measured if each.row.payload in payloads]
    published = any(sizes[name] in _64_KB for name in payloads)
    labels = _names(each.label for each in measured)
    wide = max(2.6, 0.8 + 0.55 * len(labels))
    canvas, panels = drawing.canvas([*[wide] * len(payloads), *([3.0] if published else [])], 4.6)
    says = [
        "Below: communication. Crossed, on top: making one message of the buffers and buffers of a message, on both sides "
        "together. Error bars: 95 % intervals of the whole."
    ]
    for axes, payload in zip(panels, payloads, strict=False):
        mine = [each for each in measured if each.row.payload == payload]
        unit, scale = _unit(mine)
        for place, each in enumerate(mine):
            message = findings.message_time(each)
            whole, part = _scaled(each.row.headline, scale), (message.mean * scale if message else 0.0)
            colour, _, _ = _look(each)
            hatch = _SERIALIZED_HATCH if each.row.mode == "serialized" else None
            axes.bar(place, whole.mean - part, 0.7, color=colour, hatch=hatch, edgecolor="white", linewidth=0)
            axes.bar(place, part, 0.7, whole.mean - part, color="white", hatch=_MESSAGE_HATCH, edgecolor=colour, linewidth=1)
            axes.errorbar(place, whole.mean, yerr=_known(whole.ci95), color="black", capsize=3, linewidth=1)
            if message and each.row.mode == "serialized":
                share = 100 * message.mean / each.row.headline.mean
                says.append(
                    f"{each.label}, {payload}: {numerals.time(each.row.headline)}, of which "
                    f"{numerals.time(message)} ({share:.1f} %) make messages."
                )
        _ticks(axes, [_stacked(each.label) for each in mine])
        axes.set_ylabel(f"latency, one way ({unit})")
        axes.set_title(payload, fontsize=9)
        axes.set_ylim(bottom=0)
    if published:
        beside = panels[-1]
        for place, (communication, message_us) in enumerate(paper.SERIALIZED_64KB.values()):
            beside.bar(place, communication, 0.7, fill=False, edgecolor="black")
            beside.bar(place, message_us, 0.7, communication, fill=False, edgecolor="black", hatch=_MESSAGE_HATCH)
        _ticks(beside, [name.replace(" ", "\n", 1) for name in paper.SERIALIZED_64KB])
        _paper_axes(beside, "latency of 64 KB, serialized (µs)")
        says.append("Hollow: the paper's 64 KB, communication and serialization, on an axis of its own.")
    alt = f"Stacked bars: communication and making of messages for {_and(labels)}, payloads {_and(payloads)}."
    return drawing.picture("serialized", f"Serialized against unserialized: {setting.told}", alt, says, canvas)


def sums(setting: Setting, measured: Sequence[Measured]) -> Picture:
    """algbw of sums by payload and transport: parameter server, ring and switch on the same payloads."""
    payloads, labels = _names(each.row.payload for each in measured), _names(each.label for each in measured)
    canvas, panels = drawing.canvas([max(6.0, 1.5 + 0.42 * len(payloads) * (len(labels) + 1))], 4.4)
    _bars(panels[0], payloads, labels, measured, lambda each: _scaled(findings.algbw(each), 1000))
    panels[0].set_ylabel("algbw: payload / time (MB/s)")
    _link_rate(setting, panels[0])
    _legend(panels[0])
    says = ["Higher is better: bytes of one worker's payload over the slowest worker's time, mean over runs, 95 % intervals."]
    largest = max(measured, key=lambda each: each.row.size_bytes).row.payload
    of_largest = {each.label: each for each in measured if each.row.payload == largest}
    base = of_largest.get("switchsum") or next(iter(of_largest.values()))
    for label, each in of_largest.items():
        if each is not base and label != "limit":
            times = ratio(each.row.time.runs, base.row.time.runs)
            verdict = "" if times.differs else "; no difference shown"
            says.append(f"{largest}: {label} takes {numerals.ratio(times)} times as long as {base.label}{verdict}.")
    if "limit" in labels:
        says.append("limit only sends the same datagrams around and sums nothing: what this path can carry at best.")
    alt = f"Grouped bars: algbw of sums over {_and(labels)} for {_and(payloads)}."
    return drawing.picture("allreduce", f"Sums by parameter server, ring and switch: {setting.told}", alt, says, canvas)


def processor_cost(measured: Sequence[Measured]) -> Picture:
    """CPU seconds on a GB, by transport: a panel for each benchmark and setting, at the largest payload of all transports."""
    from matplotlib.patches import Patch

    groups = []
    for benchmark in (*paper.BY_SCHEME, "allreduce"):
        for setting, members in findings.by_setting(measured, benchmark).items():
            met = Counter(payload for payload, _ in {(each.row.payload, each.row.transport) for each in members})
            largest = max(members, key=lambda each: (met[each.row.payload], each.row.size_bytes)).row.payload
            groups.append((setting, largest, [each for each in members if each.row.payload == largest]))
    columns = min(2, len(groups))
    canvas, panels = drawing.canvas(
        [4.6] * columns, 2.9 * math.ceil(len(groups) / columns) + 0.3, rows=math.ceil(len(groups) / columns)
    )
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    hatches = {"a worker": None, "servers": "\\\\\\", "switch": "..."}
    says = [
        "CPU seconds, user and system: of one worker on a GB of its own payload (plain), of all servers (hatched) and of the "
        "switch (dotted) on a GB of all payload; 95 % intervals. A program's switch costs what no hardware switch would."
    ]
    for axes, (setting, payload, members) in zip(panels, groups, strict=False):
        costs = [findings.cpu_cost(each) for each in members]
        who = [name for name in hatches if any(name in cost for cost in costs)]
        for place, (each, cost) in enumerate(zip(members, costs, strict=True)):
            colour, _, _ = _look(each)
            for part, name in enumerate(who):
                if name in cost:
                    at = place + (part - (len(who) - 1) / 2) * 0.8 / len(who)
                    style: dict[str, Any] = {
                        "hatch": hatches[name],
                        "color": colour,
                        "edgecolor": "white" if hatches[name] else colour,
                    }
                    axes.bar(at, cost[name].mean, 0.8 / len(who), linewidth=0, **style)
                    axes.errorbar(at, cost[name].mean, yerr=_known(cost[name].ci95), color="black", capsize=2, linewidth=1)
        _ticks(axes, [_stacked(each.label) for each in members])
        axes.set_ylabel("CPU s/GB")
        axes.set_title(f"{setting.benchmark}, {payload}\n{setting.told}", fontsize=8)
        axes.set_ylim(bottom=0)
        cheapest = min(zip(members, costs, strict=True), key=lambda pair: pair[1]["a worker"].mean)
        says.append(
            f"{setting.benchmark}, {payload} ({setting.told}): a worker spends least with {cheapest[0].label}, "
            f"{numerals.interval(cheapest[1]['a worker'], 's/GB')}."
        )
    keys = [Patch(facecolor="#BBBBBB", hatch=hatch, edgecolor="white", label=name) for name, hatch in hatches.items()]
    canvas.legend(handles=keys, loc="outside lower center", ncols=3, fontsize=8)
    alt = "Bars: CPU seconds per GB by transport, for each benchmark."
    return drawing.picture("cpu-cost", "What a GB costs the processor", alt, says, canvas)


def resources(name: str, timeline: Timeline) -> Picture:
    """CPU, memory and interface of every process over time; shaded by the transport whose run was under way."""
    canvas, panels = drawing.canvas([9.0], 6.6, rows=3, share_x=True)
    processor, memory, interface = panels
    for span in timeline.spans:
        colour = _COLOURS.get(span.transport.split(" ")[0], "#BBBBBB")
        for axes in panels:
            axes.axvspan(span.begin_s, span.end_s, color=colour, alpha=0.15, linewidth=0)
    numbers = {label: number for number, label in enumerate(_names(track.name for track in timeline.processes))}
    for track in timeline.processes:
        look: dict[str, Any] = {
            "color": "black" if track.kind == "switch" else _PROCESS_COLOURS[numbers[track.name] % len(_PROCESS_COLOURS)],
            "linestyle": "-" if track.crew == 0 else "--",
            "linewidth": 1,
        }
        processor.plot(*track.cpu_percent, label=track.label, **look)
        memory.plot(*track.resident_mb, **look)
        if track.kind == "rank" and track.sent_mbit_s is not None:
            interface.plot(*track.sent_mbit_s, **look)
    if timeline.machine_percent is not None:
        processor.plot(*timeline.machine_percent, color="#555555", linestyle=":", linewidth=1.2, label="all cores")
    processor.set_ylabel("CPU (% of a core;\nall cores: of all)", fontsize=8)
    memory.set_ylabel("memory (MB)", fontsize=8)
    interface.set_ylabel("sent over loopback,\nall (Mbit/s)" if timeline.shared_interface else "sent (Mbit/s)", fontsize=8)
    interface.set_xlabel("seconds since the first run")
    interface.set_xlim(-1, max(span.end_s for span in timeline.spans))
    for axes in panels:
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
    places = [(begin_s, text) for begin_s, text in timeline.payloads]
    top = processor.secondary_xaxis("top")
    top.set_xticks([begin_s for begin_s, _ in places], [text for _, text in places], fontsize=7, rotation=30, ha="left")
    from matplotlib.patches import Patch

    shades = [
        Patch(color=_COLOURS.get(transport.split(" ")[0], "#BBBBBB"), alpha=0.3, label=f"run of {transport}")
        for transport in _names(span.transport for span in timeline.spans)
    ]
    handles, _ = processor.get_legend_handles_labels()
    canvas.legend(handles=[*handles, *shades], loc="outside right upper", fontsize=7)
    says = ["Shades tell whose run was under way; above stand the payloads, where each begins."]
    if timeline.machine_percent is not None and timeline.machine_percent[1]:
        busy = timeline.machine_percent[1]
        says.append(f"All cores together were busy for {sum(busy) / len(busy):.0f} % of the time, at most {max(busy):.0f} %.")
    peaks = {track.label: max(track.resident_mb[1]) for track in timeline.processes if track.resident_mb[1]}
    if peaks:
        most = max(peaks, key=lambda label: peaks[label])
        says.append(f"The most memory had {most}: {peaks[most]:,.0f} MB.")
    if timeline.shared_interface:
        says.append("All processes share the loopback, so what is sent is that of all of them together.")
    errors = [track.clock_error_s for track in timeline.processes if track.clock_error_s]
    if errors:
        says.append(f"Clocks of other machines may be wrong by {1e3 * max(errors):.1f} ms.")
    alt = f"Time series of CPU, memory and sent bytes of {_and(numbers)} during {name}."
    return drawing.picture(f"resources-{name}", f"Resources over time: {name}", alt, says, canvas)


def _look(each: Measured) -> tuple[str, str, str]:
    """Colour, marker and line style; those of a name that nobody has foreseen are black."""
    name = each.row.transport
    serialized = each.row.mode == "serialized"
    return _COLOURS.get(name, "black"), _MARKERS.get(name, "h"), "--" if serialized else "-"


def _bars(
    axes: Axes, payloads: Sequence[str], labels: Sequence[str], measured: Iterable[Measured], of: Callable[[Measured], Figure]
) -> None:
    width = 0.8 / len(labels)
    named = set()
    for each in measured:
        part, figure = labels.index(each.label), of(each)
        at = payloads.index(each.row.payload) + (part - (len(labels) - 1) / 2) * width
        colour, _, _ = _look(each)
        hatch = _SERIALIZED_HATCH if each.row.mode == "serialized" else None
        label = each.label if each.label not in named else None
        named.add(each.label)
        axes.bar(at, figure.mean, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=label)
        axes.errorbar(at, figure.mean, yerr=_known(figure.ci95), color="black", capsize=2, linewidth=1)
    _ticks(axes, payloads)
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _published(axes: Axes, by_scheme: Mapping[str, Sequence[float]], what: str) -> None:
    for number, network in enumerate(paper.NETWORKS):
        values = [values[number] for values in by_scheme.values()]
        places = [place + (number - 2.5) * 0.12 for place in range(len(by_scheme))]
        colour = "black" if network.startswith("A") else "#888888"
        axes.plot(
            places,
            values,
            _PAPER_MARKERS[number],
            color=colour,
            fillstyle="none",
            markersize=6,
            linestyle="none",
            label=network,
        )
    _ticks(axes, list(by_scheme))
    _paper_axes(axes, what)
    axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _paper_axes(axes: Axes, what: str) -> None:
    axes.set_ylabel(what)
    axes.set_title(_PAPER_TITLE, fontsize=9)
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y", alpha=0.3)


def _legend(axes: Axes, canvas: Any = None) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if canvas is not None:
        canvas.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=8)
    else:
        axes.legend(fontsize=8, ncols=min(4, len(labels)), loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _ticks(axes: Axes, names: Sequence[str]) -> None:
    crowded = max((len(line) for name in names for line in name.split("\n")), default=0) > 11 and len(names) > 3
    axes.set_xticks(range(len(names)), names, fontsize=8, rotation=25 if crowded else 0, ha="right" if crowded else "center")
    axes.set_xlim(-0.6, len(names) - 0.4)


def _stacked(label: str) -> str:
    """In lines, so that neighbours do not touch."""
    return label.replace(" serialized", "\nserialized").replace(", ", ",\n")


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    binary = all(size & (size - 1) == 0 for size in sizes)
    base = 2 if binary else 10
    axes.set_xscale("log", base=base)
    axes.xaxis.set_major_locator(LogLocator(base=base, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: (_binary if binary else _decimal)(round(value))))
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("payload", fontsize=9)


def _link_rate(setting: Setting, axes: Axes) -> float | None:
    """Draw the nominal rate; returns it, in MB/s."""
    if setting.link_rate_bps is None:
        return None
    rate = setting.link_rate_bps / 8 / formulas.MEGA
    axes.axhline(rate, color="#444444", linestyle="--", linewidth=1, label=f"link, {setting.link_rate_bps / 1e6:g} Mbit/s")
    # Where bars have fixed the axis the line must not lie just above it, and rows far below a fast link are not pressed flat.
    if axes.get_ylim()[1] < 1.05 * rate < 1.5 * axes.get_ylim()[1]:
        axes.set_ylim(top=1.05 * rate)
    return rate


def _unit(measured: Sequence[Measured]) -> tuple[str, float]:
    """The headline's unit for a picture, and what its values are multiplied with."""
    if measured[0].row.unit != "us":
        return measured[0].row.unit, 1.0
    size, unit = numerals.microseconds(max(each.row.headline.mean for each in measured))
    return unit, 1 / size


def _scaled(figure: Figure, scale: float) -> Figure:
    return Figure(figure.mean * scale, figure.ci95 * scale, figure.runs)


def _known(half_width: float) -> float:
    return half_width if math.isfinite(half_width) else 0.0


def _names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _and(names: Iterable[str]) -> str:
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _decimal(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def _binary(size: int) -> str:
    from switchsum.measure import sizes

    return sizes.name(size)


def _named_apart(pictures: Sequence[Picture]) -> list[Picture]:
    """Each with a file name of its own."""
    from dataclasses import replace

    seen: dict[str, int] = {}
    apart = []
    for picture in pictures:
        seen[picture.name] = seen.get(picture.name, 0) + 1
        number = seen[picture.name]
        apart.append(replace(picture, name=f"{picture.name}-{number}") if number > 1 else picture)
    return apart
