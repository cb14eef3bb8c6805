# Every command a developer types. `make help` lists them.

CARGO ?= cargo
# Where Debian keeps ip and nft, also for a root who has not logged in as such.
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help demo build static dist check test e2e soak fuzz bench bench-e2e charts docs fmt setup layers words typos deny clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# In the dev profile: optimizing takes time on a first run, and it is the kernel that forwards.
demo: ## see it at work: real connections, pods that come and go, a proxy killed and started again; wants root
	@[ "$$(id -u)" = 0 ] || { echo "make demo needs root, to make network namespaces: sudo make demo" >&2; exit 1; }
	@hack/setup cc ip
	@$(CARGO) build --bin kube-proxy --bin demo
	@$(CARGO) run --quiet --bin demo -- $(DEMO)

build: ## the release binary, target/release/kube-proxy
	$(CARGO) build --release --bin kube-proxy

# Of this machine's kind. Another one needs a C compiler for it: packaging/README.md.
STATIC ?= $(shell uname -m)-unknown-linux-musl
static: ## the same without libraries, for containers: target/*-linux-musl/release/kube-proxy; installs what it needs
	@hack/setup cc musl-gcc
	@rustup target list --installed | grep -q -x '$(STATIC)' || rustup target add '$(STATIC)'
	$(CARGO) build --release --target '$(STATIC)' --bin kube-proxy

dist: static ## all that a package holds: static binary, completions, manual, in target/dist
	@hack/dist target/$(STATIC)/release/kube-proxy target/dist

check: layers deny words typos ## the inner loop: format, lints, dependency rules, spelling and terms, unit tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) test --workspace --lib --bins --quiet

test: setup ## everything that needs no cluster; installs what it needs, wants root for network namespaces
	$(CARGO) test --workspace --all-features

# All of the workspace, so that nothing is built again that `make test` has built.
e2e: setup ## against a real API server, in both modes; builds one with Go the first time, wants root
	$(CARGO) build --workspace --all-features --bin kube-proxy --bin control-plane
	components=$$(hack/control-plane) && tools=$$(hack/packaging-tools) && \
	  SLUICE_CONTROL_PLANE=$$components SLUICE_PACKAGING_TOOLS=$$tools \
	  $(CARGO) test --workspace --all-features --test e2e -- --ignored --test-threads=1

MINUTES ?= 10
soak: setup ## everything at once for MINUTES=10, half of it in each mode: changes, kills, flushes, API restarts; wants root
	$(CARGO) build --workspace --all-features --bin kube-proxy --bin control-plane
	components=$$(hack/control-plane) && SLUICE_CONTROL_PLANE=$$components SLUICE_SOAK_MINUTES=$(MINUTES) \
	  $(CARGO) test --workspace --all-features --test soak -- --ignored --nocapture --test-threads=1

SECONDS ?= 60
fuzz: ## searches for inputs that break a decoder, SECONDS=60 for each; TARGETS="manifest ..." unless all; installs what it needs
	@hack/setup cc c++
	@hack/fuzz $(SECONDS) $(TARGETS)

bench: ## what things cost, beside what they should cost; wants root for network namespaces
	$(CARGO) bench --package model --bench model
	$(CARGO) bench --package kernel --bench nftables
	$(CARGO) bench --package kernel --bench iptables
	$(CARGO) bench --package proxy --bench conntrack
	@$(MAKE) --no-print-directory charts

# From the figures beside them, and from those that a bench has left since, which are kept there.
charts: ## draws the charts of the book again
	@$(CARGO) run --quiet --package tests --bin charts -- docs/src/charts \
	  $$(ls $${CARGO_TARGET_DIR:-target}/bench/*.json 2>/dev/null)

# mdbook is built the first time: minutes. The test writes the chapters that the program itself knows best.
docs: ## the book, target/book/index.html; writes the chapters on flags and configuration again
	SLUICE_DOCS=write $(CARGO) test --quiet --package settings --lib chapters
	mdbook=$$(hack/mdbook) && "$$mdbook" build docs

bench-e2e: setup build ## the same against a real API server: from its write to the kernel, and memory
	$(CARGO) build --bin control-plane --bin bench-cluster
	components=$$(hack/control-plane) && SLUICE_CONTROL_PLANE=$$components \
	  SLUICE_KUBE_PROXY=$${CARGO_TARGET_DIR:-target}/release/kube-proxy $(CARGO) run --quiet --bin bench-cluster

fmt: ## formats the code
	$(CARGO) fmt --all

setup:
	@hack/setup

# Which crate may depend on which, cycles of modules, and names that two types share.
layers:
	@$(CARGO) run --quiet --package layers

# Terms that the glossary of CONTRIBUTING.md replaces, in what has been rid of them so far.
words:
	@hack/words

typos:
	@hack/typos

# Licences, sources and duplicate versions, of other platforms' crates, too, which no build here fetches. Advisories, if there
# is a copy of their database: to get one takes the network (cargo deny fetch db).
ADVISORIES = $(wildcard $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs/*)
deny:
	@if command -v cargo-deny >/dev/null; then \
	  $(CARGO) fetch --quiet --locked && \
	  $(CARGO) deny --offline --all-features check --hide-inclusion-graph bans licenses sources $(if $(ADVISORIES),advisories); \
	  status=$$?; \
	  $(if $(ADVISORIES),:,echo "no advisory database: advisories not checked (cargo deny fetch db)"); \
	  exit $$status; \
	else \
	  echo "cargo-deny is not installed: licences, sources and advisories not checked (cargo install cargo-deny)"; \
	fi

clean: ## removes what was built
	$(CARGO) clean
