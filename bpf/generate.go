//go:build ignore

// Generate compiles pelago.c and writes the Go bindings. Besides the types of maps, which bpf2go
// exports by itself, it exports those that pelago.c names by KEEP.
package main

import (
	"log"
	"os"
	"os/exec"
	"regexp"
)

func main() {
	source, err := os.ReadFile("pelago.c")
	if err != nil {
		log.Fatal(err)
	}
	args := []string{"tool", "bpf2go", "-cc", "clang-16", "-strip", "llvm-strip-16", "-target", "bpfel", "-output-stem", "pelago"}
	for _, m := range regexp.MustCompile(`(?m)^KEEP\(\w+, (\w+)\);`).FindAllSubmatch(source, -1) {
		args = append(args, "-type", string(m[1]))
	}
	args = append(args, "Pelago", "pelago.c", "--", "-O2", "-g", "-Wall", "-Werror", "-mcpu=v3", "-nostdinc", "-Iinclude")
	cmd := exec.Command("go", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		log.Fatalf("bpf2go: %v", err)
	}
}
