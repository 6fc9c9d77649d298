// Package bpf holds the kernel side: the C sources, the compiled object and the Go bindings that bpf2go makes of them.
//
// `go generate ./bpf` needs clang-16 and llvm-strip-16; building the module does not, since the result is checked in.
// Nothing but cilium/ebpf is imported here; dataplane/loader is the only user besides tests.
package bpf

//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -target bpfel -output-stem pelago -type verdict -type hook -type packet_type -type overlay_flag -type peer_kind -type source_flag -type global_kind -type affinity -type direction -type flow_role -type source_device -type tcp_seen -type overlay_header -type probe_flag -type probe -type probe_id -type node_settings -type prefix -type route -type hop -type node -type gateway_set -type remote_gateway -type cluster -type peer -type source -type egress -type global -type block_key -type block -type service_key -type service -type backend_key -type backend -type flow_key -type flow -type fragment_key -type fragment -type path -type probe_slot -type standing -type uplink -type guard -type sweep -type counter Pelago pelago.c -- -O2 -g -Wall -Werror -mcpu=v3 -nostdinc -Iinclude
