PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MINUTES ?= 10
SWITCH ?= softswitch

.PHONY: demo rack test lint format p4 p4-tna generate protos soak model-check soak-faults fuzz test-bmv2 test-ptf bench-rack bench-switch clean

# torch has its own line: this specifier finds the CPU build, any other may pull in CUDA.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[torch,switch,demo,dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/switchsum demo

# The demo's training in an emulated rack, as root: make rack, make rack RACK=my.yaml SWITCH=bmv2
RACK ?= bmv2_topologies/racks/four-100m.yaml
rack: $(STAMP)
	$(BIN)/switchsum demo --rack $(RACK) --loss 0.01 $(if $(SWITCH),--switch $(SWITCH)) $(if $(BMV2),--bmv2 $(BMV2))

# Three processes for two cores, since a third of the time tests wait for leases and time-outs. A crash must end the run: after
# one, pytest-xdist 3.8 waits for ever (its issue 1378). Files go to the processes in the order of tests/conftest.py; xdist's own
# puts those with few tests last, which are among the longest.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The compiled switch program: make p4 P4C=/path/to/p4c-bm2-ss
p4: generate
	$(BIN)/python -m switchsum.p4src.build_program $(if $(P4C),--p4c $(P4C))

# The same for Tofino and Tofino 2, and what it takes of them: make p4-tna BFP4C=/path/to/p4c-barefoot
p4-tna: generate
	$(BIN)/python -m switchsum.p4src.build_tna $(if $(BFP4C),--bfp4c $(BFP4C))

# What the switch program and the hosts share, from p4src/protocol.yaml
generate: $(STAMP)
	$(BIN)/python -m switchsum.p4src.generate

protos: $(STAMP)
	$(BIN)/python -m switchsum.protos.generate

# The seeded simulation: make soak (ten minutes), make soak MINUTES=60, make soak SEEDS=100000
soak: $(STAMP)
	$(BIN)/python -m tests.protocol.simulation $(if $(SEEDS),--seeds $(SEEDS),--minutes $(MINUTES))

# Every interleaving of small jobs by p4src/state_machine.yaml: make model-check (minutes), make model-check PHASES=3
PHASES ?= 4
model-check: $(STAMP)
	$(BIN)/python -m tests.protocol.model_check --phases $(PHASES)

# The fuzzers of the data port and of both gRPC services: make fuzz (ten minutes), make fuzz MINUTES=60, make fuzz SEED=7
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Trainings on emulated racks, each hit by a fault, as root: make soak-faults, make soak-faults RUNS=500 SEED=1000
RUNS ?= 200
soak-faults: $(STAMP)
	$(BIN)/python -m tests.faults --runs $(RUNS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.faults.many_jobs --minutes $(MINUTES)

# Needs simple_switch_grpc on PATH or in SWITCHSUM_BMV2, and root
test-bmv2: $(STAMP)
	$(BIN)/python -m pytest -q -m bmv2 tests

# The conformance cases under p4lang's PTF, on veth pairs (needs root): make test-ptf, make test-ptf SWITCH=bmv2
# (which it finds on PATH or in SWITCHSUM_BMV2)
test-ptf: $(STAMP)
	$(BIN)/python -m tests.protocol.run_ptf --switch $(SWITCH)

# Sums on emulated racks, as root: make bench-rack BMV2=/path/to/simple_switch_grpc
bench-rack: $(STAMP)
	$(BIN)/python -m switchsum.rack_benchmark $(if $(BMV2),--bmv2 $(BMV2))

bench-switch: $(STAMP)
	$(BIN)/python -m switchsum.switch_benchmark

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
