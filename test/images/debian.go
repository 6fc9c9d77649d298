package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// aptConfig lets apt choose packages for one architecture as if none were installed. Its package
// lists and downloads are below a directory of their own; sources, keys and proxies are the
// machine's. %[1]s: the architecture, %[2]s: the directory.
const aptConfig = `APT::Architecture "%[1]s";
APT::Architectures { "%[1]s"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "%[2]s/state";
Dir::State::status "%[2]s/status";
Dir::Cache "%[2]s/cache";
`

// Debian downloads packages for an architecture, with all on which they depend, from the package
// sources of this machine, and unpacks them into a root directory below dir. Nothing is installed;
// the machine's dpkg and its package lists stay as they are.
func Debian(ctx context.Context, arch, dir string, packages ...string) (System, error) {
	s := System{Root: filepath.Join(dir, "root"), Arch: arch}
	if err := s.download(ctx, dir, packages); err != nil {
		return System{}, fmt.Errorf("get the Debian packages %s for %s: %w (the package sources in /etc/apt must offer them)", strings.Join(packages, ", "), arch, err)
	}
	return s, nil
}

func (s System) download(ctx context.Context, dir string, packages []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	archives := filepath.Join(dir, "cache", "archives")
	// Package lists stay, so that apt loads only what has changed. Archives of an earlier run may
	// be older versions.
	if err := errors.Join(os.RemoveAll(s.Root), os.RemoveAll(archives)); err != nil {
		return err
	}
	for _, d := range []string{filepath.Join(dir, "state", "lists", "partial"), filepath.Join(archives, "partial")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	config := filepath.Join(dir, "apt.conf")
	text := fmt.Sprintf(aptConfig, s.Arch, dir)
	if outer := os.Getenv("APT_CONFIG"); outer != "" {
		text = fmt.Sprintf("#include %q;\n", outer) + text
	}
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o644), os.WriteFile(filepath.Join(dir, "status"), nil, 0o644)); err != nil {
		return err
	}
	// A list that cannot be loaded is an error, not a warning: an old one has no security updates.
	for _, args := range [][]string{{"update", "--error-on=any"}, append([]string{"install", "--yes", "--no-install-recommends", "--download-only"}, packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet"}, args...)...)
		cmd.Env = append(os.Environ(), "APT_CONFIG="+config, "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	// As on an installed system, /lib and the others are links: the dynamic linker of a program is
	// named by a path in them.
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(s.Root, "usr", d), 0o755), os.Symlink("usr/"+d, filepath.Join(s.Root, d))); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if err := unpack(ctx, deb, s.Root); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	return nil
}

// unpack adds the files of a package to root, through links to directories, which dpkg-deb
// --extract would replace.
func unpack(ctx context.Context, deb, root string) error {
	read := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	write := exec.CommandContext(ctx, "tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--exclude=./usr/share", "--directory", root)
	var errs bytes.Buffer
	read.Stderr, write.Stderr = &errs, &errs
	pipe, err := read.StdoutPipe()
	if err != nil {
		return err
	}
	write.Stdin = pipe
	if err := read.Start(); err != nil {
		return err
	}
	if err := errors.Join(write.Run(), read.Wait()); err != nil {
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(errs.Bytes()))
	}
	return nil
}
