"""LLVM: optimizes a module for this machine and keeps the machine code in memory."""

from __future__ import annotations

import ctypes
import threading

import llvmlite.binding as llvm

from switchsum.softswitch.layout import ContextMap, Layout

_lock = threading.Lock()
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


class NativeCode:
    """The compiled program. Stateless: everything it changes is reached through the context it is given."""

    def __init__(self, text: str, layout: Layout, context: ContextMap) -> None:
        self.layout = layout
        self.context = context
        with _lock:
            machine = _target_machine()
            module = llvm.parse_assembly(text)
            module.verify()
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            options.slp_vectorization = True
            builder = llvm.create_pass_builder(machine, options)
            builder.getModulePassManager().run(module, builder)
            self.assembly = ""
            self._engine = llvm.create_mcjit_compiler(module, machine)
            self._engine.finalize_object()
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        # CFUNCTYPE calls release the GIL.
        self.packet = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int32, pointer, word)(
            self._engine.get_function_address("packet")
        )
        self.batch = ctypes.CFUNCTYPE(None, pointer, word, pointer, pointer, pointer, pointer)(
            self._engine.get_function_address("batch")
        )
