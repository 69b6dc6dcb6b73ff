"""Compiles the switch program for Tofino and Tofino 2: `make p4-tna BFP4C=/path/to/p4c-barefoot`.

Prints what each program takes of its chip. Keeps P4Info, the figures and a manifest in `build/tna/`; what a switch is given
(`bf-rt.json` and, of the pipeline, `context.json` and the binary) goes to the folder `--into`, assembled by the `bfas` that
lies beside the compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from switchsum.p4src import tna_report
from switchsum.p4src.build_program import digest
from switchsum.p4src.generate import HERE
from switchsum.p4src.layout import WIRE_VERSION

TOP = "tna/switchsum.p4"
KEPT = HERE / "build" / "tna"
REPORTED = ("-g", "--verbose", "--create-graphs", "-Ttable_summary:1")  # -g writes the reports


@dataclass(frozen=True)
class Chip:
    """A target of the compiler. Its CLOTs (packet bytes that bypass the PHV) are off where the open assembler refuses them."""

    target: str
    architecture: str
    number: int
    flags: tuple[str, ...] = ()


TOFINO = Chip("tofino", "tna", 1)
TOFINO2 = Chip("tofino2", "t2na", 2, ("--no-clot",))
PROGRAMS = ((TOFINO, 64), (TOFINO2, 64))  # with the elements of a packet


def stem(chip: Chip, elements: int) -> str:
    """The name of a program's files."""
    return f"switchsum_{chip.target}_{elements}"


def flags(chip: Chip, elements: int | str) -> list[str]:
    """What decides the compiler's output."""
    chosen = ["--target", chip.target, "--arch", chip.architecture, f"-D__TARGET_TOFINO__={chip.number}", *chip.flags]
    return [*chosen, "-I", "include", "-I", "tna", f"-DELEMENTS={elements}", "--p4runtime-force-std-externs"]


def compile_one(compiler: Path, chip: Chip, elements: int, into: Path) -> str:
    """Compile and assemble into a folder; returns what went wrong, "" if nothing."""
    shutil.rmtree(into, ignore_errors=True)
    (into / "pipe").mkdir(parents=True)
    name = stem(chip, elements)
    include = compiler.resolve().parent.parent / "p4include"
    written = ["-o", str(into), "--p4runtime-files", str(into / f"{name}.p4info.txtpb")]
    written += ["--bf-rt-schema", str(into / "bf-rt.json")]
    standard = ["-I", str(include)] if include.is_dir() else []
    problem = _run([str(compiler), *standard, *flags(chip, elements), *REPORTED, *written, TOP])
    if problem:
        return problem
    assembly = into / "pipe" / f"{Path(TOP).stem}.bfa"
    if not parser_selects(assembly.read_text()):
        return (
            f"{compiler} wrote a parser for {name} that takes every packet for the same kind, as p4c 1.2.5.16 does: "
            "build one that has the change of https://github.com/p4lang/p4c/pull/5753"
        )
    return _run(
        [str(compiler.with_name("bfas")), "--target", chip.target, "--no-warn", "-o", str(assembly.parent), str(assembly)]
    )


def parser_selects(assembly: str) -> bool:
    """Whether the ingress parser of this assembly compares anything of a packet before it goes on."""
    parser = assembly.partition("parser ingress:")[2].partition("deparser ingress:")[0]
    return "match: [" in parser


def _run(command: list[str]) -> str:
    try:
        result = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    except FileNotFoundError:
        return f"{command[0]} does not exist; the assembler bfas is built and installed beside p4c-barefoot"
    if result.returncode != 0:
        return f"{' '.join(command)}\n{(result.stdout + result.stderr).strip()}\nexit status {result.returncode}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Compile everything; what is kept stays as it was if anything fails. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Compile p4src/tna/ and tell what it takes of the chips.")
    parser.add_argument(
        "--bfp4c", default=os.environ.get("BFP4C") or "p4c-barefoot", help="the compiler (default: p4c-barefoot on PATH)"
    )
    parser.add_argument(
        "--into", type=Path, default=Path("build/tna"), help="folder for the whole output (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    found = shutil.which(options.bfp4c)
    if found is None:
        print(f"error: no p4c-barefoot at {options.bfp4c!r}: make p4-tna BFP4C=/path/to/p4c-barefoot", file=sys.stderr)
        return 2
    told = subprocess.run([found, "--version"], capture_output=True, text=True)
    version = re.search(r"Version (\S+)", told.stdout + told.stderr)
    if version is None:
        print(f"error: {found} --version does not name a version; is it p4c-barefoot?", file=sys.stderr)
        return 2
    into = options.into.resolve()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(compile_one, Path(found), *program, into / stem(*program)) for program in PROGRAMS]
        complaints = [text for job in track(running, "p4c-barefoot") if (text := job.result())]
    if complaints:
        print("\n\n".join(complaints), file=sys.stderr)
        return 1
    fits = [tna_report.read(into / stem(*program) / "pipe" / "logs", stem(*program)) for program in PROGRAMS]
    KEPT.mkdir(exist_ok=True)
    for fit in fits:
        shutil.copyfile(into / fit.program / f"{fit.program}.p4info.txtpb", KEPT / f"{fit.program}.p4info.txtpb")
        (KEPT / f"{fit.program}.fit.json").write_text(tna_report.to_json(fit))
    sources = sorted(path for part in ("include", "tna") for path in (HERE / part).glob("*.p4"))
    manifest = {
        "compiler": f"p4c-barefoot {version[1]}",
        "flags": {stem(chip, elements): flags(chip, elements) for chip, elements in PROGRAMS},
        "wire_version": WIRE_VERSION,
        "sources": {str(path.relative_to(HERE)): digest(path) for path in sources},
        "outputs": {f"build/tna/{path.name}": digest(path) for path in sorted(KEPT.iterdir()) if path.name != "manifest.json"},
    }
    (KEPT / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    print(tna_report.table(fits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
