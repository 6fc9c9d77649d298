package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sort"
	"strings"
)

// module is the path in the first line of the repository's go.mod.
const module = "github.com/pelago-net/pelago"

var moduleLine = regexp.MustCompile(`(?m)^module\s+` + regexp.QuoteMeta(module) + `\s*$`)

// CacheDir returns the directory of cached builds: $PELAGO_CACHE, else
// "pelago" below the user's cache directory ($XDG_CACHE_HOME or ~/.cache).
func CacheDir() (string, error) {
	if dir := os.Getenv("PELAGO_CACHE"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("find the cache directory PELAGO_CACHE=%s: %w", dir, err)
		}
		return abs, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w (set PELAGO_CACHE)", err)
	}
	return filepath.Join(dir, "pelago"), nil
}

// Repository returns the root of the source tree: $PELAGO_ROOT, else the
// nearest directory above the working directory, or above the running program,
// whose go.mod is this module's.
func Repository() (string, error) {
	if dir := os.Getenv("PELAGO_ROOT"); dir != "" {
		if !isRepository(dir) {
			return "", fmt.Errorf("find the source tree: PELAGO_ROOT=%s does not hold the go.mod of %s", dir, module)
		}
		return filepath.Abs(dir)
	}
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for {
			if isRepository(dir) {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errors.New("find the source tree of " + module + ": run inside it or set PELAGO_ROOT (the lab builds Kubernetes and its images from there)")
}

func isRepository(dir string) bool {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && moduleLine.Match(mod)
}

// key hashes everything that decides what a build of a in module gives: twelve
// hex digits.
func (a artifact) key(module string) (string, error) {
	var files []string
	entries, err := os.ReadDir(module)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && a.wanted(e.Name()) {
			files = append(files, e.Name())
		}
	}
	sort.Strings(files)
	h := sha256.New()
	fmt.Fprintln(h, a.name, a.version, a.ldflags, a.links, a.packages, a.tags, runtime.Version(), runtime.GOARCH)
	if a.programs != nil {
		fmt.Fprintln(h, a.programs, a.copies, a.of, a.cgo) // maps are printed in the order of their keys
	}
	for _, name := range files {
		f, err := os.Open(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, name)
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// wanted reports whether a build of a depends on a file of this name in its module directory.
func (a artifact) wanted(name string) bool {
	modfile := "go.mod"
	if a.modfile != "" {
		modfile = a.modfile
	}
	return name == modfile || name == strings.TrimSuffix(modfile, ".mod")+".sum" || strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}
