# Pelago. `make` lists the targets.

SHELL       := /bin/bash
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE       ?=
LDFLAGS     := -s -w -X main.version=$(VERSION) $(if $(IMAGE),-X github.com/pelago-net/pelago/deploy/manifests.DefaultImage=$(IMAGE))
BIN         := bin
OUT         := out
CLANG_TOOLS := clang-16 llvm-strip-16
export CGO_ENABLED = 0
# Builds, tests and tools share one set of compiled packages, in whichever directory the clone is.
export GOFLAGS    = -trimpath

.PHONY: help
help: ## list the targets
	@echo "Pelago: connects Kubernetes clusters and propagates workloads to them"
	@echo
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "All targets that run clusters or tests need root; they install what they need (make setup)."

## ---- use
.PHONY: demo lab-up lab-down images build release
demo: setup images ## bring up two joined clusters with the same CIDRs, and walk through them
	go run ./test/e2e/demo

lab-up: setup images ## bring up only the clusters (g1, g2, hub), with nothing installed in them
	$(BIN)/pelago-lab up --clusters 2 --nodes 2 --pod-cidr 10.7.0.0/16 --service-cidr 10.77.0.0/16
	$(BIN)/pelago-lab load-image $(OUT)/images/pelago.tar
	$(BIN)/pelago-lab load-image $(OUT)/images/whereami.tar

lab-down: $(BIN)/pelago-lab ## remove the clusters; nothing stays on the machine
	$(BIN)/pelago-lab down

build: $(BIN)/pelago-lab ## build all binaries into bin/
	go build -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/...

images: build ## build the product's and the test workload's images: out/images/*.tar
	$(BIN)/pelago-lab image build --output $(OUT)/images

release: ## build what a release page offers, VERSION=v0.9.0 IMAGE=REGISTRY/pelago:v0.9.0 SIGNING_KEY=FILE: out/release
	go run ./test/release -out $(OUT)/release -version '$(VERSION)' -image '$(IMAGE)' $(if $(SIGNING_KEY),-key '$(SIGNING_KEY)')
	go run ./test/vulns -if-reachable

## ---- test
.PHONY: check test test-clusters test-full setup race unit walk netns lab e2e wires generated verify lint
.PHONY: conformance conformance-karmada test-migrate gateway-api test-charts test-versions test-cni
check: ## what needs Go alone, without root: lint, generated files, pure tests
	go run ./test/suites -tier check

test: setup images ## check, packets, API servers, namespaces, a walk through two clusters (17 minutes)
	go run ./test/suites -tier test

test-clusters: setup images ## what else must hold at each landing: programs, races, lab, failures, benchmarks (half an hour)
	go run ./test/suites -tier clusters

test-full: test test-clusters ## all tests, with the rare variants that need clusters of their own: before a release
	$(BIN)/pelago-lab prerequisites --cni all --install
	go run ./test/suites -tier full

setup: $(BIN)/pelago-lab ## install the Debian packages of tests and lab, build Kubernetes once (6 minutes)
	$(BIN)/pelago-lab prerequisites --install
	$(BIN)/pelago-lab build

$(BIN)/pelago-lab: $(shell find test/lab test/kube test/images -name '*.go' 2>/dev/null)
	@mkdir -p $(BIN)
	go build -o $@ ./test/lab/cmd

race unit netns lab: setup ## one suite of the above: race, unit, netns, lab; walk, e2e, wires with images
	go run ./test/suites $@

walk e2e wires: setup images
	go run ./test/suites $@

generated: ## check that deepcopy functions and CRDs are what the sources make (Go alone)
	@before=$$(git diff -- api deploy/crds); $(MAKE) --no-print-directory generate-api; \
	[ "$$before" = "$$(git diff -- api deploy/crds)" ] || { git diff --stat -- api deploy/crds; \
	echo "generated code was stale and is current now: commit it"; exit 1; }

verify: setup generate ## check that all generated code is what the sources make, and the format of C
	@git diff --exit-code --stat -- bpf api deploy/crds deploy/charts || { echo "generated code is stale: run make generate and commit"; exit 1; }
	clang-format-16 --dry-run -Werror bpf/*.c bpf/*.h

lint: ## gofmt, go mod tidy, vet, staticcheck, known vulnerabilities, the CLI for other systems
	@test -z "$$(gofmt -l $$(git ls-files '*.go' | grep -v _bpfel))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go mod tidy -diff
	go vet ./...
	go vet -tags vm ./test/netns/...
	go tool staticcheck ./...
	go run ./test/vulns -if-reachable
	for target in darwin/arm64 windows/amd64; do \
		GOOS=$${target%/*} GOARCH=$${target#*/} go build -o /dev/null ./cmd/pelago || exit 1; done

MODE ?=
SUITE ?=
FOCUS ?=
conformance: setup images ## run the public MCS suite (SUITE=…/mcs-api/conformance) in MODE=mcs or globalnet, without MODE in both: out/conformance
	go run ./test/conformance -mode '$(MODE)' -suite '$(SUITE)' -focus '$(FOCUS)' -out $(OUT)/conformance

conformance-karmada: setup build ## run Karmada's own end-to-end suite, or what FOCUS= selects of it: out/conformance-karmada.json
	go run ./test/conformance/karmada -bin $(BIN) -focus '$(FOCUS)' -out $(OUT)/conformance-karmada

test-migrate: setup build ## move Karmada's own control plane to Pelago and back
	go run ./test/conformance/karmada -bin $(BIN) -migrate -out $(OUT)/migrate-karmada

gateway-api: ## test that Envoy Gateway resolves ServiceImports (compiles it the first time: 10 minutes)
	cd test/gatewayapi && go test -count=1 ./...

test-charts: setup ## test the Helm charts with Helm's library against API servers (compiles it the first time: 8 minutes)
	cd test/charts && go test -count=1 ./...

test-versions: setup ## test the oldest and newest supported Kubernetes in hub and members, all four pairs (compiles two: 10 minutes)
	go run ./test/versions

CNI ?=
test-cni: setup images ## test two joined clusters with CNI=flannel,host-gw, or with each CNI of the lab (compiles it the first time: Cilium 30 minutes): out/cni
	$(BIN)/pelago-lab prerequisites --cni '$(or $(CNI),all)' --install
	go test ./test/e2e -count=1 -v -timeout=4h -run '^TestCNI$$' -args -cni '$(CNI)'

## ---- measure and break
.PHONY: failover chaos bench bench-scheduler bench-hub bench-dns bench-node vm fuzz
RUNS ?= 3
WIRE ?= vxlan
DATAPATH ?= strict
RATE ?= 1000
failover: setup images ## measure gateway faults under load, RUNS=3 of each, with WIRE=wireguard, DATAPATH=hybrid, RATE=200: out/failover.json
	go run ./test/failover -runs $(RUNS) -wire $(WIRE) -datapath $(DATAPATH) -rate $(RATE) -out $(OUT)/failover.json

bench: ## measure the data path against kernel routing, iptables and nftables: out/bench.json
	go run ./test/bench -out $(OUT)/bench.json

bench-scheduler: setup build ## measure scheduling decisions over 100 and 1,000 clusters: out/scheduler.json, out/mixed.json
	go run ./test/bench/scheduler -out $(OUT)/scheduler.json
	go run ./test/bench/hub -bin $(BIN) -cases mixed -out $(OUT)/mixed.json

bench-hub: setup build ## measure propagation: latency, throughput, memory: out/hub.json
	go run ./test/bench/hub -bin $(BIN) -out $(OUT)/hub.json

bench-dns: setup ## measure pelago-dns against CoreDNS, and the path through CoreDNS: out/dns.json
	go run ./test/bench/dns -out $(OUT)/dns.json

NODES ?= 10,100,1000,5000
bench-node: setup build ## measure the node daemon in clusters of NODES=10,100,1000,5000: processor time, memory, time from a change to the kernel: out/node.json
	go run ./test/bench/node -bin $(BIN) -nodes '$(NODES)' -out $(OUT)/node.json

KILLS ?= 100
chaos: setup build ## kill the hub KILLS=100 times during churn, restore it from backups, compare: out/chaos.json
	go run ./test/chaos -bin $(BIN) -kills $(KILLS) -dir $(OUT)/chaos -out $(OUT)/chaos.json

FUZZTIME ?= 30s
FUZZ ?= .
fuzz: setup ## run every fuzz target for FUZZTIME=30s, or those that match FUZZ=package.Target; corpora in out/fuzz
	go run ./test/fuzz -time $(FUZZTIME) -match '$(FUZZ)' -cache $(OUT)/fuzz

KERNEL ?=
vm: $(BIN)/pelago-lab ## test WireGuard, ESP and netem on Debian kernels in an emulated machine (KERNEL=6.12): out/vm.json
	$(BIN)/pelago-lab prerequisites --install
	go run ./test/vm -kernel "$(KERNEL)" -json $(OUT)/vm.json

## ---- maintain
.PHONY: generate generate-api charts deps vulns clean
generate: ## generate eBPF objects, deepcopy functions, CRDs, charts
	@for tool in $(CLANG_TOOLS); do command -v $$tool >/dev/null || { echo "$$tool is missing: apt-get install clang-16 llvm-16"; exit 1; }; done
	go generate ./bpf
	$(MAKE) --no-print-directory generate-api charts

generate-api:
	go tool controller-gen object paths=./api/...
	go tool controller-gen crd:crdVersions=v1,maxDescLen=400 paths=./api/... output:crd:dir=./deploy/crds
	go run ./api/amend deploy/crds

charts: ## write the derived files of the Helm charts: manifests and definitions
	go test ./deploy/manifests -run TestChartsAreCurrent -update

deps: ## list direct dependencies of all modules that are behind their newest release
	go run ./test/deps

vulns: ## check the commands for calls of functions with known vulnerabilities; needs https://vuln.go.dev or GOVULNDB=
	go run ./test/vulns

clean: ## remove bin/ and out/
	rm -rf $(BIN) $(OUT)
