# Every command a developer types. `make help` lists them.

CARGO ?= cargo

.PHONY: help build check test bench fmt setup pure deny clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the release binary, target/release/kube-proxy
	$(CARGO) build --release --bin kube-proxy

check: pure deny ## the inner loop: format, lints, dependency rules, unit tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) test --workspace --lib --bins --quiet

test: setup ## everything that needs no cluster; installs what it needs, wants root for network namespaces
	$(CARGO) test --workspace --all-features

bench: ## what things cost, to compare before and after
	$(CARGO) bench --workspace

fmt: ## formats the code
	$(CARGO) fmt --all

setup:
	@hack/setup

# The crates that decide must not be able to do anything else.
pure:
	@hack/pure

# Licences, sources and duplicate versions. The advisory database is not asked: it needs the network.
deny:
	@if command -v cargo-deny >/dev/null; then \
	  $(CARGO) deny --offline --all-features check --hide-inclusion-graph bans licenses sources; \
	else \
	  echo "cargo-deny is not installed: licence and source rules not checked (cargo install cargo-deny)"; \
	fi

clean: ## removes what was built
	$(CARGO) clean
