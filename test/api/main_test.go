// Package api_test submits manifests to a real API server: which it accepts, whole, which
// it refuses, and why.
package api_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "github.com/pelago-net/pelago/api/apps/v1alpha1"
	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	remedyv1alpha1 "github.com/pelago-net/pelago/api/remedy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/apiserver"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// connect gives a test the shared server, with all kinds of the karmada.io groups.
func connect(t *testing.T) *apiserver.Cluster {
	t.Helper()
	return apiserver.Connect(t, server.Config(t), kinds...)
}

var kinds = []func(*runtime.Scheme) error{
	clusterv1alpha1.AddToScheme, pelagov1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme, configv1alpha1.AddToScheme,
	appsv1alpha1.AddToScheme, autoscalingv1alpha1.AddToScheme, networkingv1alpha1.AddToScheme, remedyv1alpha1.AddToScheme, searchv1alpha1.AddToScheme,
}

// manifests reads the objects of all files that match; each pattern must match some.
func manifests(t *testing.T, patterns ...string) []*unstructured.Unstructured {
	t.Helper()
	var files []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no manifests %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
		for {
			document := make([]byte, len(text))
			n, err := documents.Read(document)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			objects = append(objects, object(t, document[:n]))
		}
	}
	return objects
}

// object reads one manifest; whole numbers stay whole.
func object(t *testing.T, text []byte) *unstructured.Unstructured {
	t.Helper()
	encoded, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	u := new(unstructured.Unstructured)
	if err := u.UnmarshalJSON(encoded); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return u
}
