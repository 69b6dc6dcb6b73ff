"""Log lines: their form, and that each tells which job, epoch and rank it concerns."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from switchsum.controller.daemon import ControllerDaemon
from switchsum.host_agent.errors import JoinRefused
from switchsum.log_format import JsonFormatter, TextFormatter, log_library, log_process
from switchsum.softswitch.daemon import SoftSwitch
from tests.controller.conftest import all_join
from tests.controller.test_service import eventually
from tests.controller.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
Workers = Callable[[ControllerDaemon | str, int], list[Worker]]


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("switchsum.controller.service")
    made = logger.makeRecord(logger.name, logging.WARNING, "file", 1, message, arguments, None, extra=extra)
    made.created = 1_793_347_200.1234
    return made


def test_text() -> None:
    line = TextFormatter().format(record("job %r ended", "train", job="train", epoch=7, rank=None, tenant=""))
    assert line == "2026-10-30T08:00:00.123Z WARNING controller.service: job 'train' ended [job=train epoch=7]"
    assert TextFormatter().format(record("so it is")) == "2026-10-30T08:00:00.123Z WARNING controller.service: so it is"


def test_json() -> None:
    line = JsonFormatter().format(record("job %r\nended", "schön", job="schön", epoch=7, rank=0, tenant="a"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-10-30T08:00:00.123Z",
        "level": "warning",
        "component": "controller.service",
        "message": "job 'schön'\nended",
        "tenant": "a",
        "job": "schön",
        "epoch": 7,
        "rank": 0,
    }


def test_a_name_cannot_look_like_another_line() -> None:
    line = TextFormatter().format(record("lost %s", "host\n2026 ERROR\r\x1b[2J\x85\u2028", job="a\nb"))
    assert line.splitlines() == [line]
    assert line.endswith(r"lost host\x0a2026 ERROR\x0d\x1b[2J\x85\u2028 [job=a\x0ab]")


@pytest.mark.parametrize("style", [TextFormatter, JsonFormatter])
def test_a_trace_is_kept(style: type[logging.Formatter]) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        made = record("it failed")
        made.exc_info = sys.exc_info()
    line = style().format(made)
    told = json.loads(line)["exception"] if style is JsonFormatter else line
    assert told.endswith("ValueError: why")


def test_a_process_of_ours_tells_all_of_ours_and_warnings_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log_process("text") is print
    log_process("json")("ready")  # the second time replaces the first
    logging.getLogger("switchsum.softswitch").info("told")
    logging.getLogger("grpc").info("not told")
    logging.getLogger("grpc").warning("told")
    output, errors = capsys.readouterr()
    assert output == ""
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [(line["component"], line["message"]) for line in lines] == [
        ("switchsum", "ready"),
        ("softswitch", "told"),
        ("grpc", "told"),
    ]


@pytest.mark.parametrize(
    ("setting", "lines"),
    [("", 0), ("info", 1), ("json", 1), ("json,error", 0), ("DEBUG,json", 2), ("text", 1)],
)
def test_a_library_is_heard_as_it_is_set(setting: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger().handlers[:]
    log_library(setting, "SWITCHSUM_LOG")
    logging.getLogger("switchsum.host_agent").info("of ours")
    logging.getLogger("switchsum.host_agent").debug("of ours")
    logging.getLogger("somebody").error("not ours: the last resort's or the program's affair")
    errors = capsys.readouterr().err
    assert errors.count("of ours") == lines
    assert [line.startswith("{") for line in errors.splitlines() if "of ours" in line] == ["json" in setting] * lines
    assert logging.getLogger().handlers == root


@pytest.mark.parametrize(("setting", "word"), [("verbose", "verbose"), ("info,xml", "xml"), ("info,", "")])
def test_a_setting_that_there_is_not_is_one_sentence(setting: str, word: str) -> None:
    with pytest.raises(ValueError, match="is not known") as caught:
        log_library(setting, "SWITCHSUM_LOG")
    assert str(caught.value) == f"SWITCHSUM_LOG {word!r} is not known: write debug, info, warning, error, text or json"
    with pytest.raises(ValueError, match="is not known") as caught:
        log_process("xml")
    assert str(caught.value) == "--log-format 'xml' is not known: write text or json"


def test_a_controllers_lines_name_job_epoch_and_rank(controller: ControllerDaemon, workers: Workers) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("switchsum")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    world = workers(controller, 2)
    all_join(world, "train")
    with pytest.raises(JoinRefused):
        workers(controller, 1)[0].join("train", 1, 33)
    world[1].close()  # without a word: a lost worker
    world[0].ended()
    eventually(lambda: "ended:" in stream.getvalue())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    epoch = world[0].joined.epoch  # type: ignore[union-attr]
    complete, refused, ended = (
        next(line for line in lines if words in line["message"]) for words in ("is complete", "refused rank", "ended:")
    )
    assert (complete["job"], complete["epoch"]) == ("train", epoch)
    assert (refused["job"], refused["rank"], refused["level"]) == ("train", 1, "info")
    assert (ended["job"], ended["epoch"]) == ("train", epoch)
    assert {line["component"] for line in lines} <= {"controller.service", "controller.switch_keeper"}


def test_every_line_about_a_job_has_its_fields() -> None:
    """Whoever writes "job %r" into a message says the same in `extra`."""
    without = []
    for folder in ("controller", "host_agent", "softswitch", "switchsum"):
        for path in (ROOT / folder).glob("**/*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                    continue
                logs = isinstance(call.func.value, ast.Name) and call.func.value.id in ("logger", "_log")
                texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                if logs and any(re.search(r"\bjob\b.*%", text) for text in texts):
                    without += [f"{path}:{call.lineno}"] * all(keyword.arg != "extra" for keyword in call.keywords)
    assert without == []


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_commands_write_such_lines(style: str, switch: SoftSwitch, tmp_path: Path) -> None:
    """And with json nothing else."""
    ports = ",".join(f"{number}: 127.0.0.1:{port}" for number, (_, port) in switch.port_addresses.items())
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text(f"kind: loopback\nports: {{{ports}}}\n")
    command = ["--switch", switch.grpc_address, "--fabric", str(fabric), "--listen", "127.0.0.1:0", "--log-format", style]
    process = subprocess.Popen(
        [sys.executable, "-m", "switchsum.cli", "controller", *command, "--metrics", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            if style == "text":
                assert process.stdout.readline().startswith("controller ready: job service 127.0.0.1:")
                process.terminate()
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "controller ready" in line:
                    process.terminate()
            rest = process.stdout.read()
    finally:
        process.kill()
    assert (process.returncode, rest) == (0, "")
    words = ["of its entries were right", "metrics at http://127.0.0.1:", *(["controller ready"] if style == "json" else [])]
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))
    if style == "json":
        assert all({"time", "level", "component", "message"} <= json.loads(line).keys() for line in lines)
