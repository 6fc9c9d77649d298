//go:build controlplane

package main

// nodeComponents: none is needed by API servers without nodes.
var nodeComponents map[string]func() int
