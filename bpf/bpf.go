// Package bpf holds the kernel side: the C sources, the compiled object and the Go bindings that bpf2go makes of them.
//
// The object is checked in; only `go generate ./bpf` needs clang-16 and llvm-strip-16. The package imports cilium/ebpf alone.
// dataplane/loader loads the object; others use constants only.
package bpf

//go:generate go run generate.go
