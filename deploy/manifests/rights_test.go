package manifests

import (
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/await"
)

// authorized reports whether a user may "verb [namespace:]resource.group[/subresource][=name]".
func authorized(t *testing.T, c client.Client, user string, groups []string, question string) bool {
	t.Helper()
	verb, rest, _ := strings.Cut(question, " ")
	rest, object, _ := strings.Cut(rest, "=")
	namespace, resource, found := strings.Cut(rest, ":")
	if !found {
		namespace, resource = "", rest
	}
	resource, subresource, _ := strings.Cut(resource, "/")
	resource, group, _ := strings.Cut(resource, ".")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Namespace: namespace, Group: group, Resource: resource,
			Subresource: subresource, Name: object},
	}}
	if err := c.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// The rights of the components in a member, as the API server's authorizer sees them.
func TestRightsOfComponents(t *testing.T) {
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	c := open(t, cfg)
	may := func(account, question string) bool {
		t.Helper()
		return authorized(t, c, "system:serviceaccount:"+SystemNamespace+":"+account,
			[]string{"system:serviceaccounts", "system:serviceaccounts:" + SystemNamespace, "system:authenticated"}, question)
	}
	const sys, kube, user = SystemNamespace + ":", "kube-system:", "sample:"
	const secrets, es = "karmada-cluster:", "karmada-es-g1:"
	for account, tt := range map[string]struct{ allowed, refused []string }{
		"pelago-node": {
			allowed: []string{
				"watch nodes", "watch pods", "watch services", "watch endpointslices.discovery.k8s.io", "watch namespaces",
				"watch networkpolicies.networking.k8s.io", "watch serviceexports.multicluster.x-k8s.io", "watch nodeindices.pelago.io", "watch portblocks.pelago.io",
				"watch peers.pelago.io", "watch clusterglobalegressips.submariner.io", "watch globalingressips.submariner.io",
				"patch nodeindices.pelago.io/status=n1", "patch portblocks.pelago.io/status=x", "create " + user + "events",
				"use " + sys + "securitycontextconstraints.security.openshift.io=privileged",
				"watch " + sys + "endpoints.submariner.io", "update " + sys + "gateways.submariner.io=n1", "patch " + sys + "routeagents.submariner.io=n1", "get " + sys + "configmaps=pelago-config",
			},
			refused: []string{
				"get " + sys + "secrets=submariner-broker-secret", "list " + sys + "secrets", "get " + user + "secrets=x",
				"use " + user + "securitycontextconstraints.security.openshift.io=privileged",
				"patch nodeindices.pelago.io=n1", "create portblocks.pelago.io", "patch peers.pelago.io=g2", "patch nodes=n1", "patch nodes/status=n1",
				"create " + user + "pods", "create " + sys + "pods/exec=x", "update " + sys + "endpoints.submariner.io=x",
				"update " + user + "gateways.submariner.io=x", "create " + user + "routeagents.submariner.io", "get " + sys + "configmaps=other", "update " + kube + "configmaps=coredns",
				"update globalingressips.submariner.io/status=x", "update " + user + "serviceexports.multicluster.x-k8s.io/status=x",
			},
		},
		"pelago-agent": {
			allowed: []string{
				"watch nodes", "patch nodes=n1", "watch pods", "watch services", "watch namespaces", "create " + user + "endpointslices.discovery.k8s.io",
				"patch " + user + "serviceexports.multicluster.x-k8s.io/status=web", "create " + user + "serviceimports.multicluster.x-k8s.io",
				"create portblocks.pelago.io", "create globaladdresses.pelago.io", "delete peers.pelago.io=g2", "patch peers.pelago.io/status=g2",
				"create " + user + "globalingressips.submariner.io", "patch clusterglobalegressips.submariner.io/status=x",
				"create " + sys + "endpoints.submariner.io", "watch " + sys + "gateways.submariner.io", "get " + sys + "secrets=submariner-broker-secret",
				"update " + sys + "secrets=submariner-broker-secret", "update " + kube + "configmaps=coredns",
				"watch " + kube + "configmaps=node-local-dns", "update " + kube + "configmaps=rke2-coredns-rke2-coredns", "update dnses.operator.openshift.io=default",
				"create " + sys + "leases.coordination.k8s.io", "update " + sys + "leases.coordination.k8s.io=pelago-agent",
			},
			refused: []string{
				"list " + sys + "secrets", "get " + sys + "secrets=submariner-ipsec-psk", "get " + sys + "secrets=pelago-overlay-token",
				"get " + user + "secrets=x", "create " + sys + "secrets", "create " + user + "pods", "create " + user + "deployments.apps",
				"patch " + sys + "daemonsets.apps=pelago-node", "delete " + user + "pods=x", "create " + user + "services", "patch nodes/status=n1",
				"patch nodeindices.pelago.io/status=n1", "patch portblocks.pelago.io/status=x", "update " + kube + "configmaps=other",
				"update dnses.operator.openshift.io=other", "create dnses.operator.openshift.io", "create " + user + "serviceexports.multicluster.x-k8s.io", "delete " + user + "serviceexports.multicluster.x-k8s.io=web",
				"create clusterrolebindings.rbac.authorization.k8s.io", "update " + user + "leases.coordination.k8s.io=x",
				"create " + user + "endpoints.submariner.io", "update " + sys + "gateways.submariner.io=n1", "create " + sys + "serviceaccounts/token=pelago-node",
			},
		},
		"pelago-agent-execution": {
			allowed: []string{
				"create " + user + "deployments.apps", "delete " + user + "pods=x", "patch " + user +
					"anything.example.com=x", "create namespaces",
				"watch " + user + "secrets", "update " + user + "deployments.apps/scale=x", "escalate clusterroles.rbac.authorization.k8s.io",
				"get " + sys + "secrets=submariner-broker-secret", "impersonate users=alice", "impersonate groups=dev",
				"impersonate " + user + "serviceaccounts=x", "impersonate userextras.authentication.k8s.io/scopes=x",
			},
			refused: []string{
				"use " + sys + "securitycontextconstraints.security.openshift.io=privileged",
				"deletecollection " + user + "pods", "approve signers.certificates.k8s.io=x",
				"escalate " + user + "deployments.apps", "bind users=x",
			},
		},
		"pelago-hub": {
			allowed: []string{
				"watch " + user + "deployments.apps", "watch " + user + "anything.example.com", "get " + user + "secrets=x",
				"patch " + user + "deployments.apps=x", "patch " + user + "deployments.apps/status=x", "update " + user +
					"deployments.apps/status=x",
				"update " + user + "deployments.apps/finalizers=x", "patch clusterroles.rbac.authorization.k8s.io=x", "escalate " +
					"clusterroles.rbac.authorization.k8s.io",
				"create " + es + "works.work.karmada.io", "delete " + es + "works.work.karmada.io=x", "update " + user +
					"resourcebindings.work.karmada.io=x",
				"create " + user + "resourcebindings.work.karmada.io", "delete clusterresourcebindings.work.karmada.io=x", "update " +
					"clusters.cluster.karmada.io=g1",
				"update clusters.cluster.karmada.io/status=g1", "update " + user + "propagationpolicies.policy.karmada.io=x", "create " +
					"namespaces", "delete namespaces=karmada-es-g1",
				"create " + es + "rolebindings.rbac.authorization.k8s.io", "create " + user + "events", "create " + sys +
					"leases.coordination.k8s.io",
				"create apiservices.apiregistration.k8s.io", "create " + sys + "secrets", "update " + sys + "secrets=pelago-hub-proxy",
				"create " + sys + "services", "create subjectaccessreviews.authorization.k8s.io", "impersonate users=alice", "impersonate groups=dev",
				"impersonate " + user + "serviceaccounts=x", "impersonate uids.authentication.k8s.io=x", "impersonate userextras.authentication.k8s.io/scopes=x",
				"update " + sys + "leases.coordination.k8s.io=pelago-hub", "create " + secrets + "leases.coordination.k8s.io", "delete " +
					secrets + "leases.coordination.k8s.io=g1", "delete " + secrets + "secrets=g1",
			},
			refused: []string{
				"create " + user + "deployments.apps", "update " + user + "deployments.apps=x", "delete " + user +
					"deployments.apps=x", "create " + user + "pods",
				"create " + user + "secrets", "update " + sys + "secrets=pelago-hub", "delete " + user + "secrets=x", "create clusters.cluster.karmada.io", "delete " +
					"clusters.cluster.karmada.io=g1",
				"create " + user + "propagationpolicies.policy.karmada.io", "delete " + user +
					"propagationpolicies.policy.karmada.io=x", "create " + sys + "serviceaccounts/token=pelago-hub",
				"create " + user + "pods/exec=x", "update " + sys + "leases.coordination.k8s.io=pelago-agent",
			},
		},
		"pelago-dns": {
			allowed: []string{
				"watch serviceimports.multicluster.x-k8s.io", "watch endpointslices.discovery.k8s.io", "get " + sys + "configmaps=pelago-config",
			},
			refused: []string{
				"list pods", "list services", "list " + sys + "secrets", "create " + user + "endpointslices.discovery.k8s.io",
				"update " + user + "serviceimports.multicluster.x-k8s.io=x", "get " + kube + "configmaps=coredns", "list nodes",
			},
		},
	} {
		t.Run(account, func(t *testing.T) {
			for _, question := range tt.allowed {
				if !may(account, question) {
					t.Errorf("may not %s", question)
				}
			}
			for _, question := range tt.refused {
				if may(account, question) {
					t.Errorf("may %s", question)
				}
			}
		})
	}
}

// Who may edit a namespace may export its services and write its policies, but no imports and
// Works; who may view it reads them.
func TestRightsOfUsers(t *testing.T) {
	cfg := server.Config(t) // its controllers aggregate roles
	install(t, cfg, MemberOptions{})
	c := open(t, cfg)
	const in = "default:"
	view := []string{"list " + in + "serviceimports.multicluster.x-k8s.io", "watch " + in + "propagationpolicies.policy.karmada.io",
		"list " + in + "federatedresourcequotas.policy.karmada.io", "get " + in + "resourcebindings.work.karmada.io=web",
		"list " + in + "federatedhpas.autoscaling.karmada.io", "list " + in + "multiclusterservices.networking.karmada.io",
		"list " + in + "resourceregistries.search.karmada.io"}
	edit := []string{"create " + in + "serviceexports.multicluster.x-k8s.io", "create " + in + "propagationpolicies.policy.karmada.io",
		"patch " + in + "overridepolicies.policy.karmada.io=web", "delete " + in + "cronfederatedhpas.autoscaling.karmada.io=web",
		"update " + in + "multiclusteringresses.networking.karmada.io=web", "list " + in + "works.work.karmada.io"}
	none := []string{"update " + in + "serviceimports.multicluster.x-k8s.io=web", "create " + in + "works.work.karmada.io",
		"patch " + in + "resourcebindings.work.karmada.io=web", "update " + in + "federatedresourcequotas.policy.karmada.io=web",
		"create clusterpropagationpolicies.policy.karmada.io", "create kube-system:propagationpolicies.policy.karmada.io",
		"create " + in + "resourceregistries.search.karmada.io"}
	for role, tt := range map[string]struct{ allowed, refused []string }{
		"view":  {view, slices.Concat(edit, none)},
		"edit":  {slices.Concat(view, edit), none},
		"admin": {slices.Concat(view, edit), none},
	} {
		if err := c.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: role}},
		}); err != nil {
			t.Fatal(err)
		}
		for _, question := range tt.allowed {
			await.True(t, role+" may "+question, func() bool { return authorized(t, c, role, nil, question) })
		}
		for _, question := range tt.refused {
			if authorized(t, c, role, nil, question) {
				t.Errorf("%s may %s", role, question)
			}
		}
	}
}
