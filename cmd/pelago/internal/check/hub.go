package check

import (
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/deploy/manifests"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// serviceExists reports whether the agent has found the Service of an export.
func serviceExists(e *mcs.ServiceExport) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, string(mcs.ServiceExportConditionValid))
}

// Propagates reports whether the hub propagates workloads, by its definitions.
func (c *Cluster) Propagates() bool { return c.defines("clusters.cluster.karmada.io") }

func (c *Cluster) defines(name string) bool {
	return slices.ContainsFunc(c.CRDs, func(d apiextensionsv1.CustomResourceDefinition) bool { return d.Name == name })
}

func readyz(_ *Set, c *Cluster, r *report) {
	for _, name := range c.Ready {
		r.fail("/readyz", "check %s fails", name)
	}
}

func hubLease(s *Set, c *Cluster, r *report) {
	if c.Propagates() {
		leads(s, c, r, manifests.HubName)
	}
}

func admission(_ *Set, c *Cluster, r *report) {
	var want []string
	if c.Broker {
		objs, err := hubObjects()
		if err != nil {
			r.add(Unknown, "", "", "read the manifests of this program: %v", err)
			return
		}
		for _, o := range objs {
			if o.GetKind() == "ValidatingAdmissionPolicy" {
				want = append(want, o.GetName())
			}
		}
	}
	if c.Propagates() {
		objs, err := propagationObjects()
		if err != nil {
			r.add(Unknown, "", "", "read the manifests of this program: %v", err)
			return
		}
		for _, o := range objs {
			if o.GetKind() == "ValidatingAdmissionPolicy" {
				want = append(want, o.GetName())
			}
		}
	}
	for _, name := range want {
		if !slices.Contains(c.Admission, name) {
			r.fail("ValidatingAdmissionPolicy "+name, "it is not installed, or no binding puts it into effect")
		}
	}
}

func refusals(_ *Set, c *Cluster, r *report) {
	var untried []string
	for _, policy := range sortedKeys(c.Unrefused) {
		switch {
		case !slices.Contains(c.Admission, policy): // PLG-H003 reports it
		case c.Unrefused[policy] != nil:
			untried = append(untried, policy)
		default:
			r.fail("ValidatingAdmissionPolicy "+policy, "a request that it forbids is accepted")
		}
	}
	if len(untried) > 0 { // one finding: a user without the rights has none for all of them
		r.add(Unknown, "ValidatingAdmissionPolicy "+untried[0], "use a context that may create the objects that the policies match",
			"whether it and %d other policies refuse is not known: %v", len(untried)-1, c.Unrefused[untried[0]])
	}
}

// quotaOfStore is the quota of etcd in a hub of `pelago init`, in bytes.
const quotaOfStore = 8 << 30

func stored(_ *Set, c *Cluster, r *report) {
	if percent := c.Stored * 100 / quotaOfStore; percent >= poolNearEnd {
		r.warn("etcd", "it stores %.1f GiB; its quota in a hub of `pelago init` is %d GiB, beyond which it accepts no writes", c.Stored/(1<<30), quotaOfStore>>30)
	}
}

func servesAdmission(_ *Set, c *Cluster, r *report) {
	if !c.Before.Admission {
		r.fail("", "the API server does not serve ValidatingAdmissionPolicies of admissionregistration.k8s.io/v1")
	}
}

func hubDefinitions(_ *Set, c *Cluster, r *report) {
	if c.Broker {
		want, err := hubCRDs()
		definitions(c, r, want, err)
	}
	if c.Propagates() {
		want, err := propagationCRDs()
		definitions(c, r, want, err)
	}
}

func unaccepted(_ *Set, c *Cluster, r *report) {
	lacks := map[string]string{}
	for i := range c.Workloads {
		if w := &c.Workloads[i]; !w.Accepted() {
			lacks[w.Name] = "gets no workloads"
		}
	}
	for i := range c.Registered {
		if n := &c.Registered[i]; waits(n) {
			lacks[n.Name] = strings.TrimSuffix("is not connected; "+lacks[n.Name], "; ")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lacks)) {
		r.add(Warning, "Cluster "+name, "`pelago clusters accept "+name+"`, or `pelago unjoin --clusterid "+name+"`",
			"no administrator has accepted the cluster: it %s", lacks[name])
	}
}

// waits reports whether an administrator of the hub has to accept a cluster for the network.
func waits(c *submarinerv1.Cluster) bool {
	return c.Annotations[pelagov1alpha1.AnnotationUnapproved] == "true" && c.Annotations[pelagov1alpha1.AnnotationWorkloadsOnly] != "true"
}

func following(_ *Set, c *Cluster, r *report) {
	for _, f := range c.Following {
		r.warn("Cluster "+f.ClusterID, "%s", strings.TrimPrefix(f.String(), f.ClusterID+": "))
	}
}

func unscheduled(s *Set, c *Cluster, r *report) {
	for _, b := range c.Bindings {
		if b.policy != "" && meta.FindStatusCondition(b.conditions, workv1alpha2.ConditionScheduled) == nil && c.now(s).Sub(b.created) > settle {
			r.add(Warning, b.object, "see PLG-H002; a binding with another spec.schedulerName waits for that scheduler",
				"no decision for %s", c.now(s).Sub(b.created).Round(time.Second))
		}
	}
	byRules(c, r)
}

func quotas(_ *Set, c *Cluster, r *report) {
	for _, q := range c.Quotas {
		for _, name := range sortedQuantities(q.Status.OverallUsed) {
			most, used := q.Spec.Overall[name], q.Status.OverallUsed[name]
			if most.IsZero() {
				continue
			}
			switch part := used.AsApproximateFloat64() / most.AsApproximateFloat64() * 100; {
			case part > 100:
				r.fail("FederatedResourceQuota "+q.Namespace+"/"+q.Name, "%s of %s %s are in use", used.String(), most.String(), name)
			case part >= quotaNearEnd:
				r.warn("FederatedResourceQuota "+q.Namespace+"/"+q.Name, "%s of %s %s are in use", used.String(), most.String(), name)
			}
		}
	}
	byRules(c, r)
}

func sortedQuantities[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func idlePolicies(s *Set, c *Cluster, r *report) {
	for _, p := range c.Policies {
		bound := slices.ContainsFunc(c.Bindings, func(b binding) bool { return b.policy == p.id && p.id != "" })
		refused := meta.IsStatusConditionFalse(p.conditions, policyv1alpha1.ConditionAccepted)
		if !bound && !refused && c.now(s).Sub(p.created) > settle {
			r.warn(p.object, "no binding belongs to the policy: it has no effect")
		}
	}
}
