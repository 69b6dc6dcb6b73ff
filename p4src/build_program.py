"""Compiles the switch program with p4c: `make p4 P4C=/path/to/p4c-bm2-ss`.

Writes JSON and P4Info of every build and a manifest into `build/`. Everything is a function of the sources and the compiler:
a second run changes nothing. Warnings are errors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import track

from switchsum.p4src.generate import HERE
from switchsum.p4src.layout import ELEMENT_CHOICES, WIRE_VERSION

LAYOUTS = ("lanes", "wide")
FLAGS = ("-I", "include", "--Werror")
TOP = "v1model/switchsum.p4"


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compile_one(p4c: str, layout: str, elements: int, into: Path) -> str:
    """One build; returns what the compiler had to say, "" if nothing."""
    stem = f"switchsum_{layout}_{elements}"
    command = [p4c, *FLAGS, f"-DELEMENTS={elements}", f"-DVALUES_{layout.upper()}"]
    command += ["-o", str(into / f"{stem}.json"), "--p4runtime-files", str(into / f"{stem}.p4info.txtpb"), TOP]
    result = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    output = (result.stdout + result.stderr).strip()
    if result.returncode != 0 and not output:
        output = f"exit status {result.returncode}"
    return f"{' '.join(command)}\n{output}" if output else ""


def main(arguments: list[str] | None = None) -> int:
    """Compile everything; the old files stay if anything fails. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Compile p4src/ into p4src/build/.")
    parser.add_argument(
        "--p4c", default=os.environ.get("P4C") or "p4c-bm2-ss", help="the compiler (default: p4c-bm2-ss on PATH)"
    )
    options = parser.parse_args(arguments)
    if shutil.which(options.p4c) is None:
        print(f"error: no p4c-bm2-ss at {options.p4c!r}: make p4 P4C=/path/to/p4c-bm2-ss", file=sys.stderr)
        return 2
    told = subprocess.run([options.p4c, "--version"], capture_output=True, text=True)
    version = re.search(r"Version (\S+)", told.stdout + told.stderr)
    if version is None:
        print(f"error: {options.p4c} --version does not name a version; is it p4c-bm2-ss?", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        into = Path(folder)
        builds = [(layout, elements) for layout in LAYOUTS for elements in reversed(ELEMENT_CHOICES)]  # the longest first
        running = [pool.submit(compile_one, options.p4c, *build, into) for build in builds]
        complaints = [text for job in track(running, "p4c") if (text := job.result())]
        if complaints:
            print("\n\n".join(complaints), file=sys.stderr)
            return 1
        sources = sorted(path for part in ("include", "v1model") for path in (HERE / part).glob("*.p4"))
        manifest = {
            "compiler": f"p4c-bm2-ss {version[1]}",
            "flags": [*FLAGS, "-DELEMENTS=<elements>", "-DVALUES_<LAYOUT>"],
            "wire_version": WIRE_VERSION,
            "sources": {str(path.relative_to(HERE)): digest(path) for path in sources},
            "outputs": {f"build/{path.name}": digest(path) for path in sorted(into.iterdir())},
        }
        target = HERE / "build"
        for path in into.iterdir():
            shutil.copyfile(path, target / path.name)
        (target / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
