package services

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Successful writes of exports and imports are counted under Lighthouse's names and labels.
func TestWritesAreCounted(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := mcs.Install(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := newCounted(fake.NewClientBuilder().WithScheme(scheme).Build(), "submariner_service_import", "Writes of imported services.", "none", "Remote ServiceImport")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		obj := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: name}}
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		if err := c.Create(t.Context(), obj.DeepCopy()); err == nil {
			t.Error("it was created twice")
		}
	}
	obj := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "a"}}
	if err := c.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	want := `# HELP submariner_service_import Writes of imported services.
# TYPE submariner_service_import gauge
submariner_service_import{direction="none",operation="create",syncer_name="Remote ServiceImport"} 2
submariner_service_import{direction="none",operation="delete",syncer_name="Remote ServiceImport"} 1
`
	if err := testutil.GatherAndCompare(metrics.Registry, strings.NewReader(want), "submariner_service_import"); err != nil {
		t.Error(err)
	}
}
