"""LLVM: optimizes a module for this machine, keeps the machine code in memory and on disk.

Compiling SwitchSum's program takes about a second, and every process that runs a switch needs it, so object code is cached
in $XDG_CACHE_HOME/switchsum (or ~/.cache/switchsum), under a name that covers the module's text, LLVM's version and the
processor. A file that is damaged, or a folder that cannot be written, only costs the second.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
import threading
from pathlib import Path

import llvmlite.binding as llvm

from switchsum.softswitch.layout import ContextMap, Layout

KEPT_FILES = 64
DIGEST_BYTES = 32

_lock = threading.Lock()  # llvmlite's global state is not made for several threads
_ready = False


def _target_machine() -> llvm.TargetMachine:
    global _ready
    if not _ready:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _ready = True
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True)


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """-O1 with the SLP vectorizer: as fast here as -O2, in a third of the time. Loops are few and short-lived."""
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.slp_vectorization = True
    options.loop_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


class ObjectCache:
    """Object files by name, each behind the SHA-256 of its content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls) -> ObjectCache:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return cls(Path(root) / "switchsum")

    def read(self, name: str) -> bytes | None:
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            return None
        digest, content = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def write(self, name: str, content: bytes) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, self._folder / name)
            files = sorted(self._folder.glob("*.o"), key=lambda f: f.stat().st_mtime)
            for old in files[:-KEPT_FILES]:
                old.unlink()


class NativeCode:
    """The compiled program. Stateless: everything it changes is reached through the context it is given."""

    def __init__(self, text: str, layout: Layout, context: ContextMap, cache: ObjectCache | None = None) -> None:
        self.layout = layout
        self.context = context
        cache = cache or ObjectCache.of_user()
        with _lock:
            machine = _target_machine()
            identity = f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}\n"
            name = hashlib.sha256((identity + text).encode()).hexdigest() + ".o"
            module = llvm.parse_assembly(text)
            module.verify()
            known = cache.read(name)
            if known is None:
                _optimize(module, machine)
                known = machine.emit_object(module)
                cache.write(name, known)
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(known))
            self._engine.finalize_object()
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        # Calls through CFUNCTYPE release the GIL.
        self.packet = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int32, pointer, word)(
            self._engine.get_function_address("packet")
        )
        self.batch = ctypes.CFUNCTYPE(None, pointer, word, pointer, pointer, pointer, pointer)(
            self._engine.get_function_address("batch")
        )
        self.forward = ctypes.CFUNCTYPE(word, pointer, word, word, pointer, pointer, pointer, pointer, pointer, pointer)(
            self._engine.get_function_address("forward")
        )
