package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// repository is where the sources are.
const repository = "https://github.com/pelago-net/pelago"

// sbom writes the Go modules of all programs and the Debian packages of the image as CycloneDX.
func (r *release) sbom(_ context.Context, build string) error {
	all := map[string]cdx.Component{} // by package URL (github.com/package-url/purl-spec)
	add := func(kind, name, version, qualifiers string) {
		purl := "pkg:" + kind + "/" + name + "@" + version + qualifiers
		all[purl] = cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: name, Version: version, PackageURL: purl}
	}
	programs, err := filepath.Glob(filepath.Join(build, "*", "pelago*"))
	if err != nil {
		return err
	}
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the modules of %s: %w", filepath.Base(file), err)
		}
		add("golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go"), "")
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add("golang", m.Path, m.Version, "")
		}
	}
	packages, err := filepath.Glob(filepath.Join(build, "debian-*", "cache", "archives", "*.deb"))
	if err != nil {
		return err
	}
	for _, file := range packages {
		parts := strings.Split(strings.TrimSuffix(filepath.Base(file), ".deb"), "_") // name, version, architecture
		if len(parts) != 3 {
			return fmt.Errorf("package %s is not NAME_VERSION_ARCHITECTURE.deb", filepath.Base(file))
		}
		add("deb", "debian/"+parts[0], strings.ReplaceAll(parts[1], "%3a", ":"), "?arch="+parts[2])
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.time.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "pelago", Name: "pelago", Version: r.version}}
	components := []cdx.Component{}
	for _, purl := range slices.Sorted(maps.Keys(all)) {
		components = append(components, all[purl])
	}
	bom.Components = &components
	f, err := os.Create(filepath.Join(r.dir, "pelago-"+r.version+".cdx.json"))
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom), f.Close())
}

// provenance writes what was built of which commit, as a SLSA provenance (slsa.dev/spec/v1.0).
func (r *release) provenance(ctx context.Context) error {
	commit, err := exec.CommandContext(ctx, "git", "-C", r.root, "rev-parse", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("read the commit for the provenance: %w (build a release in a clone)", err)
	}
	files, err := r.files()
	if err != nil {
		return err
	}
	var subjects []any
	for _, file := range files {
		s, err := sum(file)
		if err != nil {
			return err
		}
		subjects = append(subjects, map[string]any{"name": filepath.Base(file), "digest": map[string]string{"sha256": s}})
	}
	text, err := json.MarshalIndent(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          repository + "/tree/main/test/release",
				"externalParameters": map[string]string{"version": r.version, "image": r.image, "url": r.url},
				"resolvedDependencies": []any{map[string]any{"uri": "git+" + repository,
					"digest": map[string]string{"gitCommit": strings.TrimSpace(string(commit))}}},
			},
			"runDetails": map[string]any{"builder": map[string]string{"id": repository + "/tree/main/test/release"}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "provenance.json"), append(text, '\n'), 0o644)
}

// sign writes SHA256SUMS.sig, the signature of SHA256SUMS as `cosign verify-blob` and openssl check
// it, and pelago.pub, the public key; without a key nothing.
func (r *release) sign() error {
	if r.key == "" {
		return nil
	}
	text, err := os.ReadFile(r.key)
	if err != nil {
		return fmt.Errorf("read the signing key: %w", err)
	}
	block, _ := pem.Decode(text) // the rest is not used
	if block == nil || block.Type != "PRIVATE KEY" {
		return fmt.Errorf("signing key %s is no PEM of a PRIVATE KEY (PKCS #8, without a password): openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out FILE", r.key)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("read the signing key: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("signing key %s is a %T: it must be an ECDSA key", r.key, parsed)
	}
	sums, err := os.ReadFile(filepath.Join(r.dir, "SHA256SUMS"))
	if err != nil {
		return err
	}
	digest := sha256.Sum256(sums)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	if err != nil {
		return fmt.Errorf("sign SHA256SUMS: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("write the public key: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.dir, "SHA256SUMS.sig"), []byte(base64.StdEncoding.EncodeToString(signature)+"\n"), 0o644),
		os.WriteFile(filepath.Join(r.dir, "pelago.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644))
}
