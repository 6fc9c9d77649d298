package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pelago-net/pelago/test/lab/binaries"
)

// platforms are those for which there is a CLI.
var platforms = []binaries.Platform{
	{OS: "darwin", Arch: "amd64"}, {OS: "darwin", Arch: "arm64"},
	{OS: "linux", Arch: "amd64"}, {OS: "linux", Arch: "arm64"},
	{OS: "windows", Arch: "amd64"}, {OS: "windows", Arch: "arm64"},
}

// program is the file name of the CLI.
func program(p binaries.Platform) string {
	if p.OS == "windows" {
		return "pelago.exe"
	}
	return "pelago"
}

// archive is the file name of the archive with the CLI.
func (r *release) archive(p binaries.Platform) string {
	suffix := ".tar.gz"
	if p.OS == "windows" {
		suffix = ".zip"
	}
	return fmt.Sprintf("pelago-%s-%s-%s%s", r.version, p.OS, p.Arch, suffix)
}

// programs builds the CLI for all platforms, each in an archive with completions and manual pages.
func (r *release) programs(ctx context.Context, build string) error {
	file := func(p binaries.Platform) string { return filepath.Join(build, p.OS+"-"+p.Arch+"-cli", program(p)) }
	for _, p := range platforms {
		if err := binaries.Release(ctx, "./cmd/pelago", file(p), p, r.version, r.pinned); err != nil {
			return fmt.Errorf("for %s/%s: %w", p.OS, p.Arch, err)
		}
		r.progress("built the CLI for " + p.OS + "/" + p.Arch)
	}
	texts, err := r.texts(ctx, file(binaries.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH}), build)
	if err != nil {
		return err
	}
	for _, p := range platforms {
		data, err := os.ReadFile(file(p))
		if err != nil {
			return fmt.Errorf("for %s/%s: %w", p.OS, p.Arch, err)
		}
		all := append([]entry{{program(p), 0o755, data}}, texts...)
		if err := writeArchive(filepath.Join(r.dir, r.archive(p)), r.time, all); err != nil {
			return fmt.Errorf("for %s/%s: %w", p.OS, p.Arch, err)
		}
	}
	return nil
}

// texts are the files beside the CLI, which itself writes completions and manual pages.
func (r *release) texts(ctx context.Context, cli, build string) ([]entry, error) {
	var out []entry
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	out = append(out, entry{"LICENSE", 0o644, license})
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, cli, args...)
		cmd.Env = append(os.Environ(), fmt.Sprint("SOURCE_DATE_EPOCH=", r.time.Unix()))
		text, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		if err != nil {
			return nil, fmt.Errorf("run pelago %s: %w", strings.Join(args, " "), err)
		}
		return text, nil
	}
	for shell, file := range map[string]string{"bash": "pelago.bash", "fish": "pelago.fish", "powershell": "pelago.ps1", "zsh": "_pelago"} {
		text, err := run("completion", shell)
		if err != nil {
			return nil, err
		}
		out = append(out, entry{"completions/" + file, 0o644, text})
	}
	manual := filepath.Join(build, "man", "man1")
	if _, err := run("man", manual); err != nil {
		return nil, err
	}
	pages, err := filepath.Glob(filepath.Join(manual, "*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		out = append(out, entry{"man/man1/" + filepath.Base(page), 0o644, text})
	}
	return sorted(out), nil
}
