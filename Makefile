# What can be done with this repository: see `make help`.
# Needed beforehand: make, git and Go (the version in go.mod, or any that may
# fetch it); on Debian and Ubuntu everything else is installed by `make setup`.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

export PATH := $(PATH):/usr/local/go/bin

PREFIX  ?= /usr/local
DESTDIR ?=
LIBEXEC := $(PREFIX)/lib/taibox
HELPERS := taibox-server taibox-bridge taibox-runc
UNITS   := $(PREFIX)/lib/systemd/system

# Also in a checkout that belongs to another user, as with sudo.
GIT     := git -c safe.directory='$(CURDIR)'
VERSION ?= $(shell $(GIT) describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell $(GIT) rev-parse HEAD 2>/dev/null || echo unknown)
export GOFLAGS += -buildvcs=false

LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
GO_BUILD := CGO_ENABLED=0 go build -trimpath -ldflags
RUNC_BUILD := CGO_ENABLED=1 go build -trimpath -tags "seccomp netgo osusergo" -ldflags "-s -w -extldflags -static"

PACKAGES := ca-certificates gcc libc6-dev libseccomp-dev pkg-config iproute2 nftables busybox-static
SUDO     := $(if $(filter 0,$(shell id -u)),,sudo)

# The linter's version stands on the first line of its configuration.
LINT_VERSION := $(shell sed -n '1s/^\# \(v[0-9.]*\).*/\1/p' .golangci.yml)
LINTER       := bin/golangci-lint-$(LINT_VERSION)

# Tests that need root are failures, not skips, for what is named here.
TAIBOX_TEST_REQUIRE ?= oci
TEST_FLAGS ?= -race -shuffle=on -timeout 15m
FUZZTIME   ?= 10s

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- Build

.PHONY: setup
setup: ## Install the system packages that are missing (Debian, Ubuntu).
	@go list -m >/dev/null || { echo "Go $$(sed -n 's/^go //p' go.mod) or newer is needed: https://go.dev/doc/install" >&2; exit 1; }
	@tools/packages.sh $(PACKAGES)

.PHONY: build
build: bin/taibox-runc ## Build the programs into bin/.
	@$(GO_BUILD) "$(LDFLAGS)" -o bin/ ./cmd/taibox ./cmd/taibox-bridge
# The server runs the two programs of its own build and no others.
	@runc=$$(sha256sum <bin/taibox-runc); bridge=$$(sha256sum <bin/taibox-bridge); \
	$(GO_BUILD) "$(LDFLAGS) -X main.runcSHA256=$${runc%% *} -X main.bridgeSHA256=$${bridge%% *}" -o bin/ ./cmd/taibox-server

bin/taibox-runc: tools/runc/go.mod tools/runc/go.sum
	@echo "Building $@ (once)" >&2
	@cd tools/runc && $(RUNC_BUILD) -o ../../$@ github.com/opencontainers/runc
	@touch $@

.PHONY: gen
gen: ## Write all generated files anew.
	go generate ./...

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin dist

# --- Use

HELLO := python3 -c 'print("hello from a box")'
# The built-in image has what is below /usr.
ifeq ($(wildcard /usr/bin/python3),)
HELLO := sh -c 'echo "hello from a box"'
endif

.PHONY: run
run: setup build ## Set up, build, and run code in a box.
	$(SUDO) bin/taibox run hostfs -- $(HELLO)
	@printf '%s\n' '' 'It works. Next, try (as root):' \
	  '  bin/taibox create --id b1 hostfs        a box that stays' \
	  '  bin/taibox exec -it b1 -- sh            a shell in it' \
	  '  bin/taibox ls                           the boxes there are' \
	  '  bin/taibox rm -f b1                     and gone' \
	  '  bin/taibox doctor                       what this machine offers' \
	  '  bin/taibox --help                       all commands'

.PHONY: install
install: setup build ## Install programs and systemd unit (PREFIX=/usr/local, DESTDIR=).
	$(SUDO) install -D -m 0755 bin/taibox "$(DESTDIR)$(PREFIX)/bin/taibox"
	$(SUDO) install -D -m 0755 -t "$(DESTDIR)$(LIBEXEC)" $(addprefix bin/,$(HELPERS))
	@mkdir -p dist
	sed 's|@PREFIX@|$(PREFIX)|g' packaging/taibox.service >dist/taibox.service
	$(SUDO) install -D -m 0644 dist/taibox.service "$(DESTDIR)$(UNITS)/taibox.service"
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then \
	  $(SUDO) systemctl daemon-reload; \
	  echo "To start it now and at boot: systemctl enable --now taibox"; \
	fi

.PHONY: uninstall
uninstall: ## Remove what install put in place; boxes and data stay.
	@if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ] && [ -e "$(UNITS)/taibox.service" ]; then \
	  $(SUDO) systemctl disable --now taibox; \
	fi
	$(SUDO) rm -f "$(DESTDIR)$(PREFIX)/bin/taibox" "$(DESTDIR)$(UNITS)/taibox.service" \
	  $(HELPERS:%="$(DESTDIR)$(LIBEXEC)/%")
	-$(SUDO) rmdir --ignore-fail-on-non-empty "$(DESTDIR)$(LIBEXEC)"

# --- Check

# With root the first run includes the tests that need it. Without it they
# skip there, and run a second time by sudo.
.PHONY: test
test: setup build ## Set up, build, and pass all tests.
ifeq ($(SUDO),)
	TAIBOX_TEST_REQUIRE=$(TAIBOX_TEST_REQUIRE) go test $(TEST_FLAGS) ./...
else
	go test $(TEST_FLAGS) ./...
	go test $(TEST_FLAGS) -exec "sudo env PATH=$$PATH TAIBOX_TEST_REQUIRE=$(TAIBOX_TEST_REQUIRE)" ./...
endif

.PHONY: race
race: ## Run the tests that need nothing, with the race detector.
	go test -race -shuffle=on ./...

.PHONY: conformance
conformance: setup build ## Run the contract's tests on every driver.
	TAIBOX_TEST_REQUIRE=$(TAIBOX_TEST_REQUIRE) go test $(TEST_FLAGS) $(if $(SUDO),-exec "sudo -E") ./test/conformance/...

.PHONY: fuzz
fuzz: ## Run each fuzz target for a while (FUZZTIME=10s).
	tools/fuzz.sh $(FUZZTIME)

LOAD ?= 10m

.PHONY: load
load: build ## Put this machine under load for a while (LOAD=10m, or short), as root.
	$(SUDO) env PATH="$$PATH" TAIBOX_TEST_LOAD=$(LOAD) go test -v -timeout 0 -run '^TestLoad' ./test/load

.PHONY: bench
bench: build ## Run the Go benchmarks.
	go test -run '^$$' -bench . -benchmem $(if $(SUDO),-exec "sudo -E") ./...

.PHONY: cover
cover: build ## Measure test coverage over all packages.
	@mkdir -p dist
	go test -coverpkg=./... -coverprofile=dist/cover.out ./...
	@go tool cover -func=dist/cover.out | tail -n 1
	@echo "In detail: go tool cover -html=dist/cover.out"

$(LINTER): tools/lint/go.mod tools/lint/go.sum
	@grep -q 'golangci-lint/v2 $(LINT_VERSION)\b' tools/lint/go.mod || { echo ".golangci.yml and tools/lint/go.mod name different versions" >&2; exit 1; }
	@echo "Building $@ (once)" >&2
	@cd tools/lint && go build -trimpath -ldflags "-s -w" -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

.PHONY: lint
lint: $(LINTER) ## Check form and layers of the source.
	$(LINTER) run ./...
	go mod tidy -diff

.PHONY: fmt
fmt: $(LINTER) ## Format the source.
	$(LINTER) fmt ./...

.PHONY: fix
fix: $(LINTER) ## Format, and mend what the linter can mend by itself.
	$(LINTER) run --fix ./...
