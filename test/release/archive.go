package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string
	mode int64
	data []byte
}

// sorted are entries by name: the same files give the same archive.
func sorted(all []entry) []entry {
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all
}

// writeArchive writes a .zip, a .tar, or a compressed tar, by its name. All entries have one time and no owner.
func writeArchive(file string, at time.Time, all []entry) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if strings.HasSuffix(file, ".zip") {
		return writeZip(f, at, all)
	}
	if strings.HasSuffix(file, ".tar") {
		return writeTar(f, at, all)
	}
	z := gzip.NewWriter(f)
	return errors.Join(writeTar(z, at, all), z.Close())
}

func writeTar(out io.Writer, at time.Time, all []entry) error {
	t := tar.NewWriter(out)
	for _, e := range all {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
		if _, err := t.Write(e.data); err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
	}
	return t.Close()
}

func writeZip(out io.Writer, at time.Time, all []entry) error {
	z := zip.NewWriter(out)
	for _, e := range all {
		w, err := z.CreateHeader(&zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at})
		if err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
	}
	return z.Close()
}

// sum is the SHA-256 of a file, hexadecimal.
func sum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// files are those of the release so far, by name.
func (r *release) files() ([]string, error) { return filepath.Glob(filepath.Join(r.dir, "[^.]*")) }

// checksums writes SHA256SUMS of all files, in the format of sha256sum(1).
func (r *release) checksums() error {
	files, err := r.files()
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, file := range files {
		s, err := sum(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s  %s\n", s, filepath.Base(file))
	}
	return os.WriteFile(filepath.Join(r.dir, "SHA256SUMS"), []byte(out.String()), 0o644)
}
