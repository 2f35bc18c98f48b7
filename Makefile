# make demo     see work go through the queue, a worker die, and its job come back
# make test     everything that the tests need, then the tests, Rust and Python
# make torture  the tests that take long as well, and the model of the protocol
# make soak     mixed work under kills, forks and clock steps for SECONDS=60, checked by a record outside the queue
# make lint     what must be clean
# make check-windows      whether src/sys/windows.rs is clean
# make platforms-windows  the tests, Rust and Python, as Windows programs under Wine; half an hour
# make bench    what a job costs beside the bare system calls and in other queues, written to benches/results/; root
#               measures on ext4, too. LARGEST=100000 leaves out the backlogs of a million jobs
# make bench-quick   its everyday figures, in under two minutes
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin
SOURCE := Cargo.toml Cargo.lock pyproject.toml $(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi')

.PHONY: demo test test-rust test-python torture soak lint check-windows platforms-windows bench bench-quick clean

demo: $(VENV)/built
	$(RUN)/python examples/demo.py

test: test-rust test-python

test-rust:
	cargo test --locked --features failpoints

test-python: $(VENV)/built
	$(RUN)/python -m pytest

torture: test-rust $(VENV)/built
	$(RUN)/python -m pytest --hypothesis-profile=torture -m "torture or not torture"
	cargo test --locked --release --manifest-path model/Cargo.toml

SECONDS ?= 60
SEED    ?=

soak: $(VENV)/built
	$(RUN)/python tests/soak.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/built
	cargo fmt --check
	cargo fmt --check --manifest-path model/Cargo.toml
	cargo clippy --locked --all-targets --manifest-path model/Cargo.toml -- -D warnings
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets --features python,failpoints -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy python examples
	$(RUN)/python -m mypy.stubtest pacchettino

# Needs Debian's packages, for a standard library that the toolchain does not have; built once, then cached.
check-windows:
	sysroot=$$(bash tools/cross-std.sh x86_64-pc-windows-gnu) && \
	PATH="$$sysroot/bin:$$PATH" cargo clippy --locked --all-targets --features failpoints --target x86_64-pc-windows-gnu -- -D warnings

# Needs Debian's packages: Wine, mingw's gcc, and what check-windows needs.
platforms-windows: $(VENV)/ready
	bash tools/windows.sh

LARGEST ?= 1000000

bench: $(VENV)/built $(VENV)/peers
	$(RUN)/python benches/measure.py --largest $(LARGEST)

bench-quick: $(VENV)/built
	$(RUN)/python benches/measure.py --quick

# The extension, built for speed and installed into the virtual environment.
$(VENV)/built: $(VENV)/ready $(SOURCE)
	$(RUN)/maturin develop --release --locked
	touch $@

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet --group dev
	touch $@

# The other queues that the benchmark measures.
$(VENV)/peers: $(VENV)/ready
	$(RUN)/python -m pip install --quiet --group bench
	touch $@

clean:
	rm -rf $(VENV) target python/pacchettino/*.so
