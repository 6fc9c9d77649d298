package check

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/rollout"
)

// Set is what was read of a clusterset.
type Set struct {
	Clusters []Cluster
	// Now is the time of this machine.
	Now time.Time
}

// Cluster is what was read of one API server: of a member, of a hub, or of both in one.
type Cluster struct {
	// Context is that of the kubeconfig.
	Context string
	// Err: nothing could be read.
	Err error
	// Member: Pelago has joined the cluster; Hub: it is a hub; Joining: it is to join; Hosting: it is
	// to be a hub.
	Member, Hub, Joining, Hosting bool
	// Broker: members of the network register at the hub.
	Broker bool
	Config config.Config

	// Version is that of Kubernetes.
	Version string
	// Skew is by how much the API server's clock is ahead of that of this machine, known to within
	// a second; Certificate is when its certificate ends, zero without TLS.
	Skew        time.Duration
	Certificate time.Time

	Nodes      []corev1.Node
	NodeLeases []coordinationv1.Lease
	Pods       []corev1.Pod // of the system namespace
	Components []rollout.Component
	Missing    string // why components are not known: one does not exist
	CRDs       []apiextensionsv1.CustomResourceDefinition
	Leases     []coordinationv1.Lease // of the system namespace

	// Of a member.
	Gateways    []submarinerv1.Gateway
	Health      map[string]view.Health // of gateways, as others observe them
	RouteAgents []submarinerv1.RouteAgent
	Indexes     []pelagov1alpha1.NodeIndex
	Peers       []pelagov1alpha1.Peer
	Own         []submarinerv1.Cluster
	Blocks      []pelagov1alpha1.PortBlock
	Addresses   []pelagov1alpha1.GlobalAddress
	Egress      []conditioned
	Ingress     []conditioned
	EgressIPs   int // that egress objects have
	Exports     []mcs.ServiceExport
	Imports     []mcs.ServiceImport
	Slices      map[client.ObjectKey][]discoveryv1.EndpointSlice // of exported Services
	DNS         []view.DNSState
	DNSMissing  string
	// Token is when the credential for the hub ends; zero: it does not.
	Token time.Time

	// Of a hub.
	Ready      []string // failed checks of /readyz
	Workloads  []clusterv1alpha1.Cluster
	Registered []submarinerv1.Cluster
	Following  []broker.Follower // members that do not use the announced address
	Works      []workv1alpha1.Work
	Bindings   []binding
	Policies   []propagation
	Overrides  []conditioned
	Quotas     []policyv1alpha1.FederatedResourceQuota
	Admission  []string // names of ValidatingAdmissionPolicies with a binding
	// Unrefused are policies that did not refuse a forbidden request, with the answer; nil: accepted.
	Unrefused map[string]error
	// Stored is the size of the store of the API server, in bytes; 0: not known.
	Stored float64

	// Of a cluster that is to join.
	Before before

	// Files are manifests, of Analyze.
	Files *files

	info   *broker.Info
	unread map[source]error
}

// Name is the id of the cluster; the context of one without.
func (c *Cluster) Name() string {
	if c.Config.ClusterID != "" {
		return c.Config.ClusterID
	}
	return c.Context
}

// conditioned is an object with conditions.
type conditioned struct {
	object     string
	conditions []metav1.Condition
}

// binding is one of either kind.
type binding struct {
	conditioned
	created time.Time
	policy  string // permanent id of its policy
}

// propagation is a propagation policy of either kind.
type propagation struct {
	conditioned
	created time.Time
	id      string // permanent id
}

// source is what a check needs, named for messages.
type source string

// Sources.
const (
	fromServer     source = "API server"
	fromNodes      source = "Nodes"
	fromPods       source = "pods of pelago-system"
	fromComponents source = "components in pelago-system"
	fromCRDs       source = "CustomResourceDefinitions"
	fromLeases     source = "Leases"
	fromGateways   source = "Gateways and RouteAgents"
	fromIndexes    source = "NodeIndexes"
	fromPeers      source = "Peers"
	fromOwn        source = "Cluster of submariner.io"
	fromAddresses  source = "PortBlocks, GlobalAddresses and global IPs"
	fromExports    source = "ServiceExports and EndpointSlices"
	fromImports    source = "ServiceImports"
	fromDNS        source = "configuration of the cluster's DNS"
	fromToken      source = "Secret submariner-broker-secret"
	fromReadyz     source = "/readyz"
	fromClusters   source = "Clusters at the hub"
	fromMembers    source = "Leases of members at the hub"
	fromWorks      source = "Works"
	fromBindings   source = "bindings"
	fromPolicies   source = "policies and quotas"
	fromAdmission  source = "ValidatingAdmissionPolicies"
	fromCanaries   source = "dry runs of forbidden requests"
	fromMetrics    source = "metrics of the API server"
	fromCNI        source = "DaemonSets and ConfigMaps of the CNI plugin"
	fromRanges     source = "ranges of pods and services"
	fromRights     source = "own rights"
)

// reader reads one source.
type reader struct {
	of   func(*Cluster) bool
	from source
	read func(context.Context, view.Member, *Cluster) error
}

func isMember(c *Cluster) bool { return c.Member && !c.Config.WorkloadsOnly }
func isHub(c *Cluster) bool    { return c.Hub }
func isJoining(c *Cluster) bool {
	return c.Joining
}

var readers = []reader{
	{func(c *Cluster) bool { return c.Member || c.Joining }, fromNodes, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Nodes, err = list[corev1.Node](ctx, m, &corev1.NodeList{})
		if err != nil {
			return err
		}
		c.NodeLeases, err = list[coordinationv1.Lease](ctx, m, &coordinationv1.LeaseList{}, client.InNamespace(corev1.NamespaceNodeLease))
		return err
	}},
	{isMember, fromPods, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Pods, err = list[corev1.Pod](ctx, m, &corev1.PodList{}, client.InNamespace(config.SystemNamespace))
		return err
	}},
	{func(c *Cluster) bool { return c.Member }, fromComponents, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Components, err = rollout.Installed(ctx, m.Typed, c.Config.WorkloadsOnly)
		if apierrors.IsNotFound(err) {
			c.Missing = err.Error()
			return nil
		}
		return err
	}},
	{func(c *Cluster) bool { return c.Member || c.Hub }, fromCRDs, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.CRDs, err = list[apiextensionsv1.CustomResourceDefinition](ctx, m, &apiextensionsv1.CustomResourceDefinitionList{})
		return err
	}},
	{func(c *Cluster) bool { return c.Member || c.Hub }, fromLeases, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Leases, err = list[coordinationv1.Lease](ctx, m, &coordinationv1.LeaseList{}, client.InNamespace(config.SystemNamespace))
		return err
	}},
	{isMember, fromGateways, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		system := client.InNamespace(config.SystemNamespace)
		if c.Gateways, err = list[submarinerv1.Gateway](ctx, m, &submarinerv1.GatewayList{}, system); err != nil {
			return err
		}
		if c.RouteAgents, err = list[submarinerv1.RouteAgent](ctx, m, &submarinerv1.RouteAgentList{}, system); err != nil {
			return err
		}
		c.Health, err = view.GatewayHealth(ctx, m.Client, c.Gateways, time.Now().Add(c.Skew))
		return err
	}},
	{isMember, fromIndexes, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Indexes, err = list[pelagov1alpha1.NodeIndex](ctx, m, &pelagov1alpha1.NodeIndexList{})
		return err
	}},
	{isMember, fromPeers, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Peers, err = list[pelagov1alpha1.Peer](ctx, m, &pelagov1alpha1.PeerList{})
		return err
	}},
	{isMember, fromOwn, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Own, err = list[submarinerv1.Cluster](ctx, m, &submarinerv1.ClusterList{}, client.InNamespace(config.SystemNamespace))
		c.Own = slices.DeleteFunc(c.Own, func(o submarinerv1.Cluster) bool { return o.Name != c.Config.ClusterID })
		return err
	}},
	{isMember, fromAddresses, readAddresses},
	{isMember, fromExports, readExports},
	{isMember, fromImports, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Imports, err = view.ListImports(ctx, m.Client)
		return err
	}},
	{isMember, fromDNS, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.DNS, c.DNSMissing, err = view.ReadDNS(ctx, m.Client, c.Config)
		return err
	}},
	{isMember, fromToken, readToken},
	{func(c *Cluster) bool { return c.Hub || c.Hosting }, fromReadyz, readReadyz},
	{isHub, fromClusters, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		if c.Workloads, err = list[clusterv1alpha1.Cluster](ctx, m, &clusterv1alpha1.ClusterList{}); err != nil {
			return err
		}
		c.Registered, err = list[submarinerv1.Cluster](ctx, m, &submarinerv1.ClusterList{}, client.InNamespace(manifests.BrokerNamespace))
		return err
	}},
	{func(c *Cluster) bool { return c.Broker }, fromMembers, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Following, err = broker.NotFollowing(ctx, m.Client, manifests.BrokerNamespace)
		return client.IgnoreNotFound(err) // a hub of an earlier release announces none
	}},
	{isHub, fromWorks, func(ctx context.Context, m view.Member, c *Cluster) (err error) {
		c.Works, err = list[workv1alpha1.Work](ctx, m, &workv1alpha1.WorkList{})
		return err
	}},
	{isHub, fromBindings, readBindings},
	{isHub, fromPolicies, readPolicies},
	{isHub, fromAdmission, func(ctx context.Context, m view.Member, c *Cluster) error {
		bindings, err := list[admissionv1.ValidatingAdmissionPolicyBinding](ctx, m, &admissionv1.ValidatingAdmissionPolicyBindingList{})
		if err != nil {
			return err
		}
		policies, err := list[admissionv1.ValidatingAdmissionPolicy](ctx, m, &admissionv1.ValidatingAdmissionPolicyList{})
		for _, p := range policies {
			if slices.ContainsFunc(bindings, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName == p.Name }) {
				c.Admission = append(c.Admission, p.Name)
			}
		}
		return err
	}},
	{isHub, fromCanaries, func(ctx context.Context, m view.Member, c *Cluster) error {
		_, err := m.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: workv1alpha2.GroupVersion.Group, Kind: "ResourceBinding"})
		c.Unrefused = manifests.Unrefused(ctx, m.Client, c.Broker, err == nil)
		return nil
	}},
	{func(c *Cluster) bool { return c.Hub || c.Hosting }, fromMetrics, readStored},
	{isJoining, fromCNI, readCNI},
	{isJoining, fromRanges, readRanges},
	{func(c *Cluster) bool { return c.Joining || c.Hosting }, fromRights, readRights},
}

// list returns the objects of a list; none of a kind that is not served.
func list[T any, L client.ObjectList](ctx context.Context, m view.Member, l L, opts ...client.ListOption) ([]T, error) {
	err := m.Client.List(ctx, l, opts...)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	items, err := meta.ExtractList(l)
	if err != nil {
		return nil, err
	}
	var out []T
	for _, item := range items {
		if p, ok := any(item).(*T); ok {
			out = append(out, *p)
		}
	}
	return out, nil
}

// maxReads bounds the sources that are read of a cluster at once.
const maxReads = 8

// Target is a cluster to read.
type Target struct {
	Context string
	Open    func() (view.Member, error)
	// Joining: the cluster is to join, the clusterset of Info if that is set; Hosting: it is to be a
	// hub.
	Joining, Hosting bool
	Info             *broker.Info
	// Nodes are facts that pods on the nodes have found, if any were run.
	Nodes []NodeFacts
}

// Read reads what the selected checks need of the clusters, in parallel, each for at most timeout.
// Contexts that are neither member nor hub are left out unless all is set.
func Read(ctx context.Context, targets []Target, timeout time.Duration, all bool, selected Selection) *Set {
	needed := map[source]bool{}
	for i := range table {
		if c := &table[i]; selected.has(c) {
			for _, from := range slices.Concat(c.needs, c.ofOthers) {
				needed[from] = true
			}
		}
	}
	s := &Set{Now: time.Now(), Clusters: make([]Cluster, len(targets))}
	var group errgroup.Group
	group.SetLimit(16)
	for i, t := range targets {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			done := make(chan Cluster, 1)
			go func() { done <- readCluster(ctx, t, needed) }()
			select {
			case s.Clusters[i] = <-done:
				return nil
			case <-ctx.Done():
			}
			select { // discovery has no context
			case s.Clusters[i] = <-done:
			case <-time.After(grace):
				s.Clusters[i] = Cluster{Context: t.Context, Joining: t.Joining, Hosting: t.Hosting, Err: errLate}
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil
	if !all {
		s.Clusters = slices.DeleteFunc(s.Clusters, func(c Cluster) bool { return c.Err == nil && !c.Member && !c.Hub && !c.Joining && !c.Hosting })
	}
	slices.SortStableFunc(s.Clusters, func(a, b Cluster) int { return strings.Compare(a.Name(), b.Name()) })
	return s
}

// readCluster reads one cluster. Sources that do not answer before the deadline are unread.
func readCluster(ctx context.Context, t Target, needed map[source]bool) Cluster {
	c := Cluster{Context: t.Context, Joining: t.Joining, Hosting: t.Hosting, info: t.Info, unread: map[source]error{}}
	c.Before.Nodes = t.Nodes
	m, err := t.Open()
	if err != nil {
		c.Err = err
		return c
	}
	if c.Config, err = member.Former(ctx, m.Client); err != nil {
		if ctx.Err() != nil || !apierrors.IsForbidden(err) && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			c.Err = timely(ctx, err)
			return c
		}
		c.unread[fromServer] = err
	}
	c.Member = c.Config.ClusterID != ""
	c.Hub, c.Broker, err = hubKind(ctx, m)
	if err != nil {
		c.Err = timely(ctx, err)
		return c
	}
	if err := readServer(ctx, m, &c); err != nil { // the others need the clock
		c.unread[fromServer] = timely(ctx, err)
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxReads)
	for _, r := range readers { // each sets fields of its own

		if !r.of(&c) || !needed[r.from] {
			continue
		}
		group.Go(func() error {
			if err := r.read(ctx, m, &c); err != nil {
				mu.Lock()
				defer mu.Unlock()
				c.unread[r.from] = timely(ctx, err)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil
	return c
}

// errLate: a cluster, or one of its sources, does not answer before the deadline.
var errLate = errors.New("no answer within the time for one cluster")

// grace is how long a cluster's requests may take to end after the deadline.
const grace = time.Second

// timely names the deadline where that is why a request failed.
func timely(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errLate
	}
	return err
}

// hubKind reports whether the API server is a hub, at which members register (broker), or which
// propagates.
func hubKind(ctx context.Context, m view.Member) (hub, broker bool, err error) {
	err = m.Client.Get(ctx, client.ObjectKey{Name: manifests.BrokerNamespace}, &corev1.Namespace{})
	if err == nil {
		return true, true, nil
	}
	if client.IgnoreNotFound(err) != nil && !apierrors.IsForbidden(err) {
		return false, false, fmt.Errorf("get Namespace %s: %w", manifests.BrokerNamespace, err)
	}
	_, err = m.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: clusterv1alpha1.GroupVersion.Group, Kind: "Cluster"}, clusterv1alpha1.GroupVersion.Version)
	if err != nil && !meta.IsNoMatchError(err) {
		return false, false, fmt.Errorf("find kind Cluster: %w", err)
	}
	return err == nil, false, nil
}

// readServer reads version, clock and certificate of the API server by one request.
func readServer(ctx context.Context, m view.Member, c *Cluster) error {
	if m.Config == nil {
		return nil
	}
	h, err := rest.HTTPClientFor(m.Config)
	if err != nil {
		return err
	}
	url, _, err := rest.DefaultServerUrlFor(m.Config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url.JoinPath("/version").String(), nil)
	if err != nil {
		return err
	}
	before := time.Now()
	answer, err := h.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	after := time.Now()
	if answer.TLS != nil {
		for _, cert := range answer.TLS.PeerCertificates[:min(1, len(answer.TLS.PeerCertificates))] {
			c.Certificate = notAfter(cert)
		}
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		c.Skew = skew(date, before, after)
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&v); err != nil {
		return fmt.Errorf("read /version: %w", err)
	}
	c.Version = v.GitVersion
	return nil
}

func notAfter(cert *x509.Certificate) time.Time { return cert.NotAfter }

// skew is by how much a clock is ahead that has shown date, whole seconds, between before and
// after; 0 if it may be right.
func skew(date, before, after time.Time) time.Duration {
	switch end := date.Add(time.Second); { // Date is cut off to the second
	case date.After(after):
		return date.Sub(after)
	case end.Before(before):
		return end.Sub(before)
	}
	return 0
}

func readAddresses(ctx context.Context, m view.Member, c *Cluster) (err error) {
	if c.Blocks, err = list[pelagov1alpha1.PortBlock](ctx, m, &pelagov1alpha1.PortBlockList{}); err != nil {
		return err
	}
	if c.Addresses, err = list[pelagov1alpha1.GlobalAddress](ctx, m, &pelagov1alpha1.GlobalAddressList{}); err != nil {
		return err
	}
	wide, err := list[submarinerv1.ClusterGlobalEgressIP](ctx, m, &submarinerv1.ClusterGlobalEgressIPList{})
	if err != nil {
		return err
	}
	for _, o := range wide {
		c.Egress = append(c.Egress, conditioned{"ClusterGlobalEgressIP " + o.Name, o.Status.Conditions})
		c.EgressIPs += len(o.Status.AllocatedIPs)
	}
	own, err := list[submarinerv1.GlobalEgressIP](ctx, m, &submarinerv1.GlobalEgressIPList{})
	if err != nil {
		return err
	}
	for _, o := range own {
		c.Egress = append(c.Egress, conditioned{"GlobalEgressIP " + o.Namespace + "/" + o.Name, o.Status.Conditions})
		c.EgressIPs += len(o.Status.AllocatedIPs)
	}
	ingress, err := list[submarinerv1.GlobalIngressIP](ctx, m, &submarinerv1.GlobalIngressIPList{})
	for _, o := range ingress {
		c.Ingress = append(c.Ingress, conditioned{"GlobalIngressIP " + o.Namespace + "/" + o.Name, o.Status.Conditions})
	}
	return err
}

// readExports reads the ServiceExports, in whichever version they are served, and the
// EndpointSlices of their Services.
func readExports(ctx context.Context, m view.Member, c *Cluster) error {
	mapping, err := m.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: mcs.GroupName, Kind: mcs.ServiceExportKindName})
	if meta.IsNoMatchError(err) {
		return nil // the CRD is missing, which another check reports
	}
	if err != nil {
		return err
	}
	exports := &unstructured.UnstructuredList{}
	exports.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := m.Client.List(ctx, exports); err != nil {
		return err
	}
	c.Slices = map[client.ObjectKey][]discoveryv1.EndpointSlice{}
	read := map[string]bool{}
	for i := range exports.Items {
		var e mcs.ServiceExport
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(exports.Items[i].Object, &e); err != nil {
			return fmt.Errorf("read ServiceExport %s/%s: %w", exports.Items[i].GetNamespace(), exports.Items[i].GetName(), err)
		}
		c.Exports = append(c.Exports, e)
		if read[e.Namespace] {
			continue
		}
		read[e.Namespace] = true
		all, err := list[discoveryv1.EndpointSlice](ctx, m, &discoveryv1.EndpointSliceList{}, client.InNamespace(e.Namespace), client.HasLabels{discoveryv1.LabelServiceName})
		if err != nil {
			return err
		}
		for _, s := range all {
			key := client.ObjectKey{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
			c.Slices[key] = append(c.Slices[key], s)
		}
	}
	return nil
}

// readToken reads when the credential for the hub ends, from its claims (RFC 7519). With a return
// token the member gets another one after that, until the return token ends.
func readToken(ctx context.Context, m view.Member, c *Cluster) error {
	secret := &corev1.Secret{}
	if err := m.Client.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: config.BrokerSecretName}, secret); err != nil {
		return err
	}
	expiry := func(key string) (time.Time, error) {
		parts := strings.Split(string(secret.Data[key]), ".")
		if len(parts) != 3 {
			return time.Time{}, fmt.Errorf("key %s is no JSON Web Token", key)
		}
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			return time.Time{}, fmt.Errorf("key %s is no JSON Web Token", key)
		}
		var claims struct {
			Expiry int64 `json:"exp"`
		}
		if err := json.Unmarshal(payload, &claims); err != nil || claims.Expiry == 0 {
			return time.Time{}, nil
		}
		return time.Unix(claims.Expiry, 0), nil
	}
	var err error
	if c.Token, err = expiry(config.KeyBrokerToken); err != nil {
		return err
	}
	if len(secret.Data[config.KeyReturnToken]) > 0 {
		if last, err := expiry(config.KeyReturnToken); err == nil && last.After(c.Token) {
			c.Token = last
		}
	}
	return nil
}

// readReadyz reads which checks of the API server fail, etcd among them.
func readReadyz(ctx context.Context, m view.Member, c *Cluster) error {
	if m.Config == nil {
		return nil
	}
	raw, err := m.Typed.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(ctx)
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			c.Ready = append(c.Ready, strings.TrimSpace(name))
		}
	}
	if len(c.Ready) > 0 {
		return nil
	}
	return err
}

// readStored reads the size of the store from the metrics, which few users may read: then it is not
// known.
func readStored(ctx context.Context, m view.Member, c *Cluster) error {
	if m.Config == nil {
		return nil
	}
	raw, err := m.Typed.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "apiserver_storage_size_bytes{") {
			continue
		}
		_, value, _ := strings.Cut(line, "} ") // without it: empty, which is no number
		// a value that cannot be read is not known
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			c.Stored = max(c.Stored, n)
		}
	}
	return err
}

func readBindings(ctx context.Context, m view.Member, c *Cluster) error {
	own, err := list[workv1alpha2.ResourceBinding](ctx, m, &workv1alpha2.ResourceBindingList{})
	if err != nil {
		return err
	}
	for _, b := range own {
		c.Bindings = append(c.Bindings, bindingOf("ResourceBinding "+b.Namespace+"/"+b.Name, &b.ObjectMeta, b.Status.Conditions))
	}
	wide, err := list[workv1alpha2.ClusterResourceBinding](ctx, m, &workv1alpha2.ClusterResourceBindingList{})
	for _, b := range wide {
		c.Bindings = append(c.Bindings, bindingOf("ClusterResourceBinding "+b.Name, &b.ObjectMeta, b.Status.Conditions))
	}
	return err
}

func bindingOf(title string, o *metav1.ObjectMeta, conditions []metav1.Condition) binding {
	return binding{conditioned{title, conditions}, o.CreationTimestamp.Time,
		cmp.Or(o.Labels[policyv1alpha1.LabelPropagationPolicyID], o.Labels[policyv1alpha1.LabelClusterPropagationPolicyID])}
}

func readPolicies(ctx context.Context, m view.Member, c *Cluster) error {
	own, err := list[policyv1alpha1.PropagationPolicy](ctx, m, &policyv1alpha1.PropagationPolicyList{})
	if err != nil {
		return err
	}
	for _, p := range own {
		c.Policies = append(c.Policies, propagation{conditioned{"PropagationPolicy " + p.Namespace + "/" + p.Name, p.Status.Conditions},
			p.CreationTimestamp.Time, p.Labels[policyv1alpha1.LabelPropagationPolicyID]})
	}
	wide, err := list[policyv1alpha1.ClusterPropagationPolicy](ctx, m, &policyv1alpha1.ClusterPropagationPolicyList{})
	if err != nil {
		return err
	}
	for _, p := range wide {
		c.Policies = append(c.Policies, propagation{conditioned{"ClusterPropagationPolicy " + p.Name, p.Status.Conditions},
			p.CreationTimestamp.Time, p.Labels[policyv1alpha1.LabelClusterPropagationPolicyID]})
	}
	overrides, err := list[policyv1alpha1.OverridePolicy](ctx, m, &policyv1alpha1.OverridePolicyList{})
	if err != nil {
		return err
	}
	for _, p := range overrides {
		c.Overrides = append(c.Overrides, conditioned{"OverridePolicy " + p.Namespace + "/" + p.Name, p.Status.Conditions})
	}
	wideOverrides, err := list[policyv1alpha1.ClusterOverridePolicy](ctx, m, &policyv1alpha1.ClusterOverridePolicyList{})
	if err != nil {
		return err
	}
	for _, p := range wideOverrides {
		c.Overrides = append(c.Overrides, conditioned{"ClusterOverridePolicy " + p.Name, p.Status.Conditions})
	}
	c.Quotas, err = list[policyv1alpha1.FederatedResourceQuota](ctx, m, &policyv1alpha1.FederatedResourceQuotaList{})
	return err
}
