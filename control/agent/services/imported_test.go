package services

import (
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

var updateGolden = flag.Bool("update", false, "write testdata/imported.yaml")

// TestImported: the import of a service of two clusters and its slices, whole, as test/gatewayapi
// reads them: one of the clusters is dead, and the service has a ClusterSetIP.
func TestImported(t *testing.T) {
	s := sample(contribution("g2", "120.2.0.9", 1), contribution("g3", "120.3.0.9", 2))
	for i := range s.contributions {
		s.contributions[i].Spec.Ports = []v1alpha1.ContributionPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
		s.hubSlices[i].Ports = []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](80), Protocol: ptr.To(corev1.ProtocolTCP)}}
		s.hubSlices[i].Endpoints[0].Conditions.Ready = ptr.To(true)
	}
	s.dead = []string{"g3"}
	s.contributions[0].Spec.ClusterSetIP = "243.0.0.9"
	s.vips = vips{joined: joined, ranges: map[string][]netip.Prefix{"g2": {netip.MustParsePrefix("243.0.0.0/24")}}}
	r := g1.desired(s)
	r.imported.APIVersion, r.imported.Kind = "multicluster.x-k8s.io/v1beta1", "ServiceImport"
	r.imported.Status.Conditions = nil // with times
	objects := []any{r.imported}
	for _, slice := range r.slices {
		slice.APIVersion, slice.Kind = "discovery.k8s.io/v1", "EndpointSlice"
		objects = append(objects, slice)
	}
	var texts []string
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	got, file := strings.Join(texts, "---\n"), "testdata/imported.yaml"
	if *updateGolden {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("objects (-want +got), run with -update to write them:\n%s", diff)
	}
}
