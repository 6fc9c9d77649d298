// Package bpf holds the kernel side: the C sources, the compiled object and the Go bindings that bpf2go makes of them.
//
// `go generate ./bpf` needs clang-16 and llvm-strip-16; building the module does not, since the result is checked in.
// Nothing but cilium/ebpf is imported here; dataplane/loader is the only user besides tests.
package bpf

//go:generate go run generate.go
