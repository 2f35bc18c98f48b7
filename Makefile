# make demo     see work go through the queue, a worker die, and its job come back
# make test     everything that the tests need, then the tests, Rust and Python
# make torture  the tests that take long as well, and the model of the protocol
# make fuzz     names of entries and records of attempts, invented by libFuzzer, for SECONDS=60 each
# make soak     mixed work under kills, forks and clock steps for SECONDS=60, checked by a record outside the queue
# make lint     what must be clean
# make docs     the tests of what documents and examples show, then the site, into target/site/; to read it, run
#               `python -m http.server --directory target/site`
# make for-agents      docs/SKILL.md and docs/llms-full.txt anew, after a change of docs/AGENTS.md or of a docstring
# make check-windows   whether src/sys/windows.rs is clean
# make platforms       what can be known here of other systems: lint for each, link for macOS, run for musl and ARM, and
#                      under Wine for Windows; an hour
# make wheels          the sdist and the wheels that can be built here, into dist/, checked and tried
# make audit           licences and known faults of what we depend on, the workflows, and whether the crate can be published
# make bench    what a job costs beside the bare system calls and in other queues, written to benches/results/; root
#               measures on ext4, too. LARGEST=100000 leaves out the backlogs of a million jobs
# make bench-quick   its everyday figures, in under two minutes
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
SOURCE := Cargo.toml Cargo.lock pyproject.toml $(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi')

.PHONY: demo test test-rust test-python torture fuzz soak lint docs for-agents check-windows bench bench-quick clean
.PHONY: platforms platforms-linux platforms-bsd platforms-macos platforms-windows wheels audit

demo: $(VENV)/built
	$(RUN)/python examples/demo.py

test: test-rust test-python

test-rust:
	cargo test --locked --features failpoints

test-python: $(VENV)/built
	$(RUN)/python tests/halves.py

torture: test-rust $(VENV)/built
	$(RUN)/python tests/halves.py --hypothesis-profile=torture -m "not docs"
	cargo test --locked --release --manifest-path model/Cargo.toml
	$(MAKE) fuzz SECONDS=30

SECONDS ?= 60
SEED    ?=

soak: $(VENV)/optimized
	$(RUN)/python tests/soak.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# As `cargo fuzz` does it, which needs a nightly compiler; but for the sanitizers, which find nothing in these targets.
fuzz: entry_names.fuzz history_records.fuzz

%.fuzz: export RUSTFLAGS = --cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
	$(addprefix -Cllvm-args=-sanitizer-coverage-, level=4 inline-8bit-counters pc-table trace-compares)
%.fuzz:
	mkdir -p fuzz/found/$*
	cd fuzz && cargo run --locked --release --target $$(rustc --print host-tuple) --bin $* -- \
		-max_total_time=$(SECONDS) -max_len=40000 -artifact_prefix=found/ found/$* corpus/$*

lint: $(VENV)/built
	cargo fmt --check
	cargo fmt --check --manifest-path model/Cargo.toml
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo clippy --locked --all-targets --manifest-path model/Cargo.toml -- -D warnings
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets --features python,failpoints -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy python examples
	$(RUN)/python -m mypy.stubtest pacchettino

# Strict, and without a look elsewhere, neither when it is built nor when it is read.
docs: $(VENV)/docs $(VENV)/built
	$(RUN)/python -m pytest -m docs tests
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --quiet
	cp -R target/doc target/site/rust
	$(RUN)/python tools/check_site.py target/site

for-agents: $(VENV)/built
	$(RUN)/python tools/for_agents.py

LARGEST ?= 1000000

bench: $(VENV)/optimized $(VENV)/peers
	$(RUN)/python benches/measure.py --largest $(LARGEST)

bench-quick: $(VENV)/optimized
	$(RUN)/python benches/measure.py --quick

# The other systems. Debian's packages have the standard library that the toolchain lacks; built once, then cached. Zig
# links, and brings the systems' libraries.
platforms: platforms-linux platforms-bsd platforms-macos platforms-windows

platforms-linux: $(addsuffix .lint, x86_64-unknown-linux-musl aarch64-unknown-linux-gnu aarch64-unknown-linux-musl) \
	$(addsuffix .test, x86_64-unknown-linux-musl aarch64-unknown-linux-gnu aarch64-unknown-linux-musl)

platforms-bsd: x86_64-unknown-freebsd.lint

platforms-macos: $(addsuffix .lint, aarch64-apple-darwin x86_64-apple-darwin) \
	$(addsuffix .link, aarch64-apple-darwin x86_64-apple-darwin)

# Half an hour. Wine runs what mingw's gcc links, and a Windows CPython.
platforms-windows: check-windows $(VENV)/ready
	bash tools/windows.sh

# Without the binding, which can't be had without a Windows Python to link with.
check-windows:
	sysroot=$$(bash tools/cross-std.sh x86_64-pc-windows-gnu) && \
	PATH="$$sysroot/bin:$$PATH" cargo clippy --locked --all-targets --features failpoints --target x86_64-pc-windows-gnu -- -D warnings

CROSS = sysroot=$$(bash tools/cross-std.sh $*) && PATH="$$sysroot/bin:$(CURDIR)/$(RUN):$$PATH"

%.lint:
	$(CROSS) cargo clippy --locked --all-targets --target $* -- -D warnings
	$(CROSS) cargo clippy --locked --all-targets --target $* --features python,failpoints -- -D warnings

%.link: $(VENV)/cross
	$(CROSS) cargo-zigbuild zigbuild --locked --tests --target $* --features failpoints

# ARM programs run under qemu. Without crt-static zig brings musl along; with it rustc looks for a copy of its own.
aarch64-%.test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER := bash tools/arm64.sh
aarch64-%.test: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER := bash tools/arm64.sh
%-musl.test: export RUSTFLAGS := -Ctarget-feature=-crt-static
%.test: $(VENV)/cross
	$(CROSS) cargo-zigbuild test --locked --tests --target $* --features failpoints

wheels: $(VENV)/cross
	PATH="$(CURDIR)/$(RUN):$$PATH" bash tools/wheels.sh

audit: $(VENV)/cross
	$(RUN)/zizmor --offline --quiet .github/workflows
	cargo deny --locked check bans licenses sources
	cargo publish --dry-run --locked
	cargo deny --locked check advisories
	$(RUN)/python -m pip freeze --exclude-editable | $(RUN)/pip-audit --strict --requirement /dev/stdin --no-deps --disable-pip

# The extension, installed into the virtual environment: built quickly, with the profile of the Rust tests, or optimized
# as users get it. The newer one of the two is the one that is installed.
$(VENV)/built: $(VENV)/ready $(SOURCE)
	$(RUN)/maturin develop --locked
	rm -f $(VENV)/optimized
	touch $@

$(VENV)/optimized: $(VENV)/ready $(SOURCE)
	$(RUN)/maturin develop --release --locked
	rm -f $(VENV)/built
	touch $@

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade pip
	$(RUN)/python -m pip install --quiet --group dev
	touch $@

# What builds, checks and audits wheels.
$(VENV)/cross: $(VENV)/ready
	$(RUN)/python -m pip install --quiet --group cross
	touch $@

# What builds the site.
$(VENV)/docs: $(VENV)/ready
	$(RUN)/python -m pip install --quiet --group docs
	touch $@

# The other queues that the benchmark measures.
$(VENV)/peers: $(VENV)/ready
	$(RUN)/python -m pip install --quiet --group bench
	touch $@

clean:
	rm -rf $(VENV) target fuzz/target fuzz/found dist python/pacchettino/*.so
