package hub

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// backupWith is a backup with a snapshot of the given content, which has a checksum of sum.
func backupWith(t *testing.T, content, sum []byte) []byte {
	t.Helper()
	digest := sha256.Sum256(sum)
	kept := map[string][]byte{}
	for _, name := range KeptFiles() {
		kept[name] = []byte("content of " + name)
	}
	var out bytes.Buffer
	check(t, EncodeBackup(&out, map[string]string{"node-port": "30443"}, kept, bytes.NewReader(append(bytes.Clone(content), digest[:]...))))
	return out.Bytes()
}

// TestCheckBackup: a backup that lacks something, or has changed, is found before it is used.
func TestCheckBackup(t *testing.T) {
	var pages []byte // that gzip does not shorten much
	for len(pages) < 64<<10 {
		sum := sha256.Sum256(pages)
		pages = append(pages, sum[:]...)
	}
	whole := backupWith(t, pages, pages)
	file := filepath.Join(t.TempDir(), "backup")
	fails := func(title string, text []byte, want string) {
		t.Helper()
		check(t, os.WriteFile(file, text, 0o600))
		if err := CheckBackup(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", title, err, want)
		}
	}
	check(t, os.WriteFile(file, whole, 0o600))
	check(t, CheckBackup(file))
	a, err := OpenBackup(file)
	check(t, err)
	copied := filepath.Join(t.TempDir(), "snapshot")
	check(t, a.CopySnapshot(copied))
	check(t, a.Close())
	if have, err := os.ReadFile(copied); err != nil || !bytes.HasPrefix(have, pages) || len(have) != len(pages)+sha256.Size || a.Settings["node-port"] != "30443" {
		t.Errorf("read back: %d bytes of %d (%v), settings %v", len(have), len(pages)+sha256.Size, err, a.Settings)
	}

	for _, n := range []int{len(whole) - 1, len(whole) - 8, len(whole) - 600, len(whole) / 2} {
		fails("cut off", whole[:n], "it is damaged, or a part of one: copy it again")
	}
	fails("without anything", nil, "no file of `pelago hub backup`")
	changed := bytes.Clone(whole)
	changed[len(whole)/2] ^= 1
	fails("a bit has changed", changed, "it is damaged")
	fails("another checksum of etcd", backupWith(t, pages, pages[1:]), "snapshot.db: its content and its checksum differ")
	fails("without the checksum of etcd", backupWith(t, pages[:len(pages)-sha256.Size], nil), "no snapshot with a checksum")
	var empty bytes.Buffer
	zip := gzip.NewWriter(&empty)
	check(t, tar.NewWriter(zip).Close())
	check(t, zip.Close())
	fails("without entries", empty.Bytes(), "no file of `pelago hub backup`")
}
