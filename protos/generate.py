"""Writes `NAME_pb2.py` and `NAME_pb2.pyi` from each `NAME.proto` of ours: `python -m switchsum.protos.generate`.

Needs protoc 3.20 or 3.21 (Debian's protobuf-compiler), found on PATH or named by the environment variable PROTOC. What
these compilers write asks for no particular protobuf release at import, so the same files serve the controller (held at
protobuf 3.20 by p4runtime-shell) and training hosts with today's. Later compilers add a check that refuses older releases.

With `--check` nothing is compiled; the exit status says whether each was made from its present `.proto`.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROTOS = [HERE / "job.proto", HERE.parent / "measure" / "buffers.proto"]
UNTOUCHED = "# ruff: noqa\n# fmt: off\n# mypy: disable-error-code=type-arg\n"  # generated text follows nobody's style
_MARK = "# SHA-256 of {}: "


def module_of(proto: Path) -> Path:
    return proto.with_name(f"{proto.stem}_pb2.py")


def proto_digest(proto: Path) -> str:
    """SHA-256 of the file, in hexadecimal."""
    return hashlib.sha256(proto.read_bytes()).hexdigest()


def recorded_digest(proto: Path) -> str | None:
    """The digest of what its module was made from; None when that was not made by this script."""
    last = module_of(proto).read_text().rstrip().rpartition("\n")[2]
    mark = _MARK.format(proto.name)
    return last.removeprefix(mark) if last.startswith(mark) else None


def compile_protos(protoc: str) -> None:
    """Run the compiler from the folder above `switchsum/`, so that the generated names are those of the package.

    Raises SystemExit with a sentence when the compiler is missing, of another generation, or rejects a file.
    """
    try:
        version = subprocess.run([protoc, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except FileNotFoundError:
        raise SystemExit(f"{protoc} not found; install Debian's protobuf-compiler or set PROTOC") from None
    if not re.search(r"\b3\.2[01]\.", version):
        raise SystemExit(f"{protoc} is {version.strip()}; its output would refuse older protobuf, use 3.20 or 3.21")
    root = HERE.parent
    for proto in PROTOS:
        subprocess.run(
            [
                protoc,
                f"-I{root}",
                f"--python_out={root}",
                f"--pyi_out={root}",
                str(root / "switchsum" / proto.relative_to(root)),
            ],
            check=True,
            timeout=60,
        )
        module, mark = module_of(proto), _MARK.format(proto.name) + proto_digest(proto)
        for path in (module, module.with_suffix(".pyi")):
            path.write_text(f"{UNTOUCHED}{path.read_text().rstrip()}\n{mark}\n")


def main(arguments: list[str]) -> int:
    """Generate, or with --check compare; returns the exit status."""
    if arguments == ["--check"]:
        stale = [module_of(proto).name for proto in PROTOS if recorded_digest(proto) != proto_digest(proto)]
        if not stale:
            return 0
        print(f"{', '.join(stale)} not made from the present .proto; run `make protos`", file=sys.stderr)
        return 1
    compile_protos(os.environ.get("PROTOC", "protoc"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
