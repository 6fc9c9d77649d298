package hubclient

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// offered is the i-th contribution of a member, with annotations of so many bytes.
func offered(cluster string, i, bytes int) *v1alpha1.ServiceContribution {
	return &v1alpha1.ServiceContribution{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint(cluster, ".", i), UID: types.UID(fmt.Sprint(cluster, i)), Labels: map[string]string{submarinerv1.LabelClusterID: cluster},
			Annotations: map[string]string{"note": strings.Repeat("x", bytes)},
		},
		Spec: v1alpha1.ServiceContributionSpec{Cluster: cluster, Service: fmt.Sprint("web", i)},
	}
}

// pass is what the cache keeps of an object.
func pass(t *testing.T, s *shares, o client.Object) client.Object {
	t.Helper()
	for range 2 { // informers transform an object more than once
		kept, err := s.transform(o)
		if err != nil {
			t.Fatal(err)
		}
		o = kept.(client.Object)
	}
	return o
}

// Of a member that floods the hub an agent keeps a share, whatever the size of its objects; others
// and the own cluster lose nothing.
func TestAMemberFillsItsShareOnly(t *testing.T) {
	for name, bytes := range map[string]int{"many small": 10, "400 of 250 KiB": 250 << 10} {
		t.Run(name, func(t *testing.T) {
			s := newShares("own")
			n := 400
			if bytes < 1000 {
				n = config.MaxMemberObjects + 100
			}
			kept, size := 0, 0
			for i := range n {
				o := pass(t, s, offered("evil", i, bytes))
				if text, err := json.Marshal(o); err != nil {
					t.Fatal(err)
				} else if size += len(text); !leftOut(o) {
					kept++
				}
			}
			if left := n - kept; left < 100 || testutil.ToFloat64(s.left.WithLabelValues("evil", "servicecontributions")) != float64(left) {
				t.Errorf("%d of %d are left out; the metric has %g", left, n, testutil.ToFloat64(s.left.WithLabelValues("evil", "servicecontributions")))
			}
			if limit := 33 << 20; size > limit {
				t.Errorf("%d bytes are kept, more than %d", size, limit)
			}
			for _, o := range []client.Object{offered("good", 1, bytes), offered("own", 1, bytes)} {
				if leftOut(pass(t, s, o)) {
					t.Errorf("%s is left out", o.GetName())
				}
			}
		})
	}
}

// Room that deleted and replaced objects leave is used again, and the marker of the cache has an
// effect on its writer's objects only.
func TestShareIsFreed(t *testing.T) {
	s := newShares("own")
	endpoint := func(i int, uid string) *submarinerv1.Endpoint {
		return &submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("g2-", i), UID: types.UID(uid),
			Labels: map[string]string{submarinerv1.LabelClusterID: "g2"}}, Spec: submarinerv1.EndpointSpec{ClusterID: "g2"}}
	}
	first := pass(t, s, endpoint(0, "0"))
	for i := range config.MaxMemberEndpoints - 1 {
		pass(t, s, endpoint(i+1, fmt.Sprint(i+1)))
	}
	last := endpoint(99, "99")
	refused := pass(t, s, last.DeepCopy())
	if !leftOut(refused) || refused.(*submarinerv1.Endpoint).Spec.ClusterID != "" {
		t.Fatalf("an Endpoint more than the share is kept: %v", refused)
	}
	if leftOut(pass(t, s, first.DeepCopyObject().(client.Object))) {
		t.Error("an update of a kept object is left out")
	}
	s.handler().OnUpdate(first, endpoint(0, "0 anew"))
	if leftOut(pass(t, s, last.DeepCopy())) {
		t.Error("the room of a replaced object is not used")
	}
	if !leftOut(pass(t, s, endpoint(98, "98"))) {
		t.Error("the same room is used twice")
	}
	s.handler().OnDelete(toolscache.DeletedFinalStateUnknown{Obj: last})
	if leftOut(pass(t, s, endpoint(98, "98"))) {
		t.Error("the room of a deleted object is not used")
	}
	forged := offered("g3", 1, 1)
	forged.Annotations[annotationLeftOut] = "g2"
	if !leftOut(pass(t, s, forged)) || s.of[member{"g3", "servicecontributions"}] == nil {
		t.Error("an object with the marker counts as another member's")
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Labels: map[string]string{submarinerv1.LabelClusterID: "g3"}}}
	s.handler().OnDelete(pass(t, s, slice))
	if s.of[member{"g3", "endpointslices"}] != nil {
		t.Error("a member without objects is kept")
	}
}
