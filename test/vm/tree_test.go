package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestClosure(t *testing.T) {
	got, err := closure(t.Context(), []string{"/usr/bin/unshare"})
	if err != nil || !slices.ContainsFunc(got, func(f string) bool { return strings.HasSuffix(f, "/libc.so.6") }) ||
		!slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, "ld-linux") }) {
		t.Errorf("%v, %v: want the C library and the linker", got, err)
	}
	if got, err = closure(t.Context(), []string{"/usr/bin/busybox"}); err != nil || len(got) != 0 {
		t.Errorf("of a static program: %v, %v", got, err)
	}
}

// What the archive holds is what was in the directory.
func TestArchive(t *testing.T) {
	root, path := tree(t.TempDir()), filepath.Join(t.TempDir(), "initramfs")
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{root.copy(source, "/a/deep/file", 0o755), root.link("/a/name", "deep/file"), root.archive(t.Context(), path)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := output(t.Context(), "busybox", "cpio", "-t", "-F", path)
	if err != nil || strings.Join(strings.Fields(got), " ") != "a a/deep a/deep/file a/name" {
		t.Errorf("%q, %v", got, err)
	}
	into := t.TempDir()
	t.Chdir(into)
	if _, err := output(t.Context(), "busybox", "cpio", "-i", "-d", "-F", path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(into, "a/name"))
	if err != nil || string(raw) != "content" {
		t.Errorf("the link gives %q: %v", raw, err)
	}
	if info, err := os.Stat(filepath.Join(into, "a/deep/file")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the file: %v: %v", info, err)
	}
}
