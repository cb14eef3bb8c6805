# The commands of developers. `make help` lists them.

CARGO ?= cargo
# Debian has ip and nft in these folders, which the PATH of root lacks after `su` without a login shell.
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: help demo build static emulate image cluster cluster-test swap conformance cluster-down dist check test e2e vm soak fuzz bench \
  bench-programs bench-e2e bench-start bench-upstream bench-ipvs bench-nodes charts docs fmt setup layers words typos deny clean
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# In the dev profile, which builds sooner: the kernel forwards the packets, so the speed of the proxy does not matter.
demo: ## scale a Service and restart the proxy under real connections, in network namespaces; needs root
	@[ "$$(id -u)" = 0 ] || { echo "make demo needs root to create network namespaces: sudo make demo" >&2; exit 1; }
	@hack/setup cc ip
	@$(CARGO) build --bin kube-proxy --bin demo
	@$(CARGO) run --quiet --bin demo -- $(DEMO)

build: ## build the release binary, target/release/kube-proxy
	$(CARGO) build --release --bin kube-proxy

MUSL = $(shell uname -m)-unknown-linux-musl
STATIC ?= $(MUSL)
static: ## build the static binary for containers, target/*-linux-musl/release/kube-proxy; installs what it needs
	@CARGO='$(CARGO)' hack/static '$(STATIC)'

emulate: ## build the static binary for aarch64 and run its subcommands in QEMU; installs what it needs
	@hack/emulate

image: static ## write the container images to target/image; STATIC=aarch64-unknown-linux-musl for another architecture
	@hack/image target/$(STATIC)/release/kube-proxy target/image

cluster: image ## start a Kubernetes cluster of NODES=3 nodes on this machine, with the Helm chart; MODE=iptables; needs root and Go
	@hack/cluster/up

cluster-test: image ## start such a cluster in each mode, and test Services and the tools in the pod; needs root and Go
	@for mode in nftables iptables; do MODE=$$mode hack/cluster/with hack/cluster/test || exit 1; done

swap: image ## swap the image of upstream's kube-proxy in such a cluster for ours, and back, under load, in each mode; needs root and Go
	$(CARGO) build --bin swap
	@for mode in nftables iptables; do \
	  PROXY=kubeadm MODE=$$mode hack/cluster/with $${CARGO_TARGET_DIR:-target}/debug/swap $$mode || exit 1; \
	done

conformance: image ## run upstream's e2e tests of Services with upstream's kube-proxy and ours, in each mode; FOCUS=, MODE=, PROXY=, ROUNDS= select
	@hack/setup python3
	@hack/cluster/conformance-rounds

cluster-down: ## end the cluster and remove all that belongs to it
	@hack/cluster/down

dist: static ## write the contents of a package to target/dist: static binary, completions, manual
	@hack/dist target/$(STATIC)/release/kube-proxy target/dist

check: layers deny words typos ## the inner loop: dependency rules, licences, terms, spelling, format, lints, unit tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) test --workspace --lib --bins --quiet

test: setup ## run all tests that need no cluster; installs what it needs, needs root
	$(CARGO) test --workspace --all-features

# Builds the whole workspace with the same features as `make test`, so that cargo reuses what that has built.
e2e: setup ## run the tests against a real API server, in both modes; builds one with Go the first time, needs root
	$(CARGO) build --workspace --all-features --bin kube-proxy --bin control-plane
	components=$$(hack/control-plane) && tools=$$(hack/packaging-tools) && \
	  SLUICE_CONTROL_PLANE=$$components SLUICE_PACKAGING_TOOLS=$$tools \
	  $(CARGO) test --workspace --all-features --test e2e -- --ignored --skip ipvs_ --test-threads=1

KERNELS ?= 5.10 5.15 6.1 6.12 7.2
vm: ## test every mode on other kernels, in VMs that have just booted; KERNELS="5.10 6.1" selects some; installs what it needs, needs root
	@CASES='$(CASES)' hack/vm/test $(KERNELS)

MINUTES ?= 10
soak: setup ## changes, kills, flushes and API restarts at the same time for MINUTES=10, half in each mode; needs root
	$(CARGO) build --workspace --all-features --bin kube-proxy --bin control-plane
	components=$$(hack/control-plane) && SLUICE_CONTROL_PLANE=$$components SLUICE_SOAK_MINUTES=$(MINUTES) \
	  $(CARGO) test --workspace --all-features --test soak -- --ignored --nocapture --test-threads=1

SECONDS ?= 60
fuzz: ## search for inputs that break a decoder, SECONDS=60 each; TARGETS="manifest ..." selects some; installs what it needs
	@hack/setup cc c++
	@SEED='$(SEED)' hack/fuzz $(SECONDS) $(TARGETS)

bench: ## run the benchmarks and print the figures beside the expected ones; needs root
	$(CARGO) bench --package model --bench model
	$(CARGO) bench --package proxy --bench nftables
	$(CARGO) bench --package proxy --bench iptables
	$(CARGO) bench --package proxy --bench conntrack
	@$(MAKE) --no-print-directory charts

# Draws from the figures in the same folder, updated with those that benchmarks have written since.
charts: ## draw the charts of the book
	@$(CARGO) run --quiet --package tests --bin charts -- docs/src/charts \
	  $$(ls $${CARGO_TARGET_DIR:-target}/bench/*.json 2>/dev/null)

# Builds mdbook the first time, which takes minutes. The test generates the chapters on flags and the configuration file.
docs: ## build the book, target/book/index.html, and generate the chapters on flags and the configuration file
	SLUICE_DOCS=write $(CARGO) test --quiet --package settings --lib chapters
	mdbook=$$(hack/mdbook) && "$$mdbook" build docs

# With an API server, the benchmarks run the static binary, which the images contain.
BENCH = SLUICE_KUBE_PROXY=$${CARGO_TARGET_DIR:-target}/$(MUSL)/release/kube-proxy $${CARGO_TARGET_DIR:-target}/release/bench-cluster
bench-programs: setup
	@CARGO='$(CARGO)' hack/static $(MUSL)
	$(CARGO) build --release --bin control-plane --bin bench-cluster

bench-e2e: bench-programs ## benchmark against a real API server: latency from its write to the kernel, memory, and starts with each encoding; needs root
	components=$$(hack/control-plane) && export SLUICE_CONTROL_PLANE=$$components && $(BENCH)

# Each size starts a control plane of its own, so that an interrupted run continues with the sizes that are missing.
SIZES ?= 1000x5 10000x5 44000x1 5000x50
MODES ?= nftables iptables
DATA_PATH ?= 1 10000 44000
bench-upstream: bench-programs ## compare with upstream's kube-proxy in turns, for the book: SIZES=, MODES= and DATA_PATH= select; needs root, Go and hours
	components=$$(hack/control-plane) && export SLUICE_CONTROL_PLANE=$$components && \
	  for size in $(SIZES); do $(BENCH) upstream $$size $(MODES) || exit 1; done && \
	  for services in $(DATA_PATH); do $(BENCH) data-path $$services || exit 1; done
	@$(MAKE) --no-print-directory charts

bench-start: bench-programs ## compare starts with the time of the wire and of the kernel alone, and measure memory: SIZES= selects; needs root and Go
	components=$$(hack/control-plane) && export SLUICE_CONTROL_PLANE=$$components && \
	  for size in $(SIZES); do $(BENCH) start $$size || exit 1; done

# Static, since it runs in the VM, too.
KERNEL ?= 6.1
bench-ipvs: ## compare one change in ipvs mode with upstream's, in a VM with KERNEL=6.1; needs root and an hour
	hack/setup cc musl-gcc ip
	hack/vm/fetch $(KERNEL)
	$(CARGO) build --release --target $(MUSL) --bin kube-proxy --bin control-plane --bin bench-cluster
	components=$$(hack/control-plane) && for services in 1000 10000; do SLUICE_CONTROL_PLANE=$$components \
	  $${CARGO_TARGET_DIR:-target}/$(MUSL)/release/bench-cluster ipvs $(KERNEL) $$services || exit 1; done

COUNTS ?= 50 200
SERVICES ?= 1000
bench-nodes: bench-programs ## compare 50 and 200 kube-proxies on one API server with upstream's; COUNTS="50 200" SERVICES=1000; needs root and 16 GiB
	components=$$(hack/control-plane) && export SLUICE_CONTROL_PLANE=$$components && \
	  for nodes in $(COUNTS); do for proxy in sluice upstream; do $(BENCH) nodes $$proxy $$nodes $(SERVICES) || exit 1; done; done

fmt: ## format the code
	$(CARGO) fmt --all

setup:
	@hack/setup

# Checks dependencies between crates, cycles of modules, and names that two types share.
layers:
	@$(CARGO) run --quiet --package layers

# Finds terms that the glossary of CONTRIBUTING.md replaces, in the paths that hack/words lists.
words:
	@hack/words

typos:
	@hack/typos

# Checks licences, sources and duplicate versions, including crates for other platforms, which builds here do not fetch. Checks
# advisories if there is a local copy of the database, which needs the network (cargo deny fetch db).
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

clean: ## remove what was built
	$(CARGO) clean
