package images

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Programs returns the files of programs of this machine for an image: each program at its own path, its ELF interpreter and,
// transitively, every shared library, each once. A file may also be a shared object such as a plugin.
func Programs(files ...string) (Layer, error) {
	c := closure{dirs: libraryDirs(), paths: map[string]bool{}}
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
	source, err := filepath.EvalSymlinks(file)
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
		path, err := c.find(library, f.Class, runpath)
		if err != nil {
			return err
		}
		if err := c.add(path); err != nil {
			return err
		}
	}
	return nil
}

// find searches for a library like the dynamic linker: run path first, then
// the configured directories, skipping other word sizes.
func (c *closure) find(library string, class elf.Class, runpath []string) (string, error) {
	var dirs []string
	for _, list := range runpath {
		dirs = append(dirs, strings.Split(list, ":")...)
	}
	for _, dir := range append(dirs, c.dirs...) {
		path := filepath.Join(dir, library)
		f, err := elf.Open(path)
		if err != nil {
			continue
		}
		f.Close()
		if f.Class == class {
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
func libraryDirs() []string {
	var dirs []string
	files, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf") // the pattern is well-formed
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
