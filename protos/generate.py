"""Writes `job_pb2.py` and `job_pb2.pyi` from `job.proto`: `python -m switchsum.protos.generate`.

Needs protoc 3.20 or 3.21 (Debian's protobuf-compiler), found on PATH or named by the environment variable PROTOC. What
these compilers write asks for no particular protobuf release at import, so the same file serves the controller (held at
protobuf 3.20 by p4runtime-shell) and training hosts with today's. Later compilers add a check that refuses older releases.

With `--check` nothing is compiled; the exit status says whether `job_pb2.py` was made from the present `job.proto`.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROTO = HERE / "job.proto"
MODULE = HERE / "job_pb2.py"
UNTOUCHED = "# ruff: noqa\n# fmt: off\n# mypy: disable-error-code=type-arg\n"  # generated text follows nobody's style
MARK = "# SHA-256 of job.proto: "


def proto_digest() -> str:
    """SHA-256 of `job.proto`, in hexadecimal."""
    return hashlib.sha256(PROTO.read_bytes()).hexdigest()


def recorded_digest() -> str | None:
    """The digest of the `job.proto` that `job_pb2.py` was made from; None when it was not made by this script."""
    last = MODULE.read_text().rstrip().rpartition("\n")[2]
    return last.removeprefix(MARK) if last.startswith(MARK) else None


def compile_proto(protoc: str) -> None:
    """Run the compiler from the folder above `switchsum/`, so that the generated names are those of the package.

    Raises SystemExit with a sentence when the compiler is missing, of another generation, or rejects the file.
    """
    try:
        version = subprocess.run([protoc, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except FileNotFoundError:
        raise SystemExit(f"{protoc} not found; install Debian's protobuf-compiler or set PROTOC") from None
    if not re.search(r"\b3\.2[01]\.", version):
        raise SystemExit(f"{protoc} is {version.strip()}; its output would refuse older protobuf, use 3.20 or 3.21")
    root = HERE.parent
    subprocess.run(
        [protoc, f"-I{root}", f"--python_out={root}", f"--pyi_out={root}", str(root / "switchsum/protos/job.proto")],
        check=True,
        timeout=60,
    )
    for path in (MODULE, MODULE.with_suffix(".pyi")):
        path.write_text(f"{UNTOUCHED}{path.read_text().rstrip()}\n{MARK}{proto_digest()}\n")


def main(arguments: list[str]) -> int:
    """Generate, or with --check compare; returns the exit status."""
    if arguments == ["--check"]:
        if recorded_digest() == proto_digest():
            return 0
        print("protos/job_pb2.py was not made from this job.proto; run `make protos`", file=sys.stderr)
        return 1
    compile_proto(os.environ.get("PROTOC", "protoc"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
