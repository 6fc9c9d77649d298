//go:build !linux

package hub

import "os/exec"

// detach does nothing: the programs of a local hub run on Linux only.
func detach(*exec.Cmd) {}
