package hub

import (
	"errors"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/deploy/spec"
)

// TestPlanRefusesVersions: a hub whose kube-apiserver or etcd is more than one minor version behind,
// or newer, is refused with the images to give as the remedy.
func TestPlanRefusesVersions(t *testing.T) {
	const api, etcd = "registry.k8s.io/kube-apiserver:", "registry.k8s.io/etcd:"
	for name, tt := range map[string]struct {
		have  map[string]string
		want  spec.Hub
		field string
		words []string
	}{
		"nothing runs":              {nil, spec.Hub{}, "", nil},
		"the same":                  {map[string]string{"etcd": etcd + "3.7.0-0", "kube-apiserver": api + "v1.37.0"}, spec.Hub{}, "", nil},
		"the minor before":          {map[string]string{"etcd": etcd + "3.6.4-0", "kube-apiserver": api + "v1.36.9"}, spec.Hub{}, "", nil},
		"a newer one":               {map[string]string{"kube-apiserver": api + "v1.39.0"}, spec.Hub{}, "spec.kubeAPIServerImage", []string{"is 1.39", "an image of 1.39", "pelago hub restore"}},
		"… with its image given":    {map[string]string{"kube-apiserver": api + "v1.39.0"}, spec.Hub{APIServerImage: api + "v1.39.1", ControllerManagerImage: "x"}, "", nil},
		"an etcd of 3.8":            {map[string]string{"etcd": etcd + "3.8.1-0"}, spec.Hub{}, "spec.etcdImage", []string{"is 3.8"}},
		"an image without version":  {map[string]string{"etcd": "localhost/kube:dev", "kube-apiserver": "localhost:5000/kube"}, spec.Hub{}, "", nil},
		"an API server of 1.34":     {map[string]string{"etcd": etcd + "3.6.4-0", "kube-apiserver": api + "v1.34.4"}, spec.Hub{}, "spec.kubeAPIServerImage", []string{"is 1.34", "such as " + api + "v1.35.0", "spec.kubeControllerManagerImage the same", "up to 1.37"}},
		"… by a digest, mirrored":   {map[string]string{"kube-apiserver": "mirror:5000/kube-apiserver:v1.34.4@sha256:00"}, spec.Hub{ImageRegistry: "mirror:5000"}, "spec.kubeAPIServerImage", []string{"mirror:5000/kube-apiserver:v1.35.0"}},
		"… with the next one given": {map[string]string{"kube-apiserver": api + "v1.34.4"}, spec.Hub{APIServerImage: api + "v1.35.0", ControllerManagerImage: "x"}, "", nil},
		"… with one after the next": {map[string]string{"kube-apiserver": api + "v1.34.4"}, spec.Hub{APIServerImage: api + "v1.36.0"}, "spec.kubeAPIServerImage", []string{"up to 1.36"}},
		"etcd of 3.5":               {map[string]string{"etcd": etcd + "3.5.26-0"}, spec.Hub{}, "spec.etcdImage", []string{"is 3.5", "an image of 3.6;"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := spec.DefaultHub()
			h.ImageRegistry, h.APIServerImage, h.ControllerManagerImage = tt.want.ImageRegistry, tt.want.APIServerImage, tt.want.ControllerManagerImage
			_, err := NewPlan(h, func(string) bool { return true }, Have{Images: tt.have})
			var of *spec.Error
			if tt.field == "" && err == nil {
				return
			}
			if !errors.As(err, &of) || of.Path != tt.field {
				t.Fatalf("error %v, want one about %q", err, tt.field)
			}
			for _, words := range tt.words {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%v: %q is missing", err, words)
				}
			}
		})
	}
}
