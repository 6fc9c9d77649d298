// Command report writes docs/cni.md from test/cni/results.json, with the results of the files that
// it is given, which TestCNI has written, in place of those cells' old ones.
package main

import (
	"fmt"
	"os"

	"github.com/pelago-net/pelago/test/cni"
)

const (
	results = "test/cni/results.json"
	page    = "docs/cni.md"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run is relative to the working directory, the root of the repository.
func run(files []string) error {
	all, err := cni.Read(results)
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			return err
		}
		newer, err := cni.Read(file)
		if err != nil {
			return err
		}
		all = cni.Merge(all, newer)
	}
	if err := cni.Write(results, all); err != nil {
		return err
	}
	return os.WriteFile(page, []byte(cni.Page(all)), 0o644)
}
