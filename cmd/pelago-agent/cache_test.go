package main

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

func TestWhatIsKeptOfAPod(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "sample", Name: "web-0", UID: "u1", ResourceVersion: "7", Labels: map[string]string{"role": "web"},
			Annotations:     map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{…}"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "web"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", HostNetwork: true, ServiceAccountName: "web",
			Containers: []corev1.Container{{Name: "web", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}}}},
			Volumes:    []corev1.Volume{{Name: "token"}}, TerminationGracePeriodSeconds: ptr.To[int64](30),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.7.0.9", Conditions: []corev1.PodCondition{{Type: corev1.PodReady}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}},
		},
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web-0", UID: "u1", ResourceVersion: "7", Labels: map[string]string{"role": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", HostNetwork: true},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	got, err := stripPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	mark := toolscache.DeletedFinalStateUnknown{Key: "sample/web-0", Obj: want}
	if got, err := stripPod(mark); err != nil || !cmp.Equal(any(mark), got) {
		t.Errorf("the mark of a deletion became %v, %v", got, err)
	}
}

// testCache: of no kind the caches hold more than they have to.
func (s *clusterset) testCache(t *testing.T) {
	const ns, name = "cache", "web"
	namespace(t, ns, s.g1, s.g2)
	s.g2.service(t, ns, name, web)
	s.g2.export(t, ns, name)
	within(t, "imported", func() string {
		if view := s.g2.view(ns, name); !complete(view, "g2") {
			return fmt.Sprintf("%q", view)
		}
		return ""
	})
	here, hub := s.g2.running.manager.GetClient(), s.g2.running.hub.Client()
	for _, tt := range []struct {
		from client.Reader
		list client.ObjectList
	}{
		{here, &corev1.PodList{}}, {here, &corev1.ServiceList{}}, {here, &corev1.NodeList{}}, {here, &corev1.NamespaceList{}},
		{here, &corev1.ConfigMapList{}}, {here, &corev1.SecretList{}}, {here, &discoveryv1.EndpointSliceList{}},
		{here, &mcs.ServiceExportList{}}, {here, &mcs.ServiceImportList{}}, {here, &v1alpha1.NodeIndexList{}},
		{here, &v1alpha1.GlobalAddressList{}}, {here, &v1alpha1.PeerList{}}, {here, &submarinerv1.GlobalIngressIPList{}},
		{here, &submarinerv1.ClusterList{}}, {here, &submarinerv1.EndpointList{}},
		{hub, &submarinerv1.ClusterList{}}, {hub, &submarinerv1.EndpointList{}}, {hub, &v1alpha1.ServiceContributionList{}},
		{hub, &discoveryv1.EndpointSliceList{}},
	} {
		must(t, tt.from.List(t.Context(), tt.list))
		if meta.LenList(tt.list) == 0 {
			t.Errorf("the cache has no object for a %T", tt.list)
		}
		must(t, meta.EachListItem(tt.list, func(o runtime.Object) error {
			if obj := o.(client.Object); len(obj.GetManagedFields()) > 0 {
				t.Errorf("%T %s has managed fields", o, client.ObjectKeyFromObject(obj))
			}
			if p, ok := o.(*corev1.Pod); ok && (len(p.Spec.Containers) > 0 || p.Spec.NodeName == "") {
				t.Errorf("Pod %s is kept with %d containers, on node %q", p.Name, len(p.Spec.Containers), p.Spec.NodeName)
			}
			return nil
		}))
	}
}
