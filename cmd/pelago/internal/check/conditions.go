package check

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// rule makes findings of a condition that the product writes.
type rule struct {
	code string
	// of are the objects.
	of func(*Cluster) []conditioned
	// condition is its type; status the one that is a problem.
	condition string
	status    metav1.ConditionStatus
	// reason restricts the rule to one reason; empty: all that no rule of the same check and
	// condition names.
	reason  string
	verdict Verdict
	// remedy is that of the reason; empty: that of the check.
	remedy string
}

// rules are all of them. A message of the product names object, cause and often the remedy.
var rules = []rule{
	{code: "PLG-N016", of: indexes, condition: pelagov1alpha1.NodeSettings, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-N020", of: indexes, condition: pelagov1alpha1.NodeSelfTest, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N020", of: indexes, condition: pelagov1alpha1.NodeSelfTest, status: metav1.ConditionUnknown, verdict: Warning,
		remedy: "allow the egress of pods to other clusters in NetworkPolicies, or remove the program or firewall that drops it"},
	{code: "PLG-N021", of: indexes, condition: pelagov1alpha1.NodeHost, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N022", of: indexes, condition: pelagov1alpha1.NodeFirewall, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N022", of: indexes, condition: pelagov1alpha1.NodeFirewall, status: metav1.ConditionFalse, verdict: Warning,
		reason: pelagov1alpha1.ReasonFirewallRulesMissing, remedy: "see whether nftables or iptables of the node can be changed by pelago-node"},
	{code: "PLG-N023", of: indexes, condition: pelagov1alpha1.NodeXDP, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-N006", of: indexes, condition: pelagov1alpha1.NodeReconciled, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Error,
		reason: pelagov1alpha1.ReasonOverlappingCIDR, remedy: "give one of the clusters other ranges, or use globalnet: a clusterset of `pelago deploy-broker --globalnet`"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Error,
		reason: pelagov1alpha1.ReasonWireMismatch, remedy: "join one of the clusters again with --cable-driver of the other"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Error,
		reason: pelagov1alpha1.ReasonGlobalnetMismatch, remedy: "unjoin the cluster without GlobalCIDR and join it to the clusterset with globalnet"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Warning,
		reason: pelagov1alpha1.ReasonUnapproved, remedy: "`pelago clusters accept NAME` at the hub, or `pelago unjoin` there"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Warning,
		reason: pelagov1alpha1.ReasonAwaitingGateway, remedy: "label a node of that cluster submariner.io/gateway=true, and see whether pelago-node runs there"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionFalse, verdict: Error,
		reason: pelagov1alpha1.ReasonNoGateway, remedy: "label a node of that cluster submariner.io/gateway=true, and see whether pelago-node runs there"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionTrue, verdict: Warning,
		reason: pelagov1alpha1.ReasonRangeLeftOut, remedy: "give that cluster a range that no other one has"},
	{code: "PLG-N030", of: peers, condition: pelagov1alpha1.PeerAccepted, status: metav1.ConditionTrue, verdict: Warning,
		reason: pelagov1alpha1.ReasonNoGateway, remedy: "label a node of that cluster submariner.io/gateway=true, and see whether pelago-node runs there"},
	{code: "PLG-N031", of: indexes, condition: pelagov1alpha1.NodeRanges, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N031", of: own, condition: submarinerv1.ClusterRangesRegistered, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-N034", of: egress, condition: submarinerv1.ConditionAllocated, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-N034", of: egress, condition: submarinerv1.ConditionPortBlocksExhausted, status: metav1.ConditionTrue, verdict: Error,
		remedy: "raise numberOfIPs of the object; `pelago nat list` shows which pods have many connections"},
	{code: "PLG-N034", of: egress, condition: submarinerv1.ConditionConflict, status: metav1.ConditionTrue, verdict: Warning,
		remedy: "let the selectors of the two objects not overlap"},
	{code: "PLG-N034", of: egress, condition: submarinerv1.ConditionNATBehavior, status: metav1.ConditionFalse, verdict: Warning,
		remedy: "correct annotations pelago.io/nat-mapping and pelago.io/nat-filtering"},

	{code: "PLG-D002", of: exports, condition: string(mcs.ServiceExportConditionValid), status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-D002", of: exports, condition: string(mcs.ServiceExportConditionValid), status: metav1.ConditionFalse, verdict: Error,
		reason: string(mcs.ServiceExportReasonNoService), remedy: "create the Service, or remove the export with `pelago unexport service`"},
	{code: "PLG-D002", of: exports, condition: string(mcs.ServiceExportConditionValid), status: metav1.ConditionTrue, verdict: Warning,
		reason: "IgnoredAnnotation", remedy: "correct the annotation of the ServiceExport that the message names"},
	{code: "PLG-D003", of: validExports, condition: string(mcs.ServiceExportConditionReady), status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-D004", of: exports, condition: string(mcs.ServiceExportConditionConflict), status: metav1.ConditionTrue, verdict: Warning},
	{code: "PLG-D005", of: exports, condition: pelagov1alpha1.ConditionClusterSetIP, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-D005", of: exports, condition: pelagov1alpha1.ConditionClusterSetIP, status: metav1.ConditionFalse, verdict: Error,
		reason: pelagov1alpha1.ReasonExhausted},
	{code: "PLG-D007", of: imports, condition: string(mcs.ServiceImportConditionReady), status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-D009", of: func(c *Cluster) []conditioned { return c.Ingress }, condition: submarinerv1.ConditionAllocated, status: metav1.ConditionFalse, verdict: Error},

	{code: "PLG-H006", of: workloads, condition: clusterv1alpha1.ConditionReady, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-H006", of: workloads, condition: clusterv1alpha1.ConditionReady, status: metav1.ConditionUnknown, verdict: Error},
	{code: "PLG-H006", of: workloads, condition: clusterv1alpha1.ConditionReady, status: metav1.ConditionFalse, verdict: Error,
		reason: clusterv1alpha1.ReasonClusterIDTaken, remedy: "unjoin one of the two Clusters: both are the same cluster"},
	{code: "PLG-H006", of: workloads, condition: clusterv1alpha1.ConditionReady, status: metav1.ConditionFalse, verdict: Error,
		reason: clusterv1alpha1.ReasonClusterIDMismatch, remedy: "correct spec.apiEndpoint of the Cluster: another cluster answers there"},
	{code: "PLG-H007", of: workloads, condition: clusterv1alpha1.ConditionDataPlaneReachable, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-H008", of: workloads, condition: clusterv1alpha1.ConditionRemoved, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-H009", of: workloads, condition: clusterv1alpha1.ConditionCompleteAPIEnablements, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-H020", of: works, condition: workv1alpha1.ConditionApplied, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-H021", of: works, condition: workv1alpha1.ConditionFieldsDropped, status: metav1.ConditionTrue, verdict: Warning},
	{code: "PLG-H021", of: works, condition: workv1alpha1.ConditionInterpreted, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-H022", of: bindings, condition: workv1alpha2.ConditionScheduled, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-H022", of: bindings, condition: workv1alpha2.ConditionScheduled, status: metav1.ConditionFalse, verdict: Error,
		reason: workv1alpha2.ReasonQuotaExceeded, remedy: "raise spec.overall of the FederatedResourceQuota of the namespace, or ask for less"},
	{code: "PLG-H022", of: bindings, condition: workv1alpha2.ConditionScheduled, status: metav1.ConditionFalse, verdict: Error,
		reason: workv1alpha2.ReasonUnschedulable, remedy: "make room in the clusters that pass, or let the placement select others"},
	{code: "PLG-H023", of: bindings, condition: workv1alpha2.ConditionFullyApplied, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-H024", of: bindings, condition: workv1alpha2.ConditionFailover, status: metav1.ConditionFalse, verdict: Warning},
	{code: "PLG-H025", of: quotaObjects, condition: policyv1alpha1.ConditionAccepted, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-H026", of: policies, condition: policyv1alpha1.ConditionAccepted, status: metav1.ConditionFalse, verdict: Error},
	{code: "PLG-H027", of: func(c *Cluster) []conditioned { return c.Overrides }, condition: policyv1alpha1.ConditionRulesSkipped, status: metav1.ConditionTrue, verdict: Warning},
}

// byRules adds the findings of the rules of the check.
func byRules(c *Cluster, r *report) {
	for _, rl := range rules {
		if rl.code != r.check.Code {
			continue
		}
		for _, o := range rl.of(c) {
			is := meta.FindStatusCondition(o.conditions, rl.condition)
			if is == nil || is.Status != rl.status || !rl.takes(is.Reason) {
				continue
			}
			r.add(rl.verdict, o.object, rl.remedy, "%s", cmp.Or(is.Message, is.Type+" is "+string(is.Status)+": "+is.Reason))
		}
	}
}

// takes reports whether the rule is the one for the reason.
func (rl rule) takes(reason string) bool {
	if rl.reason != "" {
		return rl.reason == reason
	}
	return !slices.ContainsFunc(rules, func(o rule) bool {
		return o.code == rl.code && o.condition == rl.condition && o.status == rl.status && o.reason == reason && reason != ""
	})
}

func indexes(c *Cluster) (out []conditioned) {
	for _, n := range c.Indexes {
		out = append(out, conditioned{"NodeIndex " + n.Name, n.Status.Conditions})
	}
	return out
}

func peers(c *Cluster) (out []conditioned) {
	for _, p := range c.Peers {
		out = append(out, conditioned{"Peer " + p.Name, p.Status.Conditions})
	}
	return out
}

func own(c *Cluster) (out []conditioned) {
	for _, o := range c.Own {
		out = append(out, conditioned{"Cluster " + o.Namespace + "/" + o.Name, o.Status.Conditions})
	}
	return out
}

func egress(c *Cluster) []conditioned { return c.Egress }

func exports(c *Cluster) (out []conditioned) {
	for _, e := range c.Exports {
		out = append(out, conditioned{"ServiceExport " + e.Namespace + "/" + e.Name, e.Status.Conditions})
	}
	return out
}

// validExports are those that condition Valid does not explain.
func validExports(c *Cluster) []conditioned {
	return slices.DeleteFunc(exports(c), func(o conditioned) bool {
		return meta.IsStatusConditionFalse(o.conditions, string(mcs.ServiceExportConditionValid))
	})
}

func imports(c *Cluster) (out []conditioned) {
	for _, i := range c.Imports {
		out = append(out, conditioned{"ServiceImport " + i.Namespace + "/" + i.Name, i.Status.Conditions})
	}
	return out
}

func workloads(c *Cluster) (out []conditioned) {
	for _, w := range c.Workloads {
		out = append(out, conditioned{"Cluster " + w.Name, w.Status.Conditions})
	}
	return out
}

func works(c *Cluster) (out []conditioned) {
	for _, w := range c.Works {
		out = append(out, conditioned{"Work " + w.Namespace + "/" + w.Name, w.Status.Conditions})
	}
	return out
}

func bindings(c *Cluster) (out []conditioned) {
	for _, b := range c.Bindings {
		out = append(out, b.conditioned)
	}
	return out
}

func policies(c *Cluster) (out []conditioned) {
	for _, p := range c.Policies {
		out = append(out, p.conditioned)
	}
	return append(out, c.Overrides...)
}

func quotaObjects(c *Cluster) (out []conditioned) {
	for _, q := range c.Quotas {
		out = append(out, conditioned{"FederatedResourceQuota " + q.Namespace + "/" + q.Name, q.Status.Conditions})
	}
	return out
}
