# Pelago. `make` says what there is.

SHELL       := /bin/bash
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS     := -s -w -X main.version=$(VERSION)
BIN         := bin
OUT         := out
CLANG_TOOLS := clang-16 llvm-strip-16
export CGO_ENABLED = 0

.PHONY: help
help: ## say what there is
	@echo "Pelago: joins Kubernetes clusters into one place"
	@echo
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "demo, test, e2e, failover, bench and the lab need root; they install what they need (make setup)."

## ---- to use
.PHONY: demo lab-up lab-down images build
demo: setup images ## two clusters with the same CIDRs, joined: set up, shown and explained
	go run ./test/e2e/demo

lab-up: setup images ## only the clusters (g1, g2, hub), nothing installed in them
	$(BIN)/pelago-lab up --clusters 2 --nodes 2 --pod-cidr 10.7.0.0/16 --service-cidr 10.77.0.0/16
	$(BIN)/pelago-lab load-image $(OUT)/images/pelago.tar
	$(BIN)/pelago-lab load-image $(OUT)/images/whereami.tar

lab-down: $(BIN)/pelago-lab ## take the clusters down; nothing stays on the machine
	$(BIN)/pelago-lab down

build: ## all binaries into bin/
	@mkdir -p $(BIN)
	go build -trimpath -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/...

images: build ## the images of the product and of the test workload, as tar files in out/images
	$(BIN)/pelago-lab image build --output $(OUT)/images

## ---- to work on
.PHONY: setup test unit race others e2e wires failover chaos bench bench-scheduler bench-hub vm generate verify lint fuzz clean
setup: $(BIN)/pelago-lab ## install the Debian packages that tests and lab need, build Kubernetes once (6 minutes)
	$(BIN)/pelago-lab prerequisites --install
	$(BIN)/pelago-lab build

$(BIN)/pelago-lab: $(shell find cmd/pelago-lab test/lab test/kube deploy/images -name '*.go' 2>/dev/null)
	@mkdir -p $(BIN)
	go build -trimpath -o $@ ./cmd/pelago-lab

test: setup verify lint race others e2e ## everything that this machine can run, from a clean checkout

# At the end of a run stands again which tests failed, and why.
GOTEST := go tool gotestsum --format standard-quiet --

unit: setup ## unit, packet, namespace and API server tests
	$(GOTEST) -count=1 -timeout 30m $$(go list ./... | grep -v -e /test/e2e -e /test/lab$$)

RACE := ./dataplane/... ./control/... ./dns/... ./cmd/pelago-dns/... # the longest first
race: setup ## those of the packages with goroutines, with the race detector
	CGO_ENABLED=1 $(GOTEST) -race -count=1 -timeout 30m $(RACE)

others: setup ## those of the packages that race leaves out
	$(GOTEST) -count=1 -timeout 30m $$(comm -23 <(go list ./... | grep -v -e /test/e2e -e /test/lab$$ | sort) <(go list $(RACE) | sort))

e2e: setup images ## two real clusters: the walk-through and the failures, asserted
	go tool gotestsum --format standard-verbose -- -count=1 -timeout 50m -p 1 ./test/lab ./test/e2e

RUNS ?= 3
failover: setup images ## what faults at gateways cost, each RUNS=3 times under load; out/failover.json
	go run ./test/failover -runs $(RUNS) -out $(OUT)/failover.json

wires: setup images ## the encrypted wires without globalnet; with it they are part of e2e
	go tool gotestsum --format standard-verbose -- -count=1 -timeout 50m ./test/e2e -plain -run 'TestWireGuard$$|TestIPsec$$'

bench: ## the data path against kernel routing, iptables and nftables, interleaved; out/bench.json
	go run ./test/bench -out $(OUT)/bench.json

bench-scheduler: setup build ## decisions a second over 100 and 1,000 clusters, then through the API; out/scheduler.json, out/mixed.json
	go run ./test/bench/scheduler -out $(OUT)/scheduler.json
	go run ./test/bench/hub -bin $(BIN) -cases mixed -out $(OUT)/mixed.json

bench-hub: setup build ## propagation: latency, throughput against a client that replays the requests, memory; out/hub.json
	go run ./test/bench/hub -bin $(BIN) -out $(OUT)/hub.json

KILLS ?= 100
chaos: setup build ## the hub killed KILLS=100 times during churn, at each write, restored from backups; compared and UIDs followed; out/chaos.json
	go run ./test/chaos -bin $(BIN) -kills $(KILLS) -dir $(OUT)/chaos -out $(OUT)/chaos.json

FUZZTIME ?= 30s
FUZZ ?= .
fuzz: setup ## every fuzz target for FUZZTIME=30s, or those that match FUZZ=package.Target; corpora in out/fuzz
	go run ./test/fuzz -time $(FUZZTIME) -match '$(FUZZ)' -cache $(OUT)/fuzz

KERNEL ?=
vm: $(BIN)/pelago-lab ## kernel WireGuard, ESP, netem, older kernels: tests in an emulated machine (KERNEL=6.12); out/vm.json
	$(BIN)/pelago-lab prerequisites --install
	go run ./test/vm -kernel "$(KERNEL)" -json $(OUT)/vm.json

generate: ## eBPF objects, deepcopy functions, CRDs
	@for tool in $(CLANG_TOOLS); do command -v $$tool >/dev/null || { echo "$$tool is missing: apt-get install clang-16 llvm-16"; exit 1; }; done
	go generate ./bpf
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd:crdVersions=v1,maxDescLen=400 paths=./api/... output:crd:dir=./deploy/crds

verify: setup generate ## generated code is what the sources make
	@git diff --exit-code --stat -- bpf api deploy/crds || { echo "generated code is stale: run make generate and commit"; exit 1; }

lint: ## gofmt, vet, staticcheck, clang-format
	@test -z "$$(gofmt -l $$(git ls-files '*.go' | grep -v _bpfel))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go mod tidy -diff
	go vet ./...
	go vet -tags vm ./test/netns/...
	go tool staticcheck ./...
	clang-format-16 --dry-run -Werror bpf/*.c bpf/*.h

clean: ## remove bin/ and out/
	rm -rf $(BIN) $(OUT)
