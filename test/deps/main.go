// Command deps lists the direct dependencies of all modules of this repository that are behind
// their newest release.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/sync/errgroup"
)

// requirement is a direct requirement of one of the repository's modules.
type requirement struct {
	path, version string
	file          string // the go.mod that has it, relative to the repository
	note          string // the comment of its line there: why it is held back
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "deps:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	list, err := requirements(ctx)
	if err != nil {
		return err
	}
	newest, err := releases(ctx, list)
	if err != nil {
		return err
	}
	return report(out, list, newest)
}

// requirements are those of every go.mod that is tracked.
func requirements(ctx context.Context) (all []requirement, err error) {
	files, err := output(ctx, "git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "go.mod", "**/go.mod")
	if err != nil {
		return nil, err
	}
	for file := range strings.FieldsSeq(files) {
		data, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			return nil, err
		}
		mod, err := modfile.Parse(file, data, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, direct(file, mod)...)
	}
	return all, nil
}

// direct are the modules that a go.mod requires for its own packages or as tools, without those of
// this repository.
func direct(file string, mod *modfile.File) (all []requirement) {
	for _, r := range mod.Require {
		have, note := r.Mod, ""
		for _, comment := range r.Syntax.Suffix {
			note = strings.TrimSpace(strings.TrimPrefix(comment.Token, "//"))
		}
		if r.Indirect && !slices.ContainsFunc(mod.Tool, func(t *modfile.Tool) bool { return within(t.Path, have.Path) }) {
			continue
		}
		for _, replace := range mod.Replace {
			if replace.Old.Path == have.Path {
				have = replace.New
			}
		}
		if have.Version == "" { // a directory
			continue
		}
		all = append(all, requirement{have.Path, have.Version, file, strings.TrimLeft(strings.TrimPrefix(note, "indirect"), "; ")})
	}
	return all
}

func within(pkg, module string) bool { return pkg == module || strings.HasPrefix(pkg, module+"/") }

// releases asks the module proxy for the newest release of each module.
func releases(ctx context.Context, list []requirement) (map[string]string, error) {
	have := map[string]string{}
	for _, r := range list {
		have[r.path] = r.version
	}
	paths := make([]string, 0, len(have))
	for path := range have {
		paths = append(paths, path)
	}
	found := make([]string, len(paths))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i, path := range paths {
		group.Go(func() (err error) {
			found[i], err = release(ctx, path)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	newest := map[string]string{}
	for i, path := range paths {
		newest[path] = found[i]
	}
	return newest, nil
}

// release is a module's newest version: of its tagged ones that are no prereleases, otherwise what
// the proxy calls the latest.
func release(ctx context.Context, path string) (string, error) {
	text, err := output(ctx, "go", "list", "-mod=readonly", "-m", "-versions", "-json=Versions", path)
	if err != nil {
		return "", err
	}
	var listed struct{ Versions []string }
	if err := json.Unmarshal([]byte(text), &listed); err != nil {
		return "", fmt.Errorf("read the versions of %s: %w", path, err)
	}
	if v := newestRelease(listed.Versions); v != "" {
		return v, nil
	}
	text, err = output(ctx, "go", "list", "-mod=readonly", "-m", "-f", "{{.Version}}", path+"@latest")
	return strings.TrimSpace(text), err
}

func newestRelease(versions []string) (newest string) {
	for _, v := range versions {
		if semver.Prerelease(v) == "" && semver.Build(v) == "" && semver.Compare(v, newest) > 0 {
			newest = v
		}
	}
	return newest
}

// behind reports by what a version is older than the newest: "minor", "patch", or "" if it is not
// older.
func behind(have, newest string) string {
	switch {
	case semver.Compare(have, newest) >= 0:
		return ""
	case module.IsPseudoVersion(have) || semver.MajorMinor(have) != semver.MajorMinor(newest):
		return "minor"
	}
	return "patch"
}

// report prints what is behind, that by a minor release first.
func report(out io.Writer, list []requirement, newest map[string]string) error {
	minors := 0
	var lines [2][]string
	for _, r := range list {
		by := behind(r.version, newest[r.path])
		line := strings.TrimRight(strings.Join([]string{r.path, r.version, newest[r.path], by, r.file, r.note}, "\t"), "\t")
		switch by {
		case "minor":
			minors++
			lines[0] = append(lines[0], line)
		case "patch":
			lines[1] = append(lines[1], line)
		}
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if all := slices.Concat(lines[0], lines[1]); len(all) > 0 {
		fmt.Fprintln(w, "MODULE\tHAVE\tNEWEST\tBEHIND BY\tIN\tREASON")
		for _, line := range all {
			fmt.Fprintln(w, line)
		}
	}
	fmt.Fprintf(w, "%d direct requirements, %d behind by a minor release, %d by a patch\n", len(list), minors, len(lines[1]))
	return w.Flush()
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s: %w", cmd, errors.Join(err, errors.New(strings.TrimSpace(stderr.String()))))
	}
	return stdout.String(), nil
}
