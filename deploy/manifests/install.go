package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
)

// MemberOptions are the choices of `pelago join` that the manifests depend on; of `pelago init`
// Image, PullPolicy, PullSecrets, NodeSelector and Tolerations.
type MemberOptions struct {
	// Image is run by all workloads; DefaultImage if empty.
	Image string
	// PullPolicy is Always, IfNotPresent or Never; IfNotPresent if empty.
	PullPolicy string
	// IKE adds the container of the IKE daemon to the node daemon's pods, for the cable driver
	// libreswan.
	IKE bool
	// CoreDNSCustom is the ConfigMap that the agent may write instead of the Corefile; see
	// config.Config.
	CoreDNSCustom string
	// PullSecrets are Secrets of the pods' namespace, by which the image is pulled.
	PullSecrets []string
	// NodeSelector and Tolerations count for the pods of Deployments; pelago-node runs on every
	// node.
	NodeSelector map[string]string
	Tolerations  []corev1.Toleration
	// HTTPProxy and HTTPSProxy are URLs of the proxies on the agents' way to the hub; NoProxy lists
	// what they reach without, separated by commas, besides the own cluster.
	HTTPProxy, HTTPSProxy, NoProxy string
}

// NoProxyCluster is what is always reached without a proxy: the own API server, whose address
// kubelet adds, and services.
const NoProxyCluster = "$(KUBERNETES_SERVICE_HOST),.svc"

// proxy are the environment variables of the agents about proxies.
func (o MemberOptions) proxy() map[string]string {
	out := map[string]string{}
	for name, value := range map[string]string{"HTTP_PROXY": o.HTTPProxy, "HTTPS_PROXY": o.HTTPSProxy} {
		if value != "" {
			out[name] = value
			out["NO_PROXY"] = strings.TrimSuffix(NoProxyCluster+","+o.NoProxy, ",")
		}
	}
	return out
}

// Values are the parameters of the templates.
func (o MemberOptions) Values() map[string]any {
	if o.Image == "" {
		o.Image = DefaultImage
	}
	if o.PullPolicy == "" {
		o.PullPolicy = "IfNotPresent"
	}
	var names []string
	for _, t := range clusterdns.Targets(o.CoreDNSCustom) {
		names = append(names, t.ConfigMap.Name)
	}
	var tolerations []string
	for _, t := range o.Tolerations {
		text, err := json.Marshal(t)
		if err != nil {
			panic(err) // a struct of strings and a number
		}
		tolerations = append(tolerations, string(text))
	}
	return map[string]any{"Image": o.Image, "PullPolicy": o.PullPolicy, "IKE": o.IKE, "CoreDNS": names,
		"PullSecrets": o.PullSecrets, "NodeSelector": o.NodeSelector, "Tolerations": tolerations, "Proxy": o.proxy(),
		"Namespace": SystemNamespace, "Hosted": false, "KarmadaTools": false}
}

// PropagationOptions are the choices of `pelago init` that the manifests depend on.
type PropagationOptions struct {
	// Workloads: the API server runs workloads, pelago-hub among them.
	Workloads bool
	MemberOptions
}

func (o PropagationOptions) objects() ([]*unstructured.Unstructured, error) {
	return PropagationObjects(o.MemberOptions, o.Workloads)
}

// HubBase installs the namespace and the CRDs of the broker, which its ConfigMaps need. It grants
// no rights.
func HubBase(ctx context.Context, c client.Client, progress Progress) error {
	crds, errCRDs := HubCRDs()
	objs, err := HubObjects()
	if err := errors.Join(errCRDs, err); err != nil {
		return err
	}
	progress("Creating namespace %s", BrokerNamespace)
	return applyBase(ctx, c, crds, objs, progress)
}

// Hub installs the admission policies of the broker and, once each of them refuses its canary, the
// rights of members and of the registration credential. HubBase must have been run, the ConfigMap
// submariner-globalnet-info must exist, and the API server must be 1.31 or newer (CEL functions of
// IP addresses).
func Hub(ctx context.Context, c client.Client, progress Progress) error {
	objs, err := HubObjects()
	if err != nil {
		return err
	}
	return applyGuarded(ctx, c, objs, brokerCanaries(c), "Granting rights to members", progress)
}

// Propagation makes an API server a hub that propagates workloads, in this order: namespaces, which
// grant no rights; CRDs, until they are served; admission policies, until each of them refuses its
// canary; the rights of pelago-hub, and pelago-hub itself where pods run. It is idempotent, also
// for a newer version. The API server must be 1.31 or newer, and must not be Karmada's.
func Propagation(ctx context.Context, c client.Client, o PropagationOptions, progress Progress) error {
	crds, errCRDs := PropagationCRDs()
	objs, err := o.objects()
	if err := errors.Join(errCRDs, err); err != nil {
		return err
	}
	progress("Creating namespaces")
	if err := applyBase(ctx, c, crds, objs, progress); err != nil {
		return err
	}
	granting := "Granting rights to pelago-hub"
	if o.Workloads {
		granting += " and starting it"
	}
	return applyGuarded(ctx, c, objs, propagationCanaries(c), granting, progress)
}

// RemovePropagation removes what Propagation installed, except namespaces, definitions and the
// ServiceAccount. It also removes pelago-hub's APIServices: while one of them is unavailable, the
// API server cannot finish deleting namespaces.
func RemovePropagation(ctx context.Context, c client.Client) error {
	objs, err := propagation(ctx, c)
	if err != nil {
		return err
	}
	return DeleteAll(ctx, c, objs, metav1.DeletePropagationBackground)
}

// propagation is what RemovePropagation removes.
func propagation(ctx context.Context, c client.Client) ([]*unstructured.Unstructured, error) {
	objs, err := PropagationOptions{Workloads: true}.objects()
	if err != nil {
		return nil, err
	}
	services := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIServiceList"}}
	if err := c.List(ctx, services); err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	s := split(objs)
	for i := range services.Items {
		in, _, _ := unstructured.NestedString(services.Items[i].Object, "spec", "service", "namespace")
		of, _, _ := unstructured.NestedString(services.Items[i].Object, "spec", "service", "name")
		if in == SystemNamespace && of == HubName {
			s.rest = append(s.rest, &services.Items[i])
		}
	}
	return slices.Concat(s.policies, s.rest), nil
}

// MemberBase installs the namespace and the CRDs of a member, which its configuration and its
// secrets need.
func MemberBase(ctx context.Context, c client.Client, progress Progress) error {
	crds, errCRDs := MemberCRDs()
	objs, err := MemberObjects(MemberOptions{})
	if err := errors.Join(errCRDs, err); err != nil {
		return err
	}
	progress("Creating namespace %s", SystemNamespace)
	return applyBase(ctx, c, crds, objs, progress)
}

// Member installs the rights and the workloads of a member. MemberBase must have been run.
func Member(ctx context.Context, c client.Client, o MemberOptions, progress Progress) error {
	objs, err := MemberObjects(o)
	if err != nil {
		return err
	}
	s := split(objs)
	progress("Installing admission policies, rights and workloads (image %s)", o.Values()["Image"])
	if err := ApplyAll(ctx, c, s.policies); err != nil { // they limit rights that follow
		return err
	}
	return ApplyAll(ctx, c, s.rest)
}

// ExecutionBase installs the namespace of a member that takes workloads only.
func ExecutionBase(ctx context.Context, c client.Client, progress Progress) error {
	objs, err := Objects(nil, "member/namespace.yaml")
	if err != nil {
		return err
	}
	progress("Creating namespace %s", SystemNamespace)
	return ApplyAll(ctx, c, objs)
}

// Execution installs the part of the agent that executes Works, with its rights. Member or
// ExecutionBase must have been run.
func Execution(ctx context.Context, c client.Client, o MemberOptions, progress Progress) error {
	objs, err := ExecutionObjects(o)
	if err != nil {
		return err
	}
	progress("Installing the agent for workloads")
	return ApplyAll(ctx, c, objs)
}

// RemoveExecution removes what Execution has installed; its rights end at once. What the hub has
// propagated stays.
func RemoveExecution(ctx context.Context, c client.Client, progress Progress) error {
	objs, err := ExecutionObjects(MemberOptions{})
	if err != nil {
		return err
	}
	err = c.Get(ctx, client.ObjectKey{Namespace: SystemNamespace, Name: ExecutionDeployment}, new(appsv1.Deployment))
	if err == nil {
		progress("Removing the agent for workloads; the workloads stay")
	}
	return errors.Join(client.IgnoreNotFound(err), DeleteAll(ctx, c, objs, metav1.DeletePropagationBackground))
}

// stages are manifests in the order in which they are applied.
type stages struct {
	// base holds namespaces, with the quotas without which their pods are refused, and
	// ServiceAccounts, which grant no rights.
	base []*unstructured.Unstructured
	// policies holds admission policies and their bindings.
	policies []*unstructured.Unstructured
	// rest holds rights and workloads.
	rest []*unstructured.Unstructured
}

func split(objs []*unstructured.Unstructured) stages {
	var s stages
	for _, u := range objs {
		switch u.GetKind() {
		case "Namespace", "ResourceQuota", "ServiceAccount":
			s.base = append(s.base, u)
		case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			s.policies = append(s.policies, u)
		default:
			s.rest = append(s.rest, u)
		}
	}
	return s
}

// applyBase applies namespaces and ServiceAccounts, then CRDs, and waits until these are served.
func applyBase(ctx context.Context, c client.Client, crds, objs []*unstructured.Unstructured, progress Progress) error {
	if err := ApplyAll(ctx, c, split(objs).base); err != nil {
		return err
	}
	progress("Installing %d custom resource definitions", len(crds))
	return applyCRDs(ctx, c, crds, progress)
}

// applyGuarded applies admission policies and, once each refuses its canary, rights and workloads.
func applyGuarded(
	ctx context.Context, c client.Client, objs []*unstructured.Unstructured, canaries map[string]func(context.Context) error,
	granting string, progress Progress,
) error {
	s := split(objs)
	progress("Installing admission policies")
	if err := ApplyAll(ctx, c, s.policies); err != nil {
		return err
	}
	progress("Waiting until every admission policy refuses its canary")
	if err := awaitPolicies(ctx, canaries); err != nil {
		return err
	}
	progress("%s", granting)
	return ApplyAll(ctx, c, s.rest)
}

// ApplyAll applies all objects and reports every failure.
func ApplyAll(ctx context.Context, c client.Client, objs []*unstructured.Unstructured) error {
	var errs []error
	for _, u := range objs {
		errs = append(errs, Apply(ctx, c, u))
	}
	return errors.Join(errs...)
}

// Apply writes one object by server-side apply, which refuses unknown fields, and takes its fields
// over from other managers.
func Apply(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(Manager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), name(u), err)
	}
	return nil
}

// DeleteAll deletes all objects, the last first, and reports every failure.
func DeleteAll(ctx context.Context, c client.Client, objs []*unstructured.Unstructured, how metav1.DeletionPropagation) error {
	var errs []error
	for _, u := range slices.Backward(objs) {
		if err := c.Delete(ctx, u, client.PropagationPolicy(how)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", u.GetKind(), name(u), err))
		}
	}
	return errors.Join(errs...)
}

func name(u *unstructured.Unstructured) string { return Title(client.ObjectKeyFromObject(u)) }
