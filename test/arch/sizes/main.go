// Command sizes prints the lines of code by feature and by room as a Markdown table; with -update
// it writes the table to docs/sizes.md. Run it in the root of the tree.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"

	"github.com/pelago-net/pelago/test/arch"
)

func main() {
	update := flag.Bool("update", false, "write "+arch.SizesFile)
	flag.Parse()
	if err := run(*update); err != nil {
		fmt.Fprintln(os.Stderr, "sizes:", err)
		os.Exit(1)
	}
}

func run(update bool) error {
	former, err := os.ReadFile(arch.SizesFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := arch.Sizes(".", string(former))
	if err != nil {
		return err
	}
	if update {
		return os.WriteFile(arch.SizesFile, []byte(text), 0o644)
	}
	_, err = os.Stdout.WriteString(text)
	return err
}
