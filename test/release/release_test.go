package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/need"
)

// at is the time of the files.
var at = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)

// example is a release whose image is built.
func example(t *testing.T) *release {
	t.Helper()
	root, err := binaries.Repository()
	if err != nil {
		t.Fatal(err)
	}
	return &release{version: "v0.9.0", url: "https://downloads.example/pelago/", dir: t.TempDir(), root: root, time: at,
		pinned: "registry.example/pelago:v0.9.0@sha256:00", progress: func(line string) { t.Log(line) }}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ version, image, want string }{
		{"v1", "registry.example/pelago:v1", `version "v1": charts and krew need vMAJOR.MINOR.PATCH`},
		{"7a95c2f-dirty", "registry.example/pelago:v1", "make release VERSION=v0.9.0"},
		{"v0.9.0+build", "registry.example/pelago:v1", "charts and krew need"},
		{"v0.9.0-rc.1", "", "make release IMAGE=REGISTRY/pelago:v0.9.0-rc.1"},
	} {
		r := release{version: tt.version, image: tt.image}
		if err := r.build(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.version, tt.image, err, tt.want)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := commitTime(t.Context(), "."); err == nil {
		t.Error("a time that is no number is accepted")
	}
}

func TestSection(t *testing.T) {
	const text = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.9.0] - 2026-12-01\n\n### Added\n\n- a\n\n## [0.8.0] - 2026-11-01\n\n- b\n"
	for version, want := range map[string]string{"0.9.0": "### Added\n\n- a\n", "0.8.0": "- b\n", "1.0.0": "- new\n"} {
		if got, err := section(text, version); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", version, got, err, want)
		}
	}
	if got, err := section("# Changelog\n", "1.0.0"); err == nil {
		t.Errorf("without a section: %q", got)
	}
}

// unpack reads a tar.
func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(at) || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%s has the time %v and the owner %d %q", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(data)
	}
}

func unzipped(t *testing.T, file string) io.Reader {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// Charts and manifests have the release's image with its digest, and charts its version; those for
// registries hold the same archive.
func TestChartsAndManifests(t *testing.T) {
	r := example(t)
	if err := errors.Join(r.charts(t.Context(), ""), r.manifests(t.Context(), "")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pelago-hub", "pelago-member", "pelago-operator", "pelago-push-member"} {
		file := filepath.Join(r.dir, name+"-0.9.0")
		chart := unpack(t, unzipped(t, file+".tgz"))
		var meta struct{ Name, Version, AppVersion string }
		var values struct{ Image string }
		if err := errors.Join(yaml.Unmarshal([]byte(chart[name+"/Chart.yaml"]), &meta), yaml.Unmarshal([]byte(chart[name+"/values.yaml"]), &values)); err != nil {
			t.Fatal(err)
		}
		if meta.Name != name || meta.Version != "0.9.0" || meta.AppVersion != "v0.9.0" {
			t.Errorf("%s has %+v", name, meta)
		}
		if values.Image != r.pinned && name != "pelago-push-member" { // which runs no pods
			t.Errorf("%s has the image %q", name, values.Image)
		}
		layout, err := os.Open(file + ".oci.tar")
		if err != nil {
			t.Fatal(err)
		}
		checkLayout(t, unpack(t, layout), file+".tgz")
		layout.Close()
	}
	operator, err := os.ReadFile(filepath.Join(r.dir, "operator.yaml"))
	if err != nil || strings.Contains(string(operator), devImage) || strings.Count(string(operator), "image: "+r.pinned+"\n") != 1 {
		t.Errorf("the operator's image, %v", err)
	}
	crds, err := os.ReadFile(filepath.Join(r.dir, "crds.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(r.root, "deploy", "crds", "*.yaml"))
	if n := strings.Count(string(crds), "\nkind: CustomResourceDefinition\n"); err != nil || n != len(files) || n == 0 {
		t.Errorf("%d of %d CRDs, %v", n, len(files), err)
	}
}

// checkLayout follows an OCI image layout to the chart in it.
func checkLayout(t *testing.T, files map[string]string, chart string) {
	t.Helper()
	type descriptor struct {
		MediaType, Digest string
		Size              int
		Annotations       map[string]string
	}
	blob := func(d descriptor) string {
		data := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if len(data) != d.Size || d.Size == 0 {
			t.Errorf("%s has %d bytes, want %d", d.Digest, len(data), d.Size)
		}
		return data
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal([]byte(files["index.json"]), &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index %s: %v", files["index.json"], err)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	if err := json.Unmarshal([]byte(blob(index.Manifests[0])), &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("manifest %+v: %v", manifest, err)
	}
	want, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	if blob(manifest.Layers[0]) != string(want) || manifest.Layers[0].MediaType != chartContent || manifest.Config.MediaType != chartConfig ||
		index.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "0.9.0" || !strings.Contains(blob(manifest.Config), `"version":"0.9.0"`) {
		t.Errorf("%s: index %+v, manifest %+v", chart, index, manifest)
	}
}

// fakePrograms writes archives with a program that prints text.
func (r *release) fakePrograms(t *testing.T, text string) {
	t.Helper()
	for _, p := range platforms {
		if err := writeArchive(filepath.Join(r.dir, r.archive(p)), at, []entry{{program(p), 0o755, []byte("#!/bin/sh\necho " + text + "\n")}}); err != nil {
			t.Fatal(err)
		}
	}
}

// The manifest for krew has each platform once, with the address and the checksum of its archive.
func TestKrew(t *testing.T) {
	r := example(t)
	r.fakePrograms(t, "x")
	if err := r.krew(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.dir, "krew.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector    struct{ MatchLabels map[string]string }
				URI, SHA256 string
			}
		}
	}
	if err := yaml.Unmarshal(text, &plugin); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range plugin.Spec.Platforms {
		file := filepath.Base(p.URI)
		s, err := sum(filepath.Join(r.dir, file))
		if err != nil || s != p.SHA256 || p.URI != "https://downloads.example/pelago/v0.9.0/"+file {
			t.Errorf("%+v: %s, %v", p, s, err)
		}
		got = append(got, p.Selector.MatchLabels["os"]+"/"+p.Selector.MatchLabels["arch"])
	}
	want := []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64", "windows/amd64", "windows/arm64"}
	if diff := cmp.Diff(want, got); diff != "" || plugin.Spec.Version != "v0.9.0" {
		t.Errorf("version %s, platforms -want +got:\n%s", plugin.Spec.Version, diff)
	}
}

// The script installs a program whose checksum is right, and nothing else.
func TestInstallScript(t *testing.T) {
	need.Root(t) // curl, sha256sum and tar
	r := example(t)
	r.fakePrograms(t, "installed")
	files := http.FileServer(http.Dir(r.dir))
	server := httptest.NewServer(http.StripPrefix("/mirror/v0.9.0", files))
	defer server.Close()
	r.url = server.URL + "/mirror"
	if err := errors.Join(r.script(t.Context(), ""), r.checksums()); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "bin")
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(r.dir, "install.sh"), "-d", to}, args...)...).CombinedOutput()
		return string(out), err
	}
	out, err := run()
	if err != nil || !strings.Contains(out, "installed "+to+"/pelago, v0.9.0") || !strings.Contains(out, to+" is not in PATH") {
		t.Fatalf("%v\n%s", err, out)
	}
	if text, err := exec.CommandContext(t.Context(), filepath.Join(to, "pelago")).Output(); err != nil || string(text) != "installed\n" {
		t.Errorf("the program prints %q, %v", text, err)
	}
	if out, err := run("-v", "v0.0.1"); err == nil || !strings.Contains(out, "is there a release v0.0.1?") {
		t.Errorf("another version: %v\n%s", err, out)
	}
	r.fakePrograms(t, "forged")
	if out, err := run(); err == nil || !strings.Contains(out, "is not the file of SHA256SUMS: nothing was installed") {
		t.Errorf("a forged archive: %v\n%s", err, out)
	}
	if text, err := exec.CommandContext(t.Context(), filepath.Join(to, "pelago")).Output(); err != nil || string(text) != "installed\n" {
		t.Errorf("after a forged archive the program prints %q, %v", text, err)
	}
}

// The SBOM has the modules of each program and the packages of each architecture once.
func TestSBOM(t *testing.T) {
	r := example(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	build := t.TempDir()
	for _, name := range []string{"linux-amd64/pelago", "linux-arm64/pelago-node", "debian-arm64/cache/archives/nftables_1%3a1.0.6-2_arm64.deb"} {
		file := filepath.Join(build, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, program, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.sbom(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.dir, "pelago-v0.9.0.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"purl": "pkg:deb/debian/nftables@1:1.0.6-2?arch=arm64"`, `"purl": "pkg:golang/sigs.k8s.io/yaml@v`,
		`"purl": "pkg:golang/stdlib@` + strings.TrimPrefix(runtime.Version(), "go") + `"`, `"timestamp": "2026-11-30T00:00:00Z"`} {
		if n := strings.Count(string(text), want); n != 1 {
			t.Errorf("%s stands there %d times, want once", want, n)
		}
	}
	if err := os.MkdirAll(filepath.Join(build, "man", "man1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(build, "man", "man1", "pelago-join.1"), []byte(".TH"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.sbom(t.Context(), build); err != nil {
		t.Errorf("beside manual pages: %v", err)
	}
	if err := os.WriteFile(filepath.Join(build, "linux-amd64", "pelago-dns"), []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.sbom(t.Context(), build); err == nil || !strings.Contains(err.Error(), "pelago-dns") {
		t.Errorf("a program without modules: %v", err)
	}
}

// The signature of the checksums is one of openssl and cosign; other keys are refused.
func TestSign(t *testing.T) {
	need.Root(t) // openssl
	r := example(t)
	r.fakePrograms(t, "x")
	if err := errors.Join(r.provenance(t.Context()), r.checksums()); err != nil {
		t.Fatal(err)
	}
	openssl := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
		return string(out), err
	}
	r.key = filepath.Join(t.TempDir(), "key")
	if out, err := openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", r.key); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := r.sign(); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(r.dir, name) }
	encoded, err := os.ReadFile(at("SHA256SUMS.sig"))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(encoded)))
	if err != nil {
		t.Fatal(err)
	}
	raw := filepath.Join(t.TempDir(), "signature")
	if err := os.WriteFile(raw, signature, 0o644); err != nil {
		t.Fatal(err)
	}
	verify := []string{"dgst", "-sha256", "-verify", at("pelago.pub"), "-signature", raw, at("SHA256SUMS")}
	if out, err := openssl(verify...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	sums, err := os.ReadFile(at("SHA256SUMS"))
	if err != nil || !strings.Contains(string(sums), "  provenance.json\n") {
		t.Errorf("the provenance is not signed: %v\n%s", err, sums)
	}
	if err := os.WriteFile(at("SHA256SUMS"), append(sums, "x"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := openssl(verify...); err == nil {
		t.Errorf("other checksums have the same signature: %s", out)
	}
	if out, err := openssl("genpkey", "-algorithm", "ED25519", "-out", r.key); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := r.sign(); err == nil || !strings.Contains(err.Error(), "it must be an ECDSA key") {
		t.Errorf("another kind of key: %v", err)
	}
	r.key = at("pelago.pub")
	if err := r.sign(); err == nil || !strings.Contains(err.Error(), "is no PEM of a PRIVATE KEY") {
		t.Errorf("a public key: %v", err)
	}
}

// TestRelease builds a release twice; make test-full runs it.
func TestRelease(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", strconv.FormatInt(at.Unix(), 10))
	var sums [2]string
	for i := range sums {
		r := example(t)
		r.image = "registry.example/pelago:v0.9.0"
		if err := r.build(t.Context()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(r.dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(text)
		if i == 0 {
			r.check(t)
		}
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
		t.Errorf("two builds of the same sources differ:\n%s", diff)
	}
}

// check: the files of a release, and the CLI for this machine, which carries the image's digest.
func (r *release) check(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{"RELEASE_NOTES.md", "SHA256SUMS", "crds.yaml", "install.sh", "krew.yaml", "operator.yaml", "pelago-image-v0.9.0.tar", "pelago-v0.9.0.cdx.json",
		"provenance.json"}
	for _, p := range platforms {
		want = append(want, r.archive(p))
	}
	for _, chart := range []string{"hub", "member", "operator", "push-member"} {
		want = append(want, "pelago-"+chart+"-0.9.0.oci.tar", "pelago-"+chart+"-0.9.0.tgz")
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files -want +got:\n%s", diff)
	}
	files := unpack(t, unzipped(t, filepath.Join(r.dir, r.archive(binaries.Platform{OS: runtime.GOOS, Arch: runtime.GOARCH}))))
	for _, name := range []string{"LICENSE", "completions/_pelago", "completions/pelago.bash", "man/man1/pelago-join.1"} {
		if len(files[name]) < 1000 {
			t.Errorf("%s has %d bytes", name, len(files[name]))
		}
	}
	cli := filepath.Join(t.TempDir(), "pelago")
	if err := os.WriteFile(cli, []byte(files["pelago"]), 0o755); err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), cli, "join", "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), r.pinned) || !strings.Contains(r.pinned, "pelago:v0.9.0@sha256:") {
		t.Errorf("join --help does not name the image %s: %v\n%s", r.pinned, err, help)
	}
}
