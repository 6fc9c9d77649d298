package tables_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

func TestDatapathOfPods(t *testing.T) {
	policy := func(namespace string, labels map[string]string) networkingv1.NetworkPolicy {
		return networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "deny"},
			Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: labels}},
		}
	}
	const oldKernel = "datapath hybrid, or fast under a policy: the kernel lacks the kfunc bpf_skb_ct_lookup (Linux 5.18, CONFIG_NF_CONNTRACK with BTF): " +
		"all packets pass the node's stack, as with strict"
	tests := map[string]struct {
		config, option, node, namespace string
		policies                        []networkingv1.NetworkPolicy
		others                          map[string]string
		old                             bool // the kernel
		want                            dataplane.Datapath
		problem                         string
	}{
		"nothing is set":                       {want: dataplane.Strict},
		"the cluster's configuration":          {config: "hybrid", want: dataplane.Hybrid},
		"the command line before it":           {config: "hybrid", option: "strict", want: dataplane.Strict},
		"the node's label before that":         {config: "hybrid", option: "strict", node: "fast", want: dataplane.Fast},
		"the namespace's label before all":     {node: "fast", namespace: "strict", want: dataplane.Strict},
		"an unknown name":                      {config: "hybrid", namespace: "slow", want: dataplane.Hybrid, problem: `namespace sample: label pelago.io/datapath: datapath "slow": use one of strict, hybrid, fast, auto`},
		"fast, selected by a policy":           {config: "fast", policies: []networkingv1.NetworkPolicy{policy("sample", map[string]string{"app": "web"})}, want: dataplane.Hybrid},
		"fast, selected by one for all pods":   {namespace: "fast", policies: []networkingv1.NetworkPolicy{policy("sample", nil)}, want: dataplane.Hybrid},
		"fast, a policy selects another pod":   {config: "fast", policies: []networkingv1.NetworkPolicy{policy("sample", map[string]string{"app": "db"})}, want: dataplane.Fast},
		"fast, a policy in another namespace":  {config: "fast", policies: []networkingv1.NetworkPolicy{policy("other", nil)}, want: dataplane.Fast},
		"hybrid stays hybrid under a policy":   {config: "hybrid", policies: []networkingv1.NetworkPolicy{policy("sample", nil)}, want: dataplane.Hybrid},
		"strict stays strict without a policy": {config: "strict", want: dataplane.Strict},
		"hybrid on an old kernel":              {namespace: "hybrid", old: true, want: dataplane.Hybrid, problem: oldKernel},
		"fast on an old kernel":                {config: "fast", old: true, want: dataplane.Fast},
		"fast under a policy there":            {config: "fast", old: true, policies: []networkingv1.NetworkPolicy{policy("sample", nil)}, want: dataplane.Hybrid, problem: oldKernel},
		"fast, a policy of another kind":       {config: "fast", others: map[string]string{"sample": "CiliumNetworkPolicy"}, want: dataplane.Hybrid},
		"fast, one for all namespaces":         {config: "fast", others: map[string]string{"": "AdminNetworkPolicy"}, want: dataplane.Hybrid},
		"fast, one of another namespace":       {config: "fast", others: map[string]string{"other": "CiliumNetworkPolicy"}, want: dataplane.Fast},
		"auto without policies":                {config: "auto", want: dataplane.Fast},
		"auto, selected by a policy":           {config: "auto", policies: []networkingv1.NetworkPolicy{policy("sample", nil)}, want: dataplane.Hybrid},
		"auto, a policy of another kind":       {option: "auto", others: map[string]string{"sample": "CiliumNetworkPolicy"}, want: dataplane.Hybrid},
		"auto, selected on an old kernel":      {node: "auto", old: true, policies: []networkingv1.NetworkPolicy{policy("sample", nil)}, want: dataplane.Strict},
		"auto without policies there":          {namespace: "auto", old: true, want: dataplane.Fast},
		"auto of the node, strict namespace":   {node: "auto", namespace: "strict", want: dataplane.Strict},
		"strict on an old kernel":              {config: "strict", old: true, want: dataplane.Strict},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objs, _ := clusterset.Globalnet("n2")
			objs.Config.Datapath, objs.Policies, objs.OtherPolicies = tt.config, tt.policies, tt.others
			objs.Pods[0].Labels = map[string]string{"app": "web"}
			if tt.node != "" {
				objs.Nodes[1].Labels[pelagov1alpha1.LabelDatapath] = tt.node
			}
			if tt.namespace != "" {
				objs.Datapaths = map[string]string{"sample": tt.namespace}
			}
			d := tables.Datapaths(objs, tt.option, !tt.old)
			if got := d.Of(&objs.Pods[0]); got != tt.want {
				t.Errorf("%s; want %s", got, tt.want)
			}
			if got := strings.Join(d.Problems, "; "); got != tt.problem {
				t.Errorf("problems %q; want %q", got, tt.problem)
			}
		})
	}
}

// The tables have the devices of pods as they were found.
func TestEndpointsInTables(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	want := map[netip.Addr]dataplane.Endpoint{ip("10.7.2.5"): {Ifindex: 3, Datapath: dataplane.Hybrid}}
	host.Endpoints, host.Datapath = want, "hybrid"
	r := tables.Desired(objs, host)
	if diff := cmp.Diff(want, r.State.Endpoints, clusterset.Comparable); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}
