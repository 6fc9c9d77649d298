package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// canary is the object name (for tokens: the audience) that every policy refuses for any user. A
// policy takes effect only some time after it was written, so rights are granted only once each
// policy has refused its canary.
const canary = "pelago-canary"

var (
	// errNotServed: the API server does not serve the kind that a policy matches.
	errNotServed = errors.New("kind is not served")
	// errAccepted: no policy has refused a forbidden request.
	errAccepted = errors.New("request accepted")
)

// canaryTimeout bounds the wait for all policies together.
const canaryTimeout = 3 * time.Minute

// awaitPolicies repeats a forbidden request for each policy, as a dry run, until the policy refuses
// it. A policy whose request returns errNotServed has nothing to refuse.
func awaitPolicies(ctx context.Context, canaries map[string]func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	for policy, request := range canaries {
		err := poll(ctx, 100*time.Millisecond, canaryTimeout, func(ctx context.Context) error {
			if err := request(ctx); !refusedBy(err, policy) && !errors.Is(err, errNotServed) {
				return fmt.Errorf("the answer is %w", cmp.Or(err, errAccepted))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("wait until ValidatingAdmissionPolicy %s refuses a forbidden request: %w: "+
				"check its status.typeChecking and whether the API server runs the ValidatingAdmissionPolicy plugin", policy, err)
		}
	}
	return nil
}

// Unrefused makes the forbidden request of each policy, of the broker and of propagation, as a dry
// run, and returns the policies that did not refuse it, by name, with the answer that came instead;
// nil: the request was accepted.
func Unrefused(ctx context.Context, c client.Client, broker, propagation bool) map[string]error {
	canaries := map[string]func(context.Context) error{}
	if broker {
		maps.Copy(canaries, brokerCanaries(c))
	}
	if propagation {
		maps.Copy(canaries, propagationCanaries(c))
	}
	out := map[string]error{}
	for policy, request := range canaries {
		if err := request(ctx); !refusedBy(err, policy) && !errors.Is(err, errNotServed) {
			out[policy] = err
		}
	}
	return out
}

// refusedBy reports whether err is the refusal of the policy. RBAC refuses with the same reason;
// only the message differs.
func refusedBy(err error, policy string) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+policy+"'")
}

// brokerCanaries holds a forbidden request for each policy of the broker, by the policy's name.
// None exists for pelago-clusters-disjoint, -hub, -underlay and -needed, pelago-member-clusters-uid and
// pelago-endpoint-keys, which compare with existing objects: before the first one there is nothing
// to refuse. Nor for pelago-member-clustersetips: without a cluster pelago-member-contributions
// refuses all of what it matches.
func brokerCanaries(c client.Client) map[string]func(context.Context) error {
	object := metav1.ObjectMeta{Name: canary, Namespace: BrokerNamespace}
	named := map[string]any{"name": canary, "namespace": BrokerNamespace}
	create := func(obj client.Object) func(context.Context) error { return dryRun(c, obj) }
	custom := func(apiVersion, kind string, spec map[string]any) func(context.Context) error {
		return create(untyped(apiVersion, kind, named, spec))
	}
	token := func(audience string) func(context.Context) error {
		return func(ctx context.Context) error {
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: RegistrarAccount, Namespace: BrokerNamespace}}
			return c.SubResource("token").Create(ctx, account, request, client.DryRunAll)
		}
	}
	workloadCluster := func(name string) func(context.Context) error {
		return ifServed(create(untyped("cluster.karmada.io/v1alpha1", "Cluster", map[string]any{"name": name}, map[string]any{"syncMode": "Pull"})))
	}
	outOfRange := untyped("submariner.io/v1", "Cluster", map[string]any{
		"name": canary, "namespace": BrokerNamespace,
		"labels":      map[string]any{"submariner-io/clusterID": canary},
		"annotations": map[string]any{"pelago.io/cluster-uid": canary, "pelago.io/cluster-index": "65536"},
		// A range of documentation (RFC 3849): routable to the other policies, and in no
		// clusterset's range, which is IPv4.
	}, map[string]any{"cluster_id": canary, "global_cidr": []any{"2001:db8::/128"}})
	// workloadsOnly is valid to all policies but the one that refuses its name.
	workloadsOnly := func(name string) *unstructured.Unstructured {
		return untyped("submariner.io/v1", "Cluster", map[string]any{
			"name": name, "namespace": BrokerNamespace,
			"labels":      map[string]any{"submariner-io/clusterID": name},
			"annotations": map[string]any{"pelago.io/cluster-uid": name, "pelago.io/cluster-index": "65536", "pelago.io/workloads-only": "true"},
		}, map[string]any{"cluster_id": name})
	}
	large := workloadsOnly("pelago-size-canary")
	large.SetFinalizers([]string{"pelago.io/a", "pelago.io/b", "pelago.io/c", "pelago.io/d", "pelago.io/e"})
	return map[string]func(context.Context) error{
		"pelago-registration-clusters": create(workloadsOnly("pelago-growth-canary")),
		"pelago-member-sizes":          create(large),
		"pelago-member-count":          create(workloadsOnly("pelago-count-canary")),
		"pelago-clusters-private":      create(workloadsOnly("pelago-private-canary")),
		"pelago-clusters-unapproved":   create(workloadsOnly("pelago-approval-canary")),
		"pelago-member-endpoints": custom("submariner.io/v1", "Endpoint", map[string]any{
			"cluster_id": canary, "cable_name": canary, "private_ip": canary, "backend": canary, "subnets": []any{}}),
		"pelago-member-contributions": custom("pelago.io/v1alpha1", "ServiceContribution", map[string]any{
			"cluster": canary, "namespace": canary, "service": canary, "type": "Headless", "exportedAt": "2000-01-01T00:00:00Z"}),
		"pelago-member-endpointslices":      create(&discoveryv1.EndpointSlice{ObjectMeta: object, AddressType: discoveryv1.AddressTypeIPv4}),
		"pelago-clusters":                   custom("submariner.io/v1", "Cluster", map[string]any{"cluster_id": "not-" + canary}),
		"pelago-clusters-range":             create(outOfRange),
		"pelago-member-clusters":            workloadCluster(canary),
		"pelago-member-clusters-unapproved": workloadCluster("pelago-unapproved-canary"),
		"pelago-member-works": ifServed(custom("work.karmada.io/v1alpha1", "Work",
			map[string]any{"workload": map[string]any{}})),
		"pelago-registration-serviceaccounts": create(&corev1.ServiceAccount{ObjectMeta: object}),
		"pelago-registration-secrets":         create(&corev1.Secret{ObjectMeta: object}),
		"pelago-registration-roles":           create(&rbacv1.Role{ObjectMeta: object}),
		"pelago-registration-rolebindings": create(&rbacv1.RoleBinding{ObjectMeta: object,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: MemberRole}}),
		"pelago-registration-tokens":     token(canary),
		"pelago-bootstrap-tokens":        token("pelago-bootstrap-canary"),
		"pelago-member-address":          create(&coordinationv1.Lease{ObjectMeta: object}),
		"pelago-registration-allocation": create(&corev1.ConfigMap{ObjectMeta: object}),
	}
}

// ifServed makes a request to a hub that may lack the kind: `pelago init` was not run there, or not
// yet.
func ifServed(request func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := request(ctx)
		if meta.IsNoMatchError(err) {
			return errNotServed
		}
		return err
	}
}

// dryRun is a dry run of a creation.
func dryRun(c client.Client, obj client.Object) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.Create(ctx, obj.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

func untyped(apiVersion, kind string, metadata, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": metadata, "spec": spec}}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	return u
}

// hubCanary is the name that the policies of Propagation refuse for any user. It differs from
// canary, which the broker's refuse: a refusal names one policy only.
const hubCanary = "pelago-hub-canary"

// propagationCanaries holds a forbidden request for each policy of Propagation, by the policy's
// name.
func propagationCanaries(c client.Client) map[string]func(context.Context) error {
	object := metav1.ObjectMeta{Name: hubCanary, Namespace: SystemNamespace}
	return map[string]func(context.Context) error{
		"pelago-permanent-ids": dryRun(c, untyped("policy.karmada.io/v1alpha1", "PropagationPolicy",
			map[string]any{"name": hubCanary, "namespace": SystemNamespace},
			map[string]any{"resourceSelectors": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}})),
		"pelago-deletion-protected": dryRun(c, &corev1.ConfigMap{ObjectMeta: object}),
		"pelago-namespace-clusters": dryRun(c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hubCanary,
			Annotations: map[string]string{policyv1alpha1.AnnotationClusters: hubCanary}}}),
	}
}
