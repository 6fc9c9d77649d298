// Command nodeinit is the first process of a lab's node: "nodeinit DIR" with
// the node's directory on the host. The lab builds and starts it; package
// machine holds what it does.
package main

import (
	"log/slog"
	"os"

	"github.com/pelago-net/pelago/test/lab/machine"
)

func main() {
	if len(os.Args) != 2 {
		slog.Error("usage: nodeinit DIR")
		os.Exit(2)
	}
	spec, err := machine.ReadSpec(os.Args[1])
	if err == nil {
		err = machine.Run(spec)
	}
	slog.Error("node does not start", "error", err)
	os.Exit(1)
}
