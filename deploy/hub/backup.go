package hub

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Entries of a backup, a tar archive that is compressed by gzip: the flags of the installation, the
// files of PKI.Kept, and last the snapshot of etcd.
const (
	entrySettings = "settings.yaml"
	entryPKI      = "pki/"
	entrySnapshot = "snapshot.db"
)

// Backup is an open backup.
type Backup struct {
	io.Closer
	// Settings are the flags of the installation in a host cluster.
	Settings map[string]string
	// Kept is that of PKI.
	Kept map[string][]byte
	// Snapshot is etcd's. It can be read once.
	Snapshot io.Reader

	zip  *gzip.Reader
	tar  *tar.Reader
	size int64 // of the snapshot
}

// WriteBackup writes the state of the hub into a file that its owner alone can read; snapshot
// writes that of etcd.
func WriteBackup(file string, settings map[string]string, kept map[string][]byte, snapshot func(io.Writer) error) (err error) {
	// The header of the entry has the size, so the snapshot is stored before.
	stored, err := os.CreateTemp(filepath.Dir(file), ".snapshot-")
	if err != nil {
		return fmt.Errorf("write backup %s: %w", file, err)
	}
	defer os.Remove(stored.Name())
	defer stored.Close()
	if err := snapshot(stored); err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".backup-") // mode 0600
	if err != nil {
		return fmt.Errorf("write backup %s: %w", file, err)
	}
	defer os.Remove(out.Name())
	if err := errors.Join(EncodeBackup(out, settings, kept, stored), out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("write backup %s: %w", file, err)
	}
	if err := os.Rename(out.Name(), file); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// EncodeBackup writes a backup; snapshot is etcd's, with the checksum at its end.
func EncodeBackup(out io.Writer, settings map[string]string, kept map[string][]byte, snapshot io.ReadSeeker) error {
	text, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	size, err := snapshot.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = snapshot.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(out)
	w := tar.NewWriter(zip)
	files := map[string][]byte{entrySettings: text}
	for name, content := range kept {
		files[entryPKI+name] = content
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name]))})
		if err == nil {
			_, err = w.Write(files[name])
		}
		if err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: entrySnapshot, Mode: 0o600, Size: size}); err != nil {
		return err
	}
	if _, err := io.Copy(w, snapshot); err != nil {
		return err
	}
	return errors.Join(w.Close(), zip.Close())
}

// OpenBackup reads a backup up to its snapshot.
func OpenBackup(file string) (*Backup, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	a, err := readBackup(f)
	if err != nil {
		_ = f.Close() // only read
		return nil, fmt.Errorf("read backup %s: %w: it is no file of `pelago hub backup`, or a part of one", file, err)
	}
	a.Closer = f
	return a, nil
}

func readBackup(from io.Reader) (*Backup, error) {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	r := tar.NewReader(zip)
	a := &Backup{Kept: map[string][]byte{}}
	for {
		header, err := r.Next()
		if err != nil {
			return nil, err
		}
		if header.Name == entrySnapshot {
			a.size = header.Size
			break
		}
		content, err := io.ReadAll(io.LimitReader(r, 1<<20))
		if err != nil {
			return nil, err
		}
		if header.Name == entrySettings {
			err = yaml.Unmarshal(content, &a.Settings)
		} else if name, ok := strings.CutPrefix(header.Name, entryPKI); ok {
			a.Kept[name] = content
		}
		if err != nil {
			return nil, err
		}
	}
	for _, name := range KeptFiles() {
		if a.Kept[name] == nil {
			return nil, fmt.Errorf("%s%s is missing", entryPKI, name)
		}
	}
	a.Snapshot, a.zip, a.tar = r, zip, r
	return a, nil
}

// CheckBackup reads a backup to its end and compares its checksums: that of gzip, and the one that
// etcd appends to a snapshot.
func CheckBackup(file string) error {
	a, err := OpenBackup(file)
	if err != nil {
		return err
	}
	defer a.Close()
	if err := a.check(); err != nil {
		return fmt.Errorf("read backup %s: %w: it is damaged, or a part of one: copy it again, or use another", file, err)
	}
	return nil
}

func (a *Backup) check() error {
	// A database has whole pages.
	if a.size%512 != sha256.Size {
		return fmt.Errorf("%s has %d bytes, no snapshot with a checksum", entrySnapshot, a.size)
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, a.Snapshot, a.size-sha256.Size); err != nil {
		return fmt.Errorf("%s: %w", entrySnapshot, err)
	}
	want, err := io.ReadAll(a.Snapshot)
	if err != nil {
		return fmt.Errorf("%s: %w", entrySnapshot, err)
	}
	if !bytes.Equal(want, sum.Sum(nil)) {
		return fmt.Errorf("%s: its content and its checksum differ", entrySnapshot)
	}
	for err == nil {
		_, err = a.tar.Next()
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	_, err = io.Copy(io.Discard, a.zip) // the checksum follows the padding
	return err
}

// CopySnapshot writes the snapshot, mode 0600. It can be read once.
func (a *Backup) CopySnapshot(file string) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, a.Snapshot)
	return errors.Join(err, out.Close())
}
