package kinds

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Rules for kinds of other projects, as users write theirs. The comment above each says what of it is not a matter of course.
//
//go:embed bundled/*.yaml
var bundledFiles embed.FS

// bundled are the rules of bundledFiles by kind, each compiled when it is first asked for.
var bundled = sync.OnceValue(func() map[schema.GroupVersionKind]func() Kind {
	all, err := readBundled()
	if err != nil {
		panic(fmt.Sprintf("read the rules that are built in: %v", err)) // a test reads them
	}
	out := map[schema.GroupVersionKind]func() Kind{}
	for _, r := range all {
		kind := sync.OnceValue(func() Kind {
			k, _ := compileRules("the rules that are built in", r.Spec.Rules) // what does not compile fails when asked; a test compiles all
			return k
		})
		for _, k := range r.Spec.Kinds {
			out[schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)] = kind
		}
	}
	return out
})

// thirdParty is the source of the bundled rules.
func thirdParty(gvk schema.GroupVersionKind) Kind {
	if kind := bundled()[gvk]; kind != nil {
		return kind()
	}
	return Kind{}
}

func readBundled() ([]pelagov1alpha1.KindRules, error) {
	files, err := fs.Glob(bundledFiles, "bundled/*.yaml")
	if err != nil {
		return nil, err
	}
	var out []pelagov1alpha1.KindRules
	for _, name := range files {
		text, err := bundledFiles.ReadFile(name)
		if err != nil {
			return nil, err
		}
		some, err := decodeRules(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, some...)
	}
	return out, nil
}

// decodeRules reads KindRules out of a file of several documents. A field that they have not is an error.
func decodeRules(text []byte) ([]pelagov1alpha1.KindRules, error) {
	var out []pelagov1alpha1.KindRules
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer func() { _ = documents.Close() }() // of bytes
	buffer := make([]byte, len(text)+1)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(buffer[:n])) == 0 {
			continue
		}
		var r pelagov1alpha1.KindRules
		if err := yaml.UnmarshalStrict(buffer[:n], &r); err != nil {
			return nil, err
		}
		if r.Kind == "" {
			continue // comments only
		}
		out = append(out, r)
	}
}
