package images

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// architectures are those for which images are made, by GOARCH: Debian's names are the same.
var architectures = map[string]struct {
	machine elf.Machine
	triplet string // of Debian's library directories
}{
	"amd64": {elf.EM_X86_64, "x86_64-linux-gnu"},
	"arm64": {elf.EM_AARCH64, "aarch64-linux-gnu"},
}

// runsOn returns an error if f is an ELF file of another architecture than arch.
func (f File) runsOn(arch string) error {
	want, ok := architectures[arch]
	if !ok {
		return fmt.Errorf("architecture %q is none of %s", arch, strings.Join(slices.Sorted(maps.Keys(architectures)), ", "))
	}
	if f.Source == "" {
		return nil
	}
	e, err := elf.Open(f.Source)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return nil // no ELF file
	}
	if err != nil {
		return err
	}
	defer e.Close()
	if e.Machine != want.machine {
		return fmt.Errorf("%s, which becomes %s, is for %s, the image for %s (%s)", f.Source, f.Path, e.Machine, arch, want.machine)
	}
	return nil
}

// System is a Debian system whose programs images carry.
type System struct {
	Root string // its root directory
	Arch string // GOARCH of its programs
}

// Host is this machine.
func Host() System { return System{Root: "/", Arch: runtime.GOARCH} }

// Programs returns programs of this machine for an image, see System.Programs.
func Programs(files ...string) (Layer, error) { return Host().Programs(files...) }

// Programs returns the files of programs for an image: each program at its own path, its ELF
// interpreter and, transitively, every shared library, each once. A file may also be a shared
// object such as a plugin. Paths are below the root directory.
func (s System) Programs(files ...string) (Layer, error) {
	c := closure{root: s.Root, dirs: libraryDirs(s.Root), paths: map[string]bool{}}
	for _, file := range files {
		if err := c.add(file); err != nil {
			return nil, fmt.Errorf("find the libraries of %s: %w", file, err)
		}
	}
	slices.SortFunc(c.layer, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return c.layer, nil
}

// closure gathers files and the libraries that they name.
type closure struct {
	root  string
	dirs  []string
	paths map[string]bool // absolute paths already in layer
	layer Layer
}

func (c *closure) add(file string) error {
	if c.paths[file] {
		return nil
	}
	c.paths[file] = true
	// The path stays as given; its content is that of the resolved link.
	source, err := c.resolve(file)
	if err != nil {
		return err
	}
	c.layer = append(c.layer, File{Path: file, Source: source})
	f, err := elf.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	interpreter, err := interpreterOf(f)
	if err != nil {
		return err
	}
	if interpreter != "" {
		if err := c.add(interpreter); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	runpath, err := f.DynString(elf.DT_RUNPATH)
	if err != nil {
		return err
	}
	for _, library := range needed {
		path, err := c.find(library, f, runpath)
		if err != nil {
			return err
		}
		if err := c.add(path); err != nil {
			return err
		}
	}
	return nil
}

// resolve follows links as if root were the root directory, and returns the path of the file on
// this machine.
func (c *closure) resolve(file string) (string, error) {
	const maxLinks = 40 // as in the kernel
	at, rest, links := "/", file, 0
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		next := filepath.Join(at, name)
		info, err := os.Lstat(filepath.Join(c.root, next))
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(filepath.Join(c.root, next))
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s has more than %d links", file, maxLinks)
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(at, target)
		}
		at, rest = "/", target+"/"+rest
	}
	return filepath.Join(c.root, at), nil
}

// find searches for a library like the dynamic linker: run path first, then
// the configured directories, skipping other word sizes and architectures.
func (c *closure) find(library string, of *elf.File, runpath []string) (string, error) {
	var dirs []string
	for _, list := range runpath {
		dirs = append(dirs, strings.Split(list, ":")...)
	}
	for _, dir := range append(dirs, c.dirs...) {
		path := filepath.Join(dir, library)
		source, err := c.resolve(path)
		if err != nil {
			continue
		}
		f, err := elf.Open(source)
		if err != nil {
			continue
		}
		f.Close()
		if f.Class == of.Class && f.Machine == of.Machine {
			return path, nil
		}
	}
	return "", fmt.Errorf("library %s is in none of %s", library, strings.Join(append(dirs, c.dirs...), ", "))
}

// interpreterOf returns the dynamic linker that a program names, "" for a
// static program or a library.
func interpreterOf(f *elf.File) (string, error) {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data := make([]byte, p.Filesz)
		if _, err := p.ReadAt(data, 0); err != nil {
			return "", fmt.Errorf("read the interpreter: %w", err)
		}
		return strings.TrimRight(string(data), "\x00"), nil
	}
	return "", nil
}

// libraryDirs returns the directories that the dynamic linker searches:
// what /etc/ld.so.conf.d names, then its built-in ones.
func libraryDirs(root string) []string {
	var dirs []string
	// the pattern is well-formed
	files, _ := filepath.Glob(filepath.Join(root, "etc/ld.so.conf.d/*.conf"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); filepath.IsAbs(line) {
				dirs = append(dirs, line)
			}
		}
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
}
