"""The conformance cases: what every switch that runs the program must do, written once.

A case is a function that takes a Bench. tests/protocol/test_conformance.py runs all of them on each target, tests/ptf under
PTF. A new case is a function with the decorator `case`; a module of them must be imported here.
"""

from tests.protocol.cases import neighbours, spoofing, state_machine, verinc
from tests.protocol.cases.bench import CASES, Bench, Case

__all__ = ["CASES", "Bench", "Case", "neighbours", "spoofing", "state_machine", "verinc"]
