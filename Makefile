# `make help` lists the targets.
CARGO ?= cargo
TRACE ?= tools/kbtp/data/sample_trace.jsonl
RUNFLAGS ?=
BENCHFLAGS ?=
VICTIMFLAGS ?=
FUZZFLAGS ?=
TARGET ?=
TESTS ?=
N ?= 100
OPS ?= 10000000
PROOFFLAGS ?=
KILLS ?= 1000
CRASHFLAGS ?=
SOAKFLAGS ?=
SIMFLAGS ?= --seeds 5000 --jobs 2
PLANTFLAGS ?= --jobs 2
# One build for both: the faults of the feature are there, and off.
SIM = $(CARGO) run --quiet --release --locked -p kbtp-sim --features plants --
MUTANTS ?= -p kbtp-core -p kbtp-wire -p kbtp-iwarp
COUNTFLAGS ?=
VMFLAGS ?=
PREFIX ?= /usr/local
DESTDIR ?=
# The program to install: `make install` builds nothing, so that root need not.
KBTP ?= $(or $(CARGO_TARGET_DIR),target)/release/kbtp
# Where things go, below DESTDIR: the places in which man, the shells and systemd look for them.
BIN = $(PREFIX)/bin/kbtp
MAN1 = $(PREFIX)/share/man/man1
BASH = $(PREFIX)/share/bash-completion/completions/kbtp
ZSH = $(PREFIX)/share/zsh/site-functions/_kbtp
FISH = $(PREFIX)/share/fish/vendor_completions.d/kbtp.fish
UNITS = $(PREFIX)/lib/systemd/system
EXAMPLES = $(PREFIX)/share/doc/kbtp/examples
# Attacks that need several requests of one session under way at a time, or more credits than a chain's session has.
ABREAST = test(a_crowd_on_one_handle) | test(a_reader_that_takes_nothing) | test(a_lease_that_ends_under_a_slow_reader) | test(a_drain_does_not_wait_for_the_stuck) | test(a_stuck_session_is_replaced) | test(quota_overrun)
HOLD = --ops load --sessions 1 --load idle --rounds 9 --window 100ms

.PHONY: help install uninstall run test loom shuttle sim plants crash soak coverage mutants asan tsan valgrind fuzz differential flakes vm-test release-proof lint fmt bench victim promises instructions doc man completions build clean
help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15
build: ## Build everything, optimised
	$(CARGO) build --workspace --release --locked
install: ## Put program, man pages, completions and systemd units in place (PREFIX=/usr/local, DESTDIR=); build before
	@test -x "$(KBTP)" || { echo "there is no $(KBTP): cargo build --release --locked -p kbtp" >&2; exit 1; }
	umask 022 && mkdir -p $(foreach f,$(BIN) $(BASH) $(ZSH) $(FISH),"$(DESTDIR)$(dir $(f))") "$(DESTDIR)$(MAN1)" "$(DESTDIR)$(UNITS)" "$(DESTDIR)$(EXAMPLES)"
	install -m 0755 "$(KBTP)" "$(DESTDIR)$(BIN)"
	umask 022 && "$(KBTP)" man --dir "$(DESTDIR)$(MAN1)" && "$(KBTP)" completions bash > "$(DESTDIR)$(BASH)" && "$(KBTP)" completions zsh > "$(DESTDIR)$(ZSH)" && "$(KBTP)" completions fish > "$(DESTDIR)$(FISH)"
	umask 022 && for u in kbtp-agent kbtp-target; do sed 's|/usr/bin/kbtp|$(BIN)|' docs/systemd/$$u.service > "$(DESTDIR)$(UNITS)/$$u.service" || exit 1; done
	install -m 0644 docs/systemd/kbtp.env docs/target.toml "$(DESTDIR)$(EXAMPLES)"
uninstall: ## Take away what `make install` put in place (PREFIX, DESTDIR)
	rm -f "$(DESTDIR)$(BIN)" "$(DESTDIR)$(MAN1)"/kbtp.1 "$(DESTDIR)$(MAN1)"/kbtp-*.1 "$(DESTDIR)$(BASH)" "$(DESTDIR)$(ZSH)" "$(DESTDIR)$(FISH)" "$(DESTDIR)$(UNITS)"/kbtp-agent.service "$(DESTDIR)$(UNITS)"/kbtp-target.service && rm -rf "$(DESTDIR)$(EXAMPLES)"
run: ## Start agent and target, replay a trace against them, stop them (TRACE=FILE, RUNFLAGS="--json")
	$(CARGO) run --release --locked -p kbtp -- demo "$(TRACE)" $(RUNFLAGS)
test: ## Run every test, the suites of the protocol once for each way to run a target
	$(CARGO) nextest run --workspace --locked --no-fail-fast && KBTP_SUBJECT=software-agent $(CARGO) nextest run --locked --no-fail-fast -p kbtp-conformance -p kbtp-hostile && KBTP_SUBJECT=chain $(CARGO) nextest run --locked --no-fail-fast -p kbtp-conformance -p kbtp-hostile -E 'not ($(ABREAST))' && $(CARGO) test --workspace --locked --doc --quiet
loom: ## Every interleaving of the lock-free parts
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --quiet --locked --target-dir target/loom -p kbtp-core --lib loom
shuttle: ## A target and three initiators in random schedules; pool and ring beside their models, and with planted faults (KBTP_SCHEDULES=1000000)
	RUSTFLAGS="--cfg shuttle" $(CARGO) nextest run --release --locked --profile long --target-dir target/shuttle -p kbtp-core --features plants --lib -E 'test(shuttle_)'
sim: ## Thousands of simulated targets, each from a seed (SIMFLAGS="--seed 1 --seeds 5000")
	$(SIM) $(SIMFLAGS)
plants: ## Measure the simulation: put known faults into the product until a seed finds each (PLANTFLAGS="--plant NoDeferral")
	$(SIM) --plants $(PLANTFLAGS)
crash: ## Kill agent, target and initiators at random moments, and check after each kill (KILLS=1000, CRASHFLAGS="--seed 7 --json")
	$(CARGO) run --quiet --release --locked -p kbtp-endurance -- crash --kills $(KILLS) $(CRASHFLAGS)
soak: ## Ten minutes of mixed load and sessions that come and go, and whether anything grows (SOAKFLAGS="--minutes 120 --json")
	$(CARGO) run --quiet --release --locked -p kbtp-endurance -- soak $(SOAKFLAGS)
coverage: ## Which lines of the protocol's crates their tests run; fails if they are fewer than before
	$(CARGO) xtask coverage
mutants: ## Change the code in each way that a test should notice, and list what none does (MUTANTS="-p kbtp-core -f shared/core/src/pool/ring.rs")
	$(CARGO) mutants -j 1 $(MUTANTS)
asan: ## The tests under AddressSanitizer and LeakSanitizer (TESTS="-p kbtp-core")
	$(CARGO) xtask sanitize address $(TESTS)
tsan: ## The tests under ThreadSanitizer; needs the component rust-src (TESTS="-p kbtp-core")
	$(CARGO) xtask sanitize thread $(TESTS)
valgrind: ## The tests of the one crate with raw memory, under valgrind
	PROPTEST_CASES=8 CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER="valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite" $(CARGO) nextest run --locked --no-fail-fast --profile sanitize -p kbtp-memory
fuzz: ## Fuzz, guided by coverage, and keep what was found (TARGET=rdmap_stream FUZZFLAGS="--seconds 600")
	$(CARGO) xtask fuzz $(TARGET) $(FUZZFLAGS)
differential: ## Ten million operations over TCP and in memory, with the same answers (OPS=100000)
	KBTP_DIFFERENTIAL_OPS=$(OPS) $(CARGO) nextest run --locked --cargo-profile sanitize --profile long -p kbtp-iwarp-tcp -E 'test(a_stream_over_tcp_does_as_one_in_memory)'
flakes: ## Every test N times: one that fails once is a bug (N=100, TESTS="-p kbtp-core")
	$(CARGO) nextest run --locked --no-fail-fast --retries 0 --stress-count $(N) --status-level fail --final-status-level fail $(or $(TESTS),--workspace --exclude kbtp-sim --exclude kbtp-models --exclude kbtp-fuzz)
vm-test: ## Against the kernel's own RDMA devices, in an emulated machine of Debian's packages (VMFLAGS="PART OF A NAME"; needs QEMU and gcc-12)
	$(CARGO) run --quiet --locked -p kbtp-interop -- test $(VMFLAGS)
release-proof: ## Everything at the size of a release: many hours, goes on where it was stopped (PROOFFLAGS="--list")
	$(CARGO) xtask release-proof $(PROOFFLAGS)
lint: ## Formatting, clippy, documentation, and the checks of the tree itself
	$(CARGO) fmt --all --check && $(CARGO) clippy --workspace --all-targets --locked -- -D warnings && RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet && $(CARGO) xtask check
fmt: ## Format the tree
	$(CARGO) fmt --all
bench: ## Load and store beside the limits of this machine, measured in the same run (BENCHFLAGS="--json")
	$(CARGO) run --quiet --release --locked -p kbtp-bench -- $(BENCHFLAGS)
promises: ## Measure the ratios that docs/SPECIFICATION.md promises, and fail where one is missed (some seconds, on a quiet machine)
	$(CARGO) run --quiet --release --locked -p kbtp-bench -- $(HOLD) --sizes 1MiB --depths 8 --min-throughput 0.9 --max-cpu 1.2 && $(CARGO) run --quiet --release --locked -p kbtp-bench -- $(HOLD) --sizes 4KiB --depths 1 --max-latency 1.4
instructions: ## Instructions per operation on the hot paths, beside the baseline (needs valgrind; COUNTFLAGS=--update)
	$(CARGO) run --quiet --release --locked -p kbtp-instructions -- $(COUNTFLAGS)
victim: ## What attacks cost a session that only loads (VICTIMFLAGS="crowd reads --max-p99=2")
	$(CARGO) run --quiet --release --locked -p kbtp-bench -- $(BENCHFLAGS) victim $(VICTIMFLAGS)
doc: ## Build the API documentation
	$(CARGO) doc --workspace --no-deps --locked
man: ## Write the man pages to target/man
	$(CARGO) run --quiet --release --locked -p kbtp -- man --dir target/man
completions: ## Write shell completions to target/completions
	mkdir -p target/completions && for s in bash zsh fish; do $(CARGO) run --quiet --release --locked -p kbtp -- completions $$s > target/completions/kbtp.$$s; done
clean: ## Remove what was built
	$(CARGO) clean
