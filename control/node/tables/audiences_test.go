package tables_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

// Which clusters may open flows to an exported service: "all", or those of g2 (prod, index 2) and
// g3 (test, index 3).
func TestAudiences(t *testing.T) {
	other := types.NamespacedName{Namespace: "sample", Name: "other"}
	type exports map[types.NamespacedName]string
	for name, tt := range map[string]struct {
		restricted exports
		open       []types.NamespacedName // exported to all
		service    string                 // the audience of service sample/web
		pod        string                 // and of pod web-1 of it, exported as a headless service
	}{
		"to all":                       {open: []types.NamespacedName{web}, service: "all", pod: "all"},
		"a cluster by name":            {restricted: exports{web: "g2"}, service: "g2", pod: "g2"},
		"clusters by labels":           {restricted: exports{web: "env in (test)"}, service: "g3", pod: "g3"},
		"two":                          {restricted: exports{web: "g2,g3"}, service: "g2 g3", pod: "g2 g3"},
		"one that is not known":        {restricted: exports{web: "g9"}},
		"an invalid value":             {restricted: exports{web: "g 2"}},
		"another service is":           {restricted: exports{other: "g9"}, open: []types.NamespacedName{web}, service: "all", pod: "all"},
		"two services of a pod":        {restricted: exports{web: "g2", other: "g3"}, service: "g2", pod: "g2 g3"},
		"the other is exported to all": {restricted: exports{web: "g2"}, open: []types.NamespacedName{other}, service: "g2", pod: "all"},
	} {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n2")
			clusterset.Export(&objs, metav1.ConditionTrue)
			objs.Slices[other] = objs.Slices[web]
			objs.IngressIPs = append(objs.IngressIPs, submarinerv1.GlobalIngressIP{
				ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "pod-web-1"},
				Spec: submarinerv1.GlobalIngressIPSpec{
					Target: submarinerv1.HeadlessServicePod, ServiceRef: &corev1.LocalObjectReference{Name: "web"}, PodRef: &corev1.LocalObjectReference{Name: "web-1"},
				},
				Status: submarinerv1.GlobalIngressIPStatus{AllocatedIP: "120.1.0.10"},
			})
			g3 := clusterset.Peer("g3", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)
			g3.Spec.ClusterIndex, g3.Spec.Subnets = 3, []string{"120.3.0.0/24"}
			objs.Peers = append(objs.Peers, g3)
			objs.Peers[0].Spec.Labels, objs.Peers[1].Spec.Labels = map[string]string{"env": "prod"}, map[string]string{"env": "test"}
			objs.Exports, objs.ExportTo = map[types.NamespacedName]bool{}, tt.restricted
			for name := range tt.restricted {
				objs.Exports[name] = true
			}
			for _, name := range tt.open {
				objs.Exports[name] = true
			}
			s := tables.Desired(objs, host).State
			audience := func(address string) string {
				set, ok := s.Audiences[ip(address)]
				if ok && !set.Has(objs.Config.ClusterIndex) {
					t.Errorf("%s is closed to its own cluster", address)
				}
				if restricted := s.Globals[ip(address)].Restricted; restricted != ok {
					t.Errorf("%s is restricted: %t, and has an audience: %t", address, restricted, ok)
				}
				switch {
				case !ok:
					return "all"
				case set.Has(2) && set.Has(3):
					return "g2 g3"
				case set.Has(2):
					return "g2"
				case set.Has(3):
					return "g3"
				}
				return ""
			}
			if got := audience("120.1.0.9"); got != tt.service {
				t.Errorf("the service is exported to %q, want %q", got, tt.service)
			}
			if got := audience("120.1.0.10"); got != tt.pod {
				t.Errorf("the pod is exported to %q, want %q", got, tt.pod)
			}
		})
	}
}

func TestAudienceWithoutGlobalnet(t *testing.T) {
	objs, host := clusterset.Flat("n2")
	objs.ExportTo = map[types.NamespacedName]string{web: "g9"}
	s := tables.Desired(objs, host).State
	if g := s.Globals[ip("10.77.0.9")]; !g.Restricted || s.Audiences[ip("10.77.0.9")].Has(2) {
		t.Errorf("the ClusterIP is open to g2: %+v", g)
	}
	if g := s.Globals[ip("10.7.2.5")]; g.Restricted {
		t.Errorf("the pod, which is routed in any case, is restricted: %+v", g)
	}
}
