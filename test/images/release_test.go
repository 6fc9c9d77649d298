package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// program is the header of an ELF file without content.
func program(t *testing.T, machine elf.Machine) string {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56, Shentsize: 64,
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// readIndex reads the archive of a release: the index, its tag and the names of its files.
func readIndex(t *testing.T, file string) (index v1.ImageIndex, tag string, names []string) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 0 || h.Uid != 0 || h.Mode != 0o644 {
			t.Errorf("%s carries a time, an owner or a mode: %+v", h.Name, h)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if digest, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && fmt.Sprintf("%x", sha256.Sum256(data)) != digest {
			t.Errorf("%s has another digest", h.Name)
		}
		write(t, filepath.Join(dir, h.Name), string(data))
		names = append(names, h.Name)
	}
	at, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := at.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].MediaType != types.OCIImageIndex {
		t.Fatalf("the layout has %+v, want one index", top.Manifests)
	}
	index, err = at.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index, top.Manifests[0].Annotations["org.opencontainers.image.ref.name"], names
}

// push puts index into a registry and returns a reference there.
func push(t *testing.T, index v1.ImageIndex) name.Reference {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/pelago:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return ref
}

// pull returns the image that a node of the architecture gets, its configuration and the machine of
// each of its ELF files by path.
func pull(t *testing.T, ref name.Reference, arch string) (img v1.Image, config *v1.ConfigFile, programs map[string]elf.Machine) {
	t.Helper()
	img, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
	if err != nil {
		t.Fatal(err)
	}
	if config, err = img.ConfigFile(); err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	programs = map[string]elf.Machine{}
	for _, l := range layers {
		content, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()
		for r := tar.NewReader(content); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
				continue
			}
			f, err := elf.NewFile(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("%s: %v", h.Name, err)
			}
			programs["/"+h.Name] = f.Machine
		}
	}
	return img, config, programs
}

// checkIndex checks what any release has and returns the ELF files of each architecture.
func checkIndex(t *testing.T, index v1.ImageIndex, entrypoint []string, labels map[string]string) map[string]map[string]elf.Machine {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	platforms := map[string]string{} // of digests
	for _, d := range manifest.Manifests {
		if d.MediaType != types.OCIManifestSchema1 || d.Platform == nil {
			t.Fatalf("the index has %+v, want an image with its platform", d)
		}
		platforms[d.Platform.String()] = d.Digest.String()
	}
	if len(manifest.Manifests) != 2 || platforms["linux/amd64"] == "" || platforms["linux/arm64"] == "" {
		t.Fatalf("platforms = %v, want linux/amd64 and linux/arm64", platforms)
	}
	ref := push(t, index)
	out := map[string]map[string]elf.Machine{}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		img, config, programs := pull(t, ref, arch)
		if digest, err := img.Digest(); err != nil || digest.String() != platforms["linux/"+arch] {
			t.Errorf("%s gets image %s, %v, want %s", arch, digest, err, platforms["linux/"+arch])
		}
		if config.Architecture != arch || config.OS != "linux" || config.Created.Unix() != 0 || config.Config.User != "" ||
			!cmp.Equal(config.Config.Entrypoint, entrypoint) || !cmp.Equal(config.Config.Env, []string{"PATH=" + Path}) || !cmp.Equal(config.Config.Labels, labels) {
			t.Errorf("configuration for %s = %+v", arch, config)
		}
		for file, m := range programs {
			if m != machine {
				t.Errorf("image for %s: %s is for %s", arch, file, m)
			}
		}
		out[arch] = programs
	}
	if _, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: "riscv64"})); err == nil {
		t.Error("a node of another architecture gets an image")
	}
	return out
}

func TestIndex(t *testing.T) {
	dir := t.TempDir()
	labels := map[string]string{"org.opencontainers.image.version": "v1"}
	var all []Image
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		all = append(all, Image{Name: "localhost/thing:dev", Arch: arch, Entrypoint: []string{"/thing"}, Labels: labels,
			Layers: []Layer{{{Path: "/etc/x", Content: "x"}}, {{Path: "/thing", Source: write(t, filepath.Join(dir, arch), program(t, machine))}}}})
	}
	slices.SortFunc(all, func(a, b Image) int { return strings.Compare(a.Arch, b.Arch) })
	one, two := filepath.Join(dir, "one.tar"), filepath.Join(dir, "out", "two.tar")
	digest, err := WriteIndex(one, "v1", all...)
	if err != nil {
		t.Fatal(err)
	}
	index, tag, names := readIndex(t, one)
	if got, err := index.Digest(); err != nil || got.String() != digest || tag != "v1" {
		t.Errorf("index %s (%v) with tag %q, want %s, v1", got, err, tag, digest)
	}
	// Both images, index and the common layer: 2 manifests, 2 configurations, 3 layers, the index.
	if len(names) != 10 || !slices.Contains(names, "oci-layout") || !slices.Contains(names, "index.json") {
		t.Errorf("the archive has %q", names)
	}
	for arch, programs := range checkIndex(t, index, []string{"/thing"}, labels) {
		if len(programs) != 1 {
			t.Errorf("%s has the programs %v", arch, programs)
		}
	}
	again, err := WriteIndex(two, "v1", all...)
	if err != nil {
		t.Fatal(err)
	}
	a, err1 := os.ReadFile(one)
	b, err2 := os.ReadFile(two)
	if err := errors.Join(err1, err2); err != nil || again != digest || !bytes.Equal(a, b) {
		t.Errorf("digests %s and %s, archives equal: %v, %v", digest, again, bytes.Equal(a, b), err)
	}
}

// TestForeignProgram: no image carries a program of another architecture.
func TestForeignProgram(t *testing.T) {
	dir := t.TempDir()
	arm := write(t, filepath.Join(dir, "arm"), program(t, elf.EM_AARCH64))
	layers := []Layer{{{Path: "/thing", Source: arm}}}
	file := filepath.Join(dir, "out", "index.tar")
	_, err := WriteIndex(file, "v1", Image{Name: "localhost/x:dev", Arch: "arm64", Layers: layers}, Image{Name: "localhost/x:dev", Arch: "amd64", Layers: layers})
	if want := "for amd64: assemble image localhost/x:dev: " + arm + ", which becomes /thing, is for EM_AARCH64, the image for amd64 (EM_X86_64)"; err == nil || err.Error() != want {
		t.Errorf("a program for arm64 in an image for amd64: %v, want %s", err, want)
	}
	if _, err := (Image{Name: "localhost/x:dev", Arch: "amd64", Layers: layers}).Write(file); err == nil || !strings.Contains(err.Error(), arm) {
		t.Errorf("Write: %v, want an error that names the program", err)
	}
	if _, err := (Image{Name: "localhost/x:dev", Arch: "mips", Layers: layers}).Write(file); err == nil || !strings.Contains(err.Error(), `architecture "mips" is none of amd64, arm64`) {
		t.Errorf("unknown architecture: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(file)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

// TestSystemOfAnotherRoot: libraries come from below the root directory, and those of other
// architectures are skipped.
func TestSystemOfAnotherRoot(t *testing.T) {
	here, err := Programs("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	s := System{Root: t.TempDir(), Arch: Host().Arch}
	foreign := elf.EM_AARCH64
	if s.Arch == "arm64" {
		foreign = elf.EM_X86_64
	}
	write(t, filepath.Join(s.Root, "/etc/ld.so.conf.d/a.conf"), "/foreign\n/libs\n")
	write(t, filepath.Join(s.Root, "/foreign/libc.so.6"), program(t, foreign))
	var want []string
	for _, f := range here {
		content, err := os.ReadFile(f.Source)
		if err != nil {
			t.Fatal(err)
		}
		to := f.Path
		if strings.HasPrefix(filepath.Base(to), "lib") {
			to = "/libs/" + filepath.Base(to)
		}
		write(t, filepath.Join(s.Root, to), string(content))
		want = append(want, to)
	}
	layer, err := s.Programs("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range layer {
		if !slices.Contains(want, f.Path) || !strings.HasPrefix(f.Source, s.Root) {
			t.Errorf("%s comes from %s", f.Path, f.Source)
		}
	}
	if !has(layer, "/usr/bin/env") || !has(layer, "/libs/libc.so.6") || len(layer) < 3 {
		t.Errorf("env needs %q, want itself, the C library in /libs and the dynamic linker", paths(layer))
	}
	for link, target := range map[string]string{"absolute": "/usr/bin/env", "up": "../../usr/bin/env", "through": "dir/env", "dir": "/usr/bin", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(s.Root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"/absolute", "/up", "/through"} {
		layer, err := s.Programs(link)
		if err != nil || !slices.ContainsFunc(layer, func(f File) bool { return f.Path == link && f.Source == filepath.Join(s.Root, "/usr/bin/env") }) {
			t.Errorf("%s gives %+v, %v", link, layer, err)
		}
	}
	if _, err := s.Programs("/loop"); err == nil || !strings.Contains(err.Error(), "/loop has more than 40 links") {
		t.Errorf("a link to itself: %v", err)
	}
}

// aptSource makes a package source of programs for both architectures, which apt uses instead of
// the machine's.
func aptSource(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	var index strings.Builder
	add := func(name, arch, depends, file, content string) {
		tree := filepath.Join(dir, name+"-"+arch)
		write(t, filepath.Join(tree, file), content)
		control := fmt.Sprintf("Package: %s\nVersion: 1\nArchitecture: %s\nMaintainer: nobody\nDescription: test\n%s", name, arch, depends)
		write(t, filepath.Join(tree, "DEBIAN/control"), control)
		deb := name + "_" + arch + ".deb"
		if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", tree, filepath.Join(dir, deb)).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
		data, err := os.ReadFile(filepath.Join(dir, deb))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", control, deb, len(data), sha256.Sum256(data))
	}
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		add("thing", arch, "Depends: part\n", "usr/bin/thing", program(t, machine))
		add("part", arch, "", "lib/part.so", program(t, machine))
	}
	write(t, filepath.Join(dir, "Packages"), index.String())
	write(t, filepath.Join(dir, "sources.list"), "deb [trusted=yes] copy:"+dir+" ./\n")
	t.Setenv("APT_CONFIG", write(t, filepath.Join(dir, "apt.conf"),
		fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\n", filepath.Join(dir, "sources.list"))))
}

func TestDebianPackagesOfAnArchitecture(t *testing.T) {
	aptSource(t)
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		dir := t.TempDir()
		for range 2 { // the second time over the first
			s, err := Debian(t.Context(), arch, dir, "thing")
			if err != nil {
				t.Fatal(err)
			}
			// a dependency, in a directory that is a link
			layer, err := s.Programs("/usr/bin/thing", "/lib/part.so")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range layer {
				if e, err := elf.Open(f.Source); err != nil || e.Machine != machine {
					t.Errorf("%s for %s: %v, %v", f.Path, arch, e, err)
				}
			}
			if target, err := os.Readlink(filepath.Join(s.Root, "lib")); err != nil || target != "usr/lib" {
				t.Errorf("/lib leads to %q, %v", target, err)
			}
		}
	}
	if _, err := Debian(t.Context(), "arm64", t.TempDir(), "thing", "nothing"); err == nil ||
		!strings.HasPrefix(err.Error(), "get the Debian packages thing, nothing for arm64: ") || !strings.Contains(err.Error(), "Unable to locate package nothing") {
		t.Errorf("a package that no source has: %v", err)
	}
}

func TestReleaseRefusesVersion(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := Release(t.Context(), dir, "v1+build", "", func(string) {}); err == nil || !strings.Contains(err.Error(), `version "v1+build" is no tag of an image`) {
		t.Errorf("%v, want an error that names the version", err)
	}
	if _, _, err := Release(t.Context(), dir, "v1", "registry.example/pelago", func(string) {}); err == nil || !strings.Contains(err.Error(), "give another with --image") {
		t.Errorf("%v, want an error that names the image", err)
	}
}

// TestReleaseImage builds a release; make test-full runs it.
func TestReleaseImage(t *testing.T) {
	dir := t.TempDir()
	file, digest, err := Release(t.Context(), dir, "v1.2.3", "", func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	index, tag, _ := readIndex(t, file)
	if tag != "v1.2.3" {
		t.Errorf("tag %q", tag)
	}
	found := checkIndex(t, index, nil, map[string]string{"org.opencontainers.image.title": "Pelago", "org.opencontainers.image.version": "v1.2.3",
		"org.opencontainers.image.licenses": "Apache-2.0"})
	for arch, programs := range found {
		want := []string{busybox, charon, "/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"}
		for _, name := range PelagoPrograms() {
			want = append(want, "/usr/bin/"+name)
		}
		for _, file := range want {
			if programs[file] == 0 {
				t.Errorf("the image for %s lacks %s", arch, file)
			}
		}
	}
	// The same files for both, but for the names of the architecture.
	neutral := strings.NewReplacer("aarch64-linux-gnu", "ARCH", "x86_64-linux-gnu", "ARCH", "/lib64/", "/lib/", "ld-linux-aarch64.so.1", "LD", "ld-linux-x86-64.so.2", "LD")
	names := func(programs map[string]elf.Machine) (all []string) {
		for file := range programs {
			all = append(all, neutral.Replace(file))
		}
		slices.Sort(all)
		return all
	}
	if diff := cmp.Diff(names(found["amd64"]), names(found["arm64"])); diff != "" {
		t.Errorf("ELF files (-amd64 +arm64):\n%s", diff)
	}
	if _, again, err := Release(t.Context(), dir, "v1.2.3", "", func(string) {}); err != nil || again != digest {
		t.Errorf("digests %s and %s, %v", digest, again, err)
	}
	// Programs of this machine's architecture run, others where qemu-user-static is installed.
	for _, arch := range Architectures() {
		var argv []string
		if arch != Host().Arch {
			emulator, err := exec.LookPath("qemu-" + strings.TrimSuffix(architectures[arch].triplet, "-linux-gnu") + "-static")
			if err != nil {
				continue
			}
			argv = []string{emulator}
		}
		run := func(ctx context.Context, args ...string) string {
			args = append(slices.Clone(argv), args...)
			out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
			}
			return string(out)
		}
		for _, name := range PelagoPrograms() {
			if out := run(t.Context(), filepath.Join(dir, "linux-"+arch, name), "--help"); !strings.Contains(out, name) {
				t.Errorf("%s for %s prints %q", name, arch, out)
			}
		}
		if out := run(t.Context(), filepath.Join(dir, "linux-"+arch, "pelago-node"), "--version"); !strings.Contains(out, "v1.2.3") {
			t.Errorf("pelago-node for %s prints %q, want the version", arch, out)
		}
	}
}
