package broker

import (
	"context"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy"
)

func endpoint(id, ip string, subnets ...string) *submarinerv1.Endpoint {
	cable := "submariner-cable-" + id + "-" + dashes(ip)
	return &submarinerv1.Endpoint{
		ObjectMeta: metav1.ObjectMeta{Name: id + "-" + cable, Namespace: deploy.BrokerNamespace,
			Labels: map[string]string{submarinerv1.LabelClusterID: id}},
		Spec: submarinerv1.EndpointSpec{ClusterID: id, CableName: cable, PrivateIP: ip, Backend: "vxlan", Subnets: subnets},
	}
}

func contribution(id, service string, ips ...string) *pelagov1alpha1.ServiceContribution {
	return &pelagov1alpha1.ServiceContribution{
		ObjectMeta: metav1.ObjectMeta{Name: id + ".sample." + service, Namespace: deploy.BrokerNamespace,
			Labels: map[string]string{submarinerv1.LabelClusterID: id}},
		Spec: pelagov1alpha1.ServiceContributionSpec{Cluster: id, Namespace: "sample", Service: service,
			Type: pelagov1alpha1.ContributionClusterSetIP, IPs: ips, ExportedAt: metav1.NewTime(time.Unix(1700000000, 0))},
	}
}

func slice(id, name string, addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: id + "." + name, Namespace: deploy.BrokerNamespace, Labels: map[string]string{
			submarinerv1.LabelClusterID: id, "multicluster.kubernetes.io/source-cluster": id,
			"service.kubernetes.io/service-proxy-name": "pelago",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
	}
}

func dashes(ip string) string {
	out := []byte(ip)
	for i := range out {
		if out[i] == '.' || out[i] == ':' {
			out[i] = '-'
		}
	}
	return string(out)
}

// settle waits until the policies know the Clusters that were just made: their caches follow the writes.
func settle(t *testing.T, member client.Client, obj client.Object) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		last = member.Create(ctx, obj.DeepCopyObject().(client.Object), client.DryRunAll)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("a member's own object is still refused: %v", last)
	}
}

func TestMemberWritesItsOwnObjectsOnly(t *testing.T) {
	h := openHub(t)
	ctx := context.Background()
	one, _ := h.join(t, "g1", "120.1.0.0/24")
	two, _ := h.join(t, "g2", "120.2.0.0/24")
	settle(t, one, endpoint("g1", "192.0.2.1", "120.1.0.0/24"))
	settle(t, two, endpoint("g2", "192.0.2.2", "120.2.0.0/24"))

	type pair struct{ own, other client.Object }
	for name, p := range map[string]pair{
		"Endpoint":            {endpoint("g1", "192.0.2.1", "120.1.0.0/24"), endpoint("g2", "192.0.2.2", "120.2.0.0/24")},
		"ServiceContribution": {contribution("g1", "web", "120.1.0.9"), contribution("g2", "web", "120.2.0.9")},
		"EndpointSlice":       {slice("g1", "web.abc", "120.1.0.9"), slice("g2", "web.abc", "120.2.0.9")},
	} {
		t.Run(name, func(t *testing.T) {
			if err := two.Create(ctx, p.other.DeepCopyObject().(client.Object)); err != nil {
				t.Fatalf("g2 creates its own: %v", err)
			}
			for verb, do := range map[string]func(client.Object) error{
				"create": func(o client.Object) error { o.SetResourceVersion(""); return one.Create(ctx, o) },
				"update": func(o client.Object) error {
					if err := one.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
						t.Fatalf("g1 reads %s: %v", o.GetName(), err)
					}
					o.SetAnnotations(map[string]string{"touched": "1"})
					return one.Update(ctx, o)
				},
				"patch": func(o client.Object) error {
					return one.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"touched":"2"}}}`)))
				},
				"relabel": func(o client.Object) error {
					return one.Patch(ctx, o, client.RawPatch("application/merge-patch+json",
						[]byte(`{"metadata":{"labels":{"submariner-io/clusterID":"g1","multicluster.kubernetes.io/source-cluster":"g1"}}}`)))
				},
				"delete": func(o client.Object) error { return one.Delete(ctx, o) },
				"delete collection": func(o client.Object) error {
					return one.DeleteAllOf(ctx, o, client.InNamespace(deploy.BrokerNamespace))
				},
			} {
				err := do(p.other.DeepCopyObject().(client.Object))
				if verb == "create" && apierrors.IsAlreadyExists(err) {
					t.Errorf("%s of g2's: the policies let it pass", verb)
				}
				if verb == "create" || verb == "update" || verb == "patch" || verb == "relabel" || verb == "delete" || verb == "delete collection" {
					if !apierrors.IsForbidden(err) {
						t.Errorf("%s of g2's by g1: %v, want 403", verb, err)
					}
				}
			}
			own := p.own.DeepCopyObject().(client.Object)
			if err := one.Create(ctx, own); err != nil {
				t.Errorf("g1 creates its own: %v", err)
			}
			own.SetAnnotations(map[string]string{"touched": "1"})
			if err := one.Update(ctx, own); err != nil {
				t.Errorf("g1 updates its own: %v", err)
			}
			if err := one.Delete(ctx, own); err != nil {
				t.Errorf("g1 deletes its own: %v", err)
			}
		})
	}
}
