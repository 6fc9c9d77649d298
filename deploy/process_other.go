//go:build !linux

package deploy

import "os/exec"

// detach does nothing: the programs of a local hub run on Linux only.
func detach(*exec.Cmd) {}
