// Package zone computes the name server's table from the member's API: ServiceImports name the services, EndpointSlices
// the addresses of each source cluster. cmd/pelago-dns runs it. It writes nothing, and keeps the last table while the
// API server is unreachable.
package zone
