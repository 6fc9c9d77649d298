package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/migrate"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/control/agent/services"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

const (
	operatorNS = "submariner-operator"
	oldBroker  = "old-broker" // Submariner's broker, another namespace at the hub of the test
	lighthouse = "#lighthouse-start AUTO-GENERATED SECTION. DO NOT EDIT\nclusterset.local:53 {\n    forward . 10.8.0.53\n}\n#lighthouse-end\n"
	corefile   = ".:53 {\n    errors\n}\n"
)

// predecessor is a member with Submariner: its definitions, with the fields that they require, and objects as its controllers write them.
type predecessor struct {
	clusterset
	*testing.T
	hub, member client.Client
	before      map[string]any // specs of the definitions
}

func newPredecessor(t *testing.T) *predecessor {
	c := newClusterset(t)
	p := &predecessor{clusterset: c, T: t, hub: open(t, c.hub), member: open(t, c.member), before: map[string]any{}}
	c.must(t, "deploy-broker", "--context", "hub", "--globalnet", "--globalnet-cidr-range", "242.0.0.0/8", "--enable-clusterset-ip", "--auto-accept-network", "--output", c.infoFile())
	p.broker()
	p.definitions()
	// The client learns of the kinds.
	p.member = open(t, c.member)
	p.objects()
	go p.kubelet(t.Context())
	return p
}

func (p *predecessor) make(c client.Client, objects ...client.Object) {
	p.Helper()
	for _, o := range objects {
		status := o.DeepCopyObject().(client.Object)
		if err := c.Create(p.Context(), o); err != nil {
			p.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
		status.SetResourceVersion(o.GetResourceVersion())
		switch o.(type) {
		case *submarinerv1.GlobalIngressIP, *submarinerv1.GlobalEgressIP, *submarinerv1.ClusterGlobalEgressIP, *corev1.Pod:
			if err := c.Status().Update(p.Context(), status); err != nil {
				p.Fatalf("write the status of %T %s: %v", o, o.GetName(), err)
			}
		}
	}
}

func (p *predecessor) broker() {
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: oldBroker, Name: name} }
	endpoint := func(id, ip string, subnets ...string) *submarinerv1.Endpoint {
		return &submarinerv1.Endpoint{ObjectMeta: at(id + "-submariner-cable-" + id), Spec: submarinerv1.EndpointSpec{ClusterID: id, CableName: "submariner-cable-" + id,
			Hostname: id + "-n1", Subnets: subnets, PrivateIP: ip, Backend: "libreswan"}}
	}
	p.make(p.hub, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: oldBroker}},
		&corev1.ConfigMap{ObjectMeta: at("submariner-globalnet-info"), Data: map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": `"242.0.0.0/8"`,
			"globalnetClusterSize": "65536", "clusterinfo": `[{"cluster_id":"c1","global_cidr":["242.0.0.0/16"]},{"cluster_id":"c2","global_cidr":["242.1.0.0/16"]}]`}},
		&submarinerv1.Cluster{ObjectMeta: at("c1"), Spec: submarinerv1.ClusterSpec{ClusterID: "c1", GlobalCIDR: []string{"242.0.0.0/16"}}},
		&submarinerv1.Cluster{ObjectMeta: at("c2"), Spec: submarinerv1.ClusterSpec{ClusterID: "c2", GlobalCIDR: []string{"242.1.0.0/16"}}},
		endpoint("c1", "172.18.0.3", "242.0.0.0/16"), endpoint("c2", "172.18.0.4", "242.1.0.0/16"))
}

// definitions installs those of Submariner 0.20 in short, and those of the MCS API without our label.
func (p *predecessor) definitions() {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	texts := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}}
	object := func(required []string, properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Required: required, Properties: properties}
	}
	whole := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	conditions := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &whole}}
	allocated := object(nil, map[string]apiextensionsv1.JSONSchemaProps{"conditions": conditions, "allocatedIP": text, "allocatedIPs": texts})
	number := apiextensionsv1.JSONSchemaProps{Type: "integer"}
	for kind, d := range map[string]struct {
		version      string
		scope        apiextensionsv1.ResourceScope
		spec, status apiextensionsv1.JSONSchemaProps
	}{
		"Submariner": {"v1alpha1", "Namespaced", whole, whole},
		"Cluster": {"v1", "Namespaced", object([]string{"cluster_cidr", "cluster_id", "color_codes", "global_cidr", "service_cidr"}, map[string]apiextensionsv1.JSONSchemaProps{
			"cluster_id": text, "color_codes": texts, "cluster_cidr": texts, "service_cidr": texts, "global_cidr": texts}), whole},
		"Endpoint": {"v1", "Namespaced", object([]string{"backend", "cable_name", "cluster_id", "hostname", "nat_enabled", "subnets"}, map[string]apiextensionsv1.JSONSchemaProps{
			"backend": text, "cable_name": text, "cluster_id": text, "hostname": text, "nat_enabled": {Type: "boolean"}, "subnets": texts, "privateIPs": texts}), whole},
		"Gateway":    {"v1", "Namespaced", whole, object([]string{"connections", "haStatus", "localEndpoint", "statusFailure", "version"}, nil)},
		"RouteAgent": {"v1", "Namespaced", whole, whole},
		"GlobalIngressIP": {"v1", "Namespaced", object([]string{"target"}, map[string]apiextensionsv1.JSONSchemaProps{
			"target": text, "serviceRef": whole, "podRef": whole}), allocated},
		"GlobalEgressIP":        {"v1", "Namespaced", object(nil, map[string]apiextensionsv1.JSONSchemaProps{"numberOfIPs": number, "podSelector": whole}), allocated},
		"ClusterGlobalEgressIP": {"v1", "Cluster", object(nil, map[string]apiextensionsv1.JSONSchemaProps{"numGlobalIPs": number}), allocated},
	} {
		plural := strings.ToLower(kind) + "s"
		version := apiextensionsv1.CustomResourceDefinitionVersion{Name: d.version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: ptr.To(object(nil, map[string]apiextensionsv1.JSONSchemaProps{"spec": d.spec, "status": d.status}))}}
		if strings.HasPrefix(kind, "Global") || d.scope == "Cluster" {
			version.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		}
		p.make(p.member, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + ".submariner.io"}, Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "submariner.io", Scope: d.scope, Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version}}})
	}
	crds, err := manifests.MemberCRDs()
	if err != nil {
		p.Fatal(err)
	}
	for _, u := range crds {
		if strings.HasSuffix(u.GetName(), ".multicluster.x-k8s.io") {
			p.make(p.member, u)
		}
	}
	var list apiextensionsv1.CustomResourceDefinitionList
	await.True(p, "all definitions served", func() bool {
		if err := p.member.List(p.Context(), &list); err != nil {
			p.Fatal(err)
		}
		return !slices.ContainsFunc(list.Items, func(d apiextensionsv1.CustomResourceDefinition) bool {
			return !slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			})
		})
	})
	for _, d := range list.Items {
		p.before[d.Name] = d.Spec
	}
}

func (p *predecessor) objects() {
	at := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	labelled := func(namespace, name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
	}
	conditions := []metav1.Condition{ // a history, as Submariner keeps it
		{Type: "Allocated", Status: "False", Reason: "IPPoolAllocationFailed", Message: "m", LastTransitionTime: metav1.Now()},
		{Type: "Allocated", Status: "True", Reason: "Success", Message: "Allocated global IP", LastTransitionTime: metav1.Now()}}
	u := func(version, kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: fields}
		u.SetAPIVersion(version)
		u.SetKind(kind)
		u.SetNamespace(namespace)
		u.SetName(name)
		return u
	}
	template := func(app string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		labels := map[string]string{"app": app}
		return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: app, Image: app}}}}
	}
	for _, name := range []string{operatorNS, "shop"} {
		p.make(p.member, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range []string{"submariner-operator", "submariner-lighthouse-agent", "submariner-lighthouse-coredns"} {
		d := &appsv1.Deployment{ObjectMeta: at(operatorNS, name), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}}
		d.Spec.Selector, d.Spec.Template = template(name)
		p.make(p.member, d)
	}
	for _, name := range []string{"submariner-globalnet", "submariner-gateway", "submariner-routeagent", "submariner-metrics-proxy"} {
		d := &appsv1.DaemonSet{ObjectMeta: at(operatorNS, name)}
		d.Spec.Selector, d.Spec.Template = template(name)
		p.make(p.member, d, &corev1.Pod{ObjectMeta: labelled(operatorNS, name+"-1", d.Spec.Selector.MatchLabels), Spec: d.Spec.Template.Spec})
	}
	pod := &corev1.Pod{ObjectMeta: at("shop", "db-0"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "db", Image: "db"}}},
		Status: corev1.PodStatus{PodIP: "10.7.0.9"}}
	ingress := func(name, ip string, target submarinerv1.TargetType, service string) *submarinerv1.GlobalIngressIP {
		return &submarinerv1.GlobalIngressIP{ObjectMeta: at("shop", name), Spec: submarinerv1.GlobalIngressIPSpec{Target: target,
			ServiceRef: &corev1.LocalObjectReference{Name: service}}, Status: submarinerv1.GlobalIngressIPStatus{AllocatedIP: ip, Conditions: conditions}}
	}
	db := ingress("pod-db-0", "242.0.255.250", submarinerv1.HeadlessServicePod, "db")
	db.Spec.PodRef = &corev1.LocalObjectReference{Name: "db-0"}
	db.Annotations = map[string]string{submarinerv1.AnnotationPodIP: "10.7.0.9"}
	db.Labels = map[string]string{submarinerv1.LabelServiceRef: "db"}
	internal := &corev1.Service{ObjectMeta: labelled("shop", "submariner-abc", map[string]string{"submariner.io/exportedServiceRef": "web"}),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, ExternalIPs: []string{"242.0.255.254"}, Selector: map[string]string{"app": "web"}}}
	internal.Finalizers = []string{"submariner.io/globalnet-internal-service"}
	slice := func(name, manager string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: labelled("shop", name, map[string]string{discoveryv1.LabelManagedBy: manager, "multicluster.kubernetes.io/service-name": "web"}),
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"242.1.0.9"}}}}
	}
	imported := u("multicluster.x-k8s.io/v1beta1", "ServiceImport", "shop", "web", map[string]any{"spec": map[string]any{"type": "ClusterSetIP", "ips": []any{"243.0.0.77"},
		"ports": []any{map[string]any{"port": int64(80), "protocol": "TCP"}}}})
	imported.SetAnnotations(map[string]string{"timestamp.submariner.io/c1": "1"})
	users := u("multicluster.x-k8s.io/v1beta1", "ServiceImport", "shop", "users", map[string]any{"spec": map[string]any{"type": "ClusterSetIP", "ips": []any{"243.0.0.78"},
		"ports": []any{map[string]any{"port": int64(80), "protocol": "TCP"}}}})
	headless := &corev1.Service{ObjectMeta: at("shop", "db"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 5432}}}}
	backends := slice("db-1", "endpointslice-controller.k8s.io")
	backends.Labels = map[string]string{discoveryv1.LabelServiceName: "db"}
	p.make(p.member,
		&corev1.Node{ObjectMeta: labelled("", "n1", map[string]string{submarinerv1.LabelGateway: "true"}), Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}},
		&coordinationv1.Lease{ObjectMeta: at(operatorNS, "submariner-gateway-lock"), Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("n1"), RenewTime: ptr.To(metav1.NowMicro())}},
		u("submariner.io/v1alpha1", "Submariner", operatorNS, "submariner", map[string]any{"spec": map[string]any{"clusterID": "c1", "globalCIDR": "242.0.0.0/16",
			"clustersetIPCIDR": "243.0.0.0/20", "clustersetIPEnabled": true, "clusterCIDR": "10.7.0.0/16", "serviceCIDR": "10.77.0.0/16", "natEnabled": false}}),
		&corev1.ConfigMap{ObjectMeta: at("kube-system", "coredns"), Data: map[string]string{"Corefile": lighthouse + corefile}},
		&corev1.ConfigMap{ObjectMeta: at(operatorNS, "somebodys")},
		&corev1.Service{ObjectMeta: at("shop", "web"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, headless, internal, pod,
		u("multicluster.x-k8s.io/v1beta1", "ServiceExport", "shop", "web", map[string]any{}), u("multicluster.x-k8s.io/v1beta1", "ServiceExport", "shop", "db", map[string]any{}),
		imported, users, slice("web-x1", "lighthouse-agent.submariner.io"), slice("web-x2", "somebody"),
		ingress("web", "242.0.255.254", submarinerv1.ClusterIPService, "web"), db,
		&submarinerv1.ClusterGlobalEgressIP{ObjectMeta: at("", "cluster-egress.submariner.io"), Spec: submarinerv1.ClusterGlobalEgressIPSpec{NumGlobalIPs: ptr.To(2)},
			Status: submarinerv1.GlobalEgressIPStatus{AllocatedIPs: []string{"242.0.0.5", "242.0.0.6"}, Conditions: conditions}},
		&submarinerv1.GlobalEgressIP{ObjectMeta: at("shop", "egress"), Spec: submarinerv1.GlobalEgressIPSpec{NumberOfIPs: ptr.To(1)},
			Status: submarinerv1.GlobalEgressIPStatus{AllocatedIPs: []string{"242.0.0.1"}, Conditions: conditions}})
	backends.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.7.0.9"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "db-0", UID: pod.UID}}}
	p.make(p.member, backends)
}

// kubelet reports all workloads of the cluster as running and nodes as clean, and ends the pods of
// DaemonSets that are gone.
func (p *predecessor) kubelet(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		var deployments appsv1.DeploymentList
		var sets appsv1.DaemonSetList
		var pods corev1.PodList
		for _, list := range []client.ObjectList{&deployments, &sets, &pods} {
			_ = p.member.List(ctx, list) // again in the next round
		}
		alive := map[string]bool{}
		for i := range sets.Items {
			d := &sets.Items[i]
			alive[d.Name] = d.DeletionTimestamp == nil
			running := appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberReady: 1, NumberAvailable: 1}
			if !equality.Semantic.DeepEqual(running, d.Status) {
				d.Status = running
				_ = p.member.Status().Update(ctx, d) // a conflict: again in the next round
			}
			for _, c := range d.Spec.Template.Spec.InitContainers {
				p.runInit(ctx, d, c.Name)
			}
		}
		for i := range deployments.Items {
			d := &deployments.Items[i]
			n := ptr.Deref(d.Spec.Replicas, 1)
			running := appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
			if !equality.Semantic.DeepEqual(running, d.Status) {
				d.Status = running
				_ = p.member.Status().Update(ctx, d) // likewise
			}
		}
		for i := range pods.Items {
			if o := &pods.Items[i]; o.Namespace == operatorNS && !alive[o.Labels["app"]] {
				_ = p.member.Delete(ctx, o, client.GracePeriodSeconds(0)) // likewise, or it is gone
			}
		}
	}, 100*time.Millisecond)
}

// runInit reports a pod of a DaemonSet on each node, in which an init container has succeeded.
func (p *predecessor) runInit(ctx context.Context, d *appsv1.DaemonSet, container string) {
	nodes := &corev1.NodeList{}
	_ = p.member.List(ctx, nodes) // none: again in the next round
	for _, n := range nodes.Items {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-" + n.Name, Labels: d.Spec.Template.Labels},
			Spec: corev1.PodSpec{NodeName: n.Name, TerminationGracePeriodSeconds: new(int64), Containers: []corev1.Container{{Name: "sleep", Image: "sleep"}}}}
		if p.member.Create(ctx, pod) != nil {
			continue // it exists
		}
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		_ = p.member.Status().Update(ctx, pod) // the test waits in vain, or has ended
	}
}

func (p *predecessor) submariner(args ...string) []string {
	return append([]string{"migrate", "submariner", "--context", "g1", "--broker-context", "hub", "--broker-namespace", oldBroker}, args...)
}

// killer is the output of a command that ends with the first line that contains one of the words and was not seen before.
type killer struct {
	mu   sync.Mutex
	seen map[string]bool
	at   []string
	kill context.CancelFunc
	text bytes.Buffer
}

func (k *killer) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, word := range k.at {
		if k.kill != nil && !k.seen[word] && strings.Contains(string(b), "  "+word) {
			k.seen[word] = true
			k.kill()
			k.kill = nil
			k.at = append(k.at, "never")
		}
	}
	return k.text.Write(b)
}

var _ io.Writer = &killer{}

// addresses are the global IPs of all objects, and the allocations to them.
func (p *predecessor) addresses() (shown, allocated map[string]string) {
	p.Helper()
	shown, allocated = map[string]string{}, map[string]string{}
	var ingress submarinerv1.GlobalIngressIPList
	var cluster submarinerv1.ClusterGlobalEgressIPList
	var egress submarinerv1.GlobalEgressIPList
	var claims pelagov1alpha1.GlobalAddressList
	for _, list := range []client.ObjectList{&ingress, &cluster, &egress, &claims} {
		if err := p.member.List(p.Context(), list); err != nil {
			p.Fatal(err)
		}
	}
	for _, g := range ingress.Items {
		shown[g.Name] = g.Status.AllocatedIP
	}
	for _, g := range cluster.Items {
		shown[g.Name] = strings.Join(g.Status.AllocatedIPs, " ")
	}
	for _, g := range egress.Items {
		shown[g.Name] = strings.Join(g.Status.AllocatedIPs, " ")
	}
	for _, a := range claims.Items {
		allocated[a.Spec.IP] = fmt.Sprintf("%s %s", a.Spec.Owner.Kind, a.Spec.Owner.Name)
	}
	return shown, allocated
}

func (p *predecessor) get(o client.Object, namespace, name string) error {
	return p.member.Get(p.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
}

// exists asserts which of the objects, by their names in a line, are there.
func (p *predecessor) exists(want bool, kind client.Object, namespace string, names ...string) {
	p.Helper()
	for _, name := range names {
		if err := p.get(kind, namespace, name); (err == nil) != want || client.IgnoreNotFound(err) != nil {
			p.Errorf("%T %s/%s: %v; want it there: %t", kind, namespace, name, err, want)
		}
	}
}

func TestMigrateSubmariner(t *testing.T) {
	t.Parallel()
	p := newPredecessor(t)
	file := "--hub=" + p.infoFile()
	p.fails(t, "--hub is required", p.submariner("--switch")...)
	p.fails(t, "give --prepare or --switch", p.submariner("--dry-run")...)
	p.fails(t, "write -- before the flags of join", p.submariner(file, "--switch", "more")...)
	p.fails(t, "was not switched", p.submariner("--back")...)
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNS, Name: "submariner-gateway-lock"}}
	stop := apiserver.Renew(t, p.member, held)
	p.fails(t, "replace it with `pelago migrate submariner`", p.join("--clusterid", "c1")...)
	stop()
	if out := p.must(t, p.submariner(file, "--switch", "--dry-run")...); !strings.Contains(out, "disconnect") || !strings.Contains(out, "none") {
		t.Errorf("--dry-run prints\n%s", out)
	}
	p.exists(false, &corev1.Namespace{}, "", manifests.SystemNamespace)

	shown, _ := p.addresses2()
	t.Log(p.must(t, p.submariner(file, "--prepare")...))
	p.exists(true, &appsv1.DaemonSet{}, operatorNS, "submariner-gateway")
	p.exists(true, &appsv1.DaemonSet{}, manifests.SystemNamespace, "pelago-migrate")
	p.exists(false, &appsv1.DaemonSet{}, manifests.SystemNamespace, "pelago-node")
	p.asBefore()
	at := &submarinerv1.Cluster{}
	if err := p.hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "c1"}, at); err != nil || !slices.Equal(at.Spec.GlobalCIDR, []string{"242.0.0.0/16"}) {
		t.Errorf("the hub has %v of c1: %v", at.Spec, err)
	}

	// Killed wherever a step begins, and within some.
	k := &killer{seen: map[string]bool{}, at: []string{"register:", "pull:", "keep:", "stop:", "Scaling Deployment " + operatorNS + "/submariner-lighthouse-agent", "adopt:", "unplug:",
		"disconnect:", "Connections to other clusters end", "clean:", "install:", "Installing admission policies, rights", "start:", "finish:"}}
	words := len(k.at)
	for len(k.seen) < words {
		ctx, cancel := context.WithCancel(t.Context())
		k.kill, k.at = cancel, k.at[:words]
		before := len(k.seen)
		cmd := root("pelago")
		cmd.SetArgs(append(p.submariner(file, "--switch"), "--kubeconfig", p.kubeconfig))
		cmd.SetOut(k)
		cmd.SetErr(k)
		err := cmd.ExecuteContext(ctx)
		cancel()
		if err == nil || len(k.seen) == before {
			t.Fatalf("killed %d times, %v; it ended with %v\n%s", before, slices.Sorted(maps.Keys(k.seen)), err, &k.text)
		}
	}
	out := p.must(t, p.submariner(file, "--switch")...)
	t.Log(out)
	if strings.Contains(out, "warning: ") && strings.Contains(out, "gets another") {
		t.Errorf("addresses are lost:\n%s", out)
	}
	if out := p.must(t, p.submariner(file, "--switch")...); !strings.Contains(out, "has been switched") {
		t.Errorf("again it prints\n%s", out)
	}
	p.switched(shown)

	t.Log(p.must(t, p.submariner("--back")...))
	p.asBefore()
	if after, _ := p.addresses2(); !cmp.Equal(shown, after) {
		t.Errorf("addresses after the way back: %s", cmp.Diff(shown, after))
	}
	p.exists(false, &corev1.Namespace{}, "", manifests.SystemNamespace)
	p.fails(t, "was not switched", p.submariner("--back")...)
}

// addresses2 is addresses where Pelago's definitions may be missing.
func (p *predecessor) addresses2() (shown, allocated map[string]string) {
	p.Helper()
	if err := p.get(&apiextensionsv1.CustomResourceDefinition{}, "", "globaladdresses.pelago.io"); apierrors.IsNotFound(err) {
		crds, err := manifests.MemberCRDs()
		if err != nil {
			p.Fatal(err)
		}
		i := slices.IndexFunc(crds, func(u *unstructured.Unstructured) bool { return u.GetName() == "globaladdresses.pelago.io" })
		crds[i].SetLabels(map[string]string{manifests.LabelCRDRevision: "1"})
		p.make(p.member, crds[i])
		await.True(p, "GlobalAddress is served", func() bool {
			p.member = open(p.T, p.clusterset.member)
			return p.member.List(p.Context(), &pelagov1alpha1.GlobalAddressList{}) == nil
		})
	}
	return p.addresses()
}

// asBefore asserts that Submariner is as newPredecessor has made it, as far as its operator does not make it again.
func (p *predecessor) asBefore() {
	p.Helper()
	for name, spec := range p.before {
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := p.get(d, "", name); err != nil {
			p.Error(err)
		} else if diff := cmp.Diff(spec, any(d.Spec)); diff != "" && strings.HasSuffix(name, ".submariner.io") {
			p.Errorf("definition %s: -before +now\n%s", name, diff)
		} else if strings.HasSuffix(name, ".submariner.io") && d.Labels[manifests.LabelCRDRevision] != "" {
			p.Errorf("definition %s has the label of Pelago", name)
		}
	}
	for _, name := range []string{"submariner-operator", "submariner-lighthouse-agent"} {
		d := &appsv1.Deployment{}
		if err := p.get(d, operatorNS, name); err != nil || *d.Spec.Replicas != 1 || d.Annotations[migrate.AnnotationSubmarinerReplicas] != "" {
			p.Errorf("Deployment %s: %v, %v", name, d.Spec.Replicas, err)
		}
	}
	for _, name := range []string{"web", "pod-db-0"} {
		g := &submarinerv1.GlobalIngressIP{}
		if err := p.get(g, "shop", name); err != nil || g.Labels[pelagov1alpha1.LabelManagedBy] != "" || len(g.OwnerReferences) > 0 {
			p.Errorf("GlobalIngressIP %s: labels %v, owners %v, %v", name, g.Labels, g.OwnerReferences, err)
		}
	}
	s := &corev1.Service{}
	if err := p.get(s, "shop", "submariner-abc"); err != nil || !slices.Equal(s.Spec.ExternalIPs, []string{"242.0.255.254"}) || len(s.Finalizers) != 1 {
		p.Errorf("the internal Service: %v %v, %v", s.Spec.ExternalIPs, s.Finalizers, err)
	}
	p.others()
}

// others asserts that what is not Submariner's is there.
func (p *predecessor) others() {
	p.Helper()
	p.exists(true, &corev1.ConfigMap{}, operatorNS, "somebodys")
	p.exists(true, &discoveryv1.EndpointSlice{}, "shop", "web-x2", "db-1")
	p.exists(true, &corev1.Service{}, "shop", "web", "db")
	p.exists(true, &appsv1.Deployment{}, operatorNS, "submariner-lighthouse-coredns")
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("submariner.io/v1alpha1")
	u.SetKind("Submariner")
	p.exists(true, u, operatorNS, "submariner")
	for _, name := range []string{"web", "db"} {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("multicluster.x-k8s.io/v1beta1")
		u.SetKind("ServiceExport")
		p.exists(true, u, "shop", name)
	}
	u.SetAPIVersion("multicluster.x-k8s.io/v1beta1")
	u.SetKind("ServiceImport")
	if err := p.get(u, "shop", "users"); err != nil || len(u.GetLabels()) > 0 || len(u.GetAnnotations()) > 0 {
		p.Errorf("a ServiceImport of a user: %v %v, %v", u.GetLabels(), u.GetAnnotations(), err)
	}
}

// switched asserts the state after the switch, with the agent's controllers of addresses and ingress running.
func (p *predecessor) switched(shown map[string]string) {
	p.Helper()
	p.exists(false, &appsv1.DaemonSet{}, operatorNS, "submariner-globalnet", "submariner-gateway", "submariner-routeagent", "submariner-metrics-proxy")
	p.exists(false, &appsv1.DaemonSet{}, manifests.SystemNamespace, "pelago-migrate")
	p.exists(true, &appsv1.DaemonSet{}, manifests.SystemNamespace, "pelago-node")
	p.exists(false, &corev1.Service{}, "shop", "submariner-abc")
	p.exists(false, &discoveryv1.EndpointSlice{}, "shop", "web-x1")
	p.others()
	for _, name := range []string{"submariner-operator", "submariner-lighthouse-agent"} {
		d := &appsv1.Deployment{}
		if err := p.get(d, operatorNS, name); err != nil || *d.Spec.Replicas != 0 || d.Annotations[migrate.AnnotationSubmarinerReplicas] != "1" {
			p.Errorf("Deployment %s: %d replicas, annotations %v, %v", name, *d.Spec.Replicas, d.Annotations, err)
		}
	}
	cm := &corev1.ConfigMap{}
	if err := p.get(cm, "kube-system", "coredns"); err != nil || cm.Data["Corefile"] != corefile {
		p.Errorf("Corefile: %v\n%s", err, cm.Data["Corefile"])
	}
	var endpoints submarinerv1.EndpointList
	if err := p.hub.List(p.Context(), &endpoints, client.InNamespace(oldBroker)); err != nil || len(endpoints.Items) != 1 || endpoints.Items[0].Spec.ClusterID != "c2" {
		p.Errorf("Submariner's broker has %v: %v", endpoints.Items, err)
	}
	// An Endpoint as the agent writes it, without fields that Submariner's definition requires.
	e := &submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: "c1-n1"}, Spec: submarinerv1.EndpointSpec{
		ClusterID: "c1", CableName: "x", Subnets: []string{"242.0.0.0/16"}, PrivateIP: "172.18.0.3", Backend: "libreswan"}}
	if err := p.member.Create(p.Context(), e); err != nil {
		p.Error(err)
	}

	// A service that is exported later does not get an address that Submariner has allocated.
	p.make(p.member, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "aaa"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	later := &unstructured.Unstructured{}
	later.SetAPIVersion("multicluster.x-k8s.io/v1beta1")
	later.SetKind("ServiceExport")
	later.SetNamespace("shop")
	later.SetName("aaa")
	p.make(p.member, later)
	global := []netip.Prefix{netip.MustParsePrefix("242.0.0.0/16")}
	stop := apiserver.Manager{Scheme: p.member.Scheme(), Setup: []func(ctrl.Manager) error{
		func(m ctrl.Manager) error { return ipam.SetupAddresses(m, ipam.AddressOptions{GlobalCIDR: global}) },
		func(m ctrl.Manager) error {
			return services.SetupIngress(m, services.IngressOptions{GlobalCIDR: global})
		},
	}}.Run(p, p.clusterset.member)
	want := maps.Clone(shown)
	want["aaa"] = "242.0.0.2"
	await.Equal(p, fmt.Sprint(want), func() string { shown, _ := p.addresses(); return fmt.Sprint(shown) })
	await.True(p, "the agent has written every status", func() bool {
		g, c, n := &submarinerv1.GlobalIngressIP{}, &submarinerv1.ClusterGlobalEgressIP{}, &submarinerv1.GlobalEgressIP{}
		for name, o := range map[string]client.Object{"pod-db-0": g, "cluster-egress.submariner.io": c, "egress": n} {
			namespace := "shop"
			if o == client.Object(c) {
				namespace = ""
			}
			if err := p.get(o, namespace, name); err != nil {
				p.Fatal(err)
			}
		}
		return len(g.OwnerReferences) == 1 && len(g.Status.Conditions) == 1 && len(c.Status.Conditions) == 1 && len(n.Status.Conditions) == 1 &&
			meta.FindStatusCondition(c.Status.Conditions, "Allocated").ObservedGeneration == c.Generation
	})
	stop()
	final, allocated := p.addresses()
	if diff := cmp.Diff(want, final); diff != "" {
		p.Errorf("addresses: -want +got\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"242.0.255.254": "GlobalIngressIP web", "242.0.255.250": "GlobalIngressIP pod-db-0", "242.0.0.5": "ClusterGlobalEgressIP cluster-egress.submariner.io",
		"242.0.0.6": "ClusterGlobalEgressIP cluster-egress.submariner.io", "242.0.0.1": "GlobalEgressIP egress", "242.0.0.2": "GlobalIngressIP aaa",
		"243.0.0.77": mcs.ServiceImportKindName + " web"}, allocated); diff != "" {
		p.Errorf("allocations: -want +got\n%s", diff)
	}
}
