package kinds

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/pelago-net/pelago/control/kinds/filled"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// side is the hub or a member.
type side struct {
	objects dynamic.Interface
	mapper  meta.RESTMapper
	found   []*metav1.APIResourceList
}

func newSide(t *testing.T, config *rest.Config) *side {
	t.Helper()
	s := &side{}
	var err error
	if s.objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		t.Fatal(err)
	}
	s.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	if s.found, err = d.ServerPreferredResources(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) of(t *testing.T, u *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	m, err := s.mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
	if err != nil {
		t.Fatal(err)
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return s.objects.Resource(m.Resource)
	}
	return s.objects.Resource(m.Resource).Namespace(u.GetNamespace())
}

// create writes an object by create or by server-side apply and returns it as it is then.
func (s *side) create(t *testing.T, apply bool, u *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	var out *unstructured.Unstructured
	var err error
	if apply {
		out, err = s.of(t, u).Apply(t.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "user"})
	} else {
		out, err = s.of(t, u).Create(t.Context(), u, metav1.CreateOptions{FieldManager: "user"})
	}
	if err != nil {
		t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return out
}

func (s *side) remove(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	seconds := int64(0)
	if err := s.of(t, u).Delete(t.Context(), u.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &seconds}); err != nil {
		t.Fatal(err)
	}
	u = u.DeepCopy()
	await.True(t, "it has gone", func() bool {
		now, err := s.of(t, u).Get(context.Background(), u.GetName(), metav1.GetOptions{})
		if err == nil && len(now.GetFinalizers()) > 0 { // its controller does not run here
			_, err = s.of(t, u).Patch(context.Background(), u.GetName(), "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		return err != nil
	})
}

// content is an object without identity, and without the value of what was filled in at random.
func content(u *unstructured.Unstructured) map[string]any {
	out := u.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "name"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "status")
	for _, label := range []string{"kubernetes.io/metadata.name", "controller-uid", "batch.kubernetes.io/controller-uid"} {
		drop(out.Object, "metadata", "labels", label)
	}
	if _, aggregated := out.Object["aggregationRule"]; aggregated {
		delete(out.Object, "rules")
	}
	if u.GetKind() == "Job" {
		_ = pruneJob(out) // its error is that of a manifest
	}
	if u.GetKind() == "Service" {
		mask := func(m map[string]any, key string) {
			if v, there := m[key]; there && v != "None" && (v != int64(32123) || u.GetName() != "fixed") {
				m[key] = "by the API server"
			}
		}
		spec := out.Object["spec"].(map[string]any)
		mask(spec, "clusterIP")
		mask(spec, "healthCheckNodePort")
		if ips, _ := spec["clusterIPs"].([]any); len(ips) > 0 && ips[0] != "None" { // nil: it has none
			spec["clusterIPs"] = "by the API server"
		}
		ports, _ := spec["ports"].([]any) // nil: it has none
		for _, p := range ports {
			mask(p.(map[string]any), "nodePort")
		}
	}
	return out.Object
}

// uncreated are the kinds that users do not propagate, or that are not stored.
var uncreated = []string{"Binding", "ComponentStatus", "Event", "Node", "EndpointSlice", "Lease", "TokenReview", "SubjectAccessReview",
	"LocalSubjectAccessReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SelfSubjectReview", "CertificateSigningRequest",
	"ControllerRevision", "CSINode", "CSIStorageCapacity", "VolumeAttachment", "IPAddress", "ServiceCIDR", "VolumeAttributesClass",
	"PodCertificateRequest", "DeviceTaintRule", "StorageVersionMigration", "ClusterTrustBundle", "DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"}

// An object that a user creates at the hub is, in a member, equal to what it would be
// if the user had created it there: also where both have other defaults, ranges and controllers.
func TestAMemberGetsWhatTheUserWrote(t *testing.T) {
	hub := newSide(t, apiserver.Start(t, apiserver.HubControllers()))
	member := newSide(t, apiserver.Start(t, apiserver.ServiceCIDR("10.111.0.0/16"), apiserver.Controllers("clusterrole-aggregation-controller")))
	// What admission fills in differs.
	for s, is := range map[*side][2]string{hub: {"silver", "1000"}, member: {"gold", "2000"}} {
		for _, text := range []string{
			"{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: " + is[0] + ", annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}, provisioner: example.com/x}",
			"{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: " + is[0] + ", annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}, spec: {controller: example.com/x}}",
			"{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: urgent}, value: " + is[1] + "}",
			"{apiVersion: v1, kind: LimitRange, metadata: {name: limits, namespace: default}, spec: {limits: [{type: Container, defaultRequest: {cpu: " + is[1] + "m}}]}}",
			"{apiVersion: v1, kind: Namespace, metadata: {name: other}}",
		} {
			u := &unstructured.Unstructured{}
			decodeYAML(t, []byte(text), &u.Object)
			s.create(t, false, u)
		}
	}
	raw, err := os.ReadFile("testdata/api/core.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		manifest := &unstructured.Unstructured{}
		decodeYAML(t, text, &manifest.Object)
		shown = append(shown, manifest.GetKind())
		for _, apply := range []bool{false, true} {
			title := manifest.GetKind() + " " + manifest.GetName() + map[bool]string{false: " created", true: " applied"}[apply]
			if _, aggregated := manifest.Object["aggregationRule"]; apply && (aggregated || manifest.GetKind() == "Namespace") {
				continue // its controller keeps it
			}
			t.Run(title, func(t *testing.T) {
				template := hub.create(t, apply, manifest.DeepCopy())
				if _, aggregated := template.Object["aggregationRule"]; aggregated {
					await.True(t, "the hub adds up the rules", func() bool {
						template, err = hub.of(t, template).Get(t.Context(), template.GetName(), metav1.GetOptions{})
						return err == nil && template.Object["rules"] != nil
					})
				}
				cached := template.DeepCopy()
				filled.Reduce(cached)
				rendered := cached.DeepCopy()
				if err := New().Prune(rendered); err != nil {
					t.Fatal(err)
				}
				live := template.DeepCopy()
				if err := New().Prune(live); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(live, rendered); diff != "" {
					t.Errorf("the cache makes another object: -live +cached\n%s", diff)
				}
				if _, aggregated := template.Object["aggregationRule"]; aggregated && rendered.Object["rules"] != nil {
					t.Errorf("the hub's rules are sent: %v", rendered.Object["rules"])
				}
				got := member.create(t, true, rendered)
				_, keeps := manifest.Object["aggregationRule"] // its controller makes it again
				keeps = keeps || manifest.GetKind() == "Namespace"
				direct := manifest.DeepCopy()
				if keeps {
					direct.SetName("y")
				} else {
					member.remove(t, got)
				}
				want := member.create(t, apply, direct)
				if diff := cmp.Diff(content(want), content(got)); diff != "" {
					t.Errorf("-created in the member +rendered at the hub\n%s", diff)
				}
				if !keeps {
					member.remove(t, want)
					hub.remove(t, template)
				}
			})
		}
	}
	for _, list := range hub.found {
		for _, r := range list.APIResources {
			group := strings.Split(list.GroupVersion, "/")[0]
			if !strings.Contains(r.Name, "/") && !strings.Contains(group, "karmada") && group != "example.com" && !slices.Contains(uncreated, r.Kind) && !slices.Contains(shown, r.Kind) {
				t.Errorf("testdata/api/core.yaml lacks the kind %s of %s", r.Kind, list.GroupVersion)
			}
		}
	}
}
