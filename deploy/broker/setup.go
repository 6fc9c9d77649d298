package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// CredentialLife is the validity of a broker-info.subm.
const CredentialLife = 24 * time.Hour

// Clusterset is the settings that all members share, stored in the ConfigMap pelago-clusterset.
type Clusterset struct {
	// Mode is submariner or mcs.
	Mode string
	// HubID is the UID of the hub's namespace kube-system.
	HubID string
	// CustomDomains are DNS zones in addition to clusterset.local.
	CustomDomains []string
	// Components is what the clusterset is for: connectivity, service-discovery.
	Components []string
	// Fabric is the range of the nodes' addresses between clusters: a /8 that config.CheckFabric
	// accepts.
	Fabric netip.Prefix
	// ClusterRanges are where clusters without globalnet may have ranges, beside spec.PrivateRanges.
	ClusterRanges []netip.Prefix
	// MemberObjects is how many ServiceContributions, and how many EndpointSlices, the hub takes of
	// each member; 0: the default.
	MemberObjects uint64
	// BrokerURL is the URL that deploy-broker writes into its file, and that members follow; empty:
	// that of the kubeconfig, and members keep theirs.
	BrokerURL string
	// CA are the CAs of the hub that members trust, PEM.
	CA []byte
	// AutoAccept: members need no administrator's `pelago clusters accept`; AutoAcceptNetwork: not for
	// the network.
	AutoAccept, AutoAcceptNetwork bool
	// Allowed are all ranges that the hub has written as allowed; empty at a hub of a release that does
	// not know them.
	Allowed []netip.Prefix
	// Asks: a member that registers has to be marked as not approved. False at a hub of a release that
	// does not know the mark.
	Asks bool
	// ClusterSetIPs: exported services get a ClusterSetIP unless their ServiceExport sets
	// otherwise; in mode mcs they always do.
	ClusterSetIPs bool
	// Hub are the addresses of the hub's API server, as far as it is known at deploy-broker.
	Hub []netip.Addr
}

// Keys of the ConfigMap pelago-clusterset.
const (
	keyFabric = "fabric-cidr"
	// keyAutoAccept is read by the policies pelago-member-clusters-unapproved and
	// pelago-clusters-unapproved, keyAutoAcceptNetwork by the latter.
	keyAutoAccept        = "auto-accept"
	keyAutoAcceptNetwork = "auto-accept-network"
	keyClusterSetIPs     = "enable-clusterset-ip"
	// keyHub is read by the policy pelago-clusters-hub.
	keyHub = "hub-addresses"
)

// data is the ConfigMap's data.
func (s Clusterset) data() map[string]string {
	return map[string]string{
		"mode":           s.Mode,
		"custom-domains": strings.Join(s.CustomDomains, ","),
		"components":     strings.Join(s.Components, ","),
		keyFabric:        s.Fabric.String(),
		keyHub:           joinAddresses(s.Hub),
		keyClusterSetIPs: strconv.FormatBool(s.ClusterSetIPs),

		keyAutoAccept:        strconv.FormatBool(s.AutoAccept),
		keyAutoAcceptNetwork: strconv.FormatBool(s.AutoAcceptNetwork),

		config.KeySetHubID:         s.HubID,
		config.KeySetServer:        s.BrokerURL,
		config.KeySetCA:            string(s.CA),
		config.KeySetClusterRanges: strings.Join(texts(append(spec.PrivateRanges(), s.ClusterRanges...)), ","),
		config.KeySetMemberObjects: strconv.FormatUint(cmp.Or(s.MemberObjects, config.DefaultMemberObjects), 10),
	}
}

func joinAddresses(addresses []netip.Addr) string {
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// HubAddresses are the addresses of the API server: those that its URLs lead to and those that it
// reports as its own. Loopback addresses, which no cluster can have, are left out.
func HubAddresses(ctx context.Context, hub client.Client, servers ...string) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil {
			return nil, fmt.Errorf("read the hub's URL %q: %w", server, err)
		}
		// The name may resolve in the members' networks only. They resolve it themselves as well
		// (control/agent/peering).
		found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()) // a name of the members' networks only: none
		all = append(all, found...)
	}
	var list discoveryv1.EndpointSliceList
	if err := hub.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}); err != nil {
		return nil, fmt.Errorf("list the addresses of the hub's API servers: %w", err)
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					all = append(all, a)
				}
			}
		}
	}
	var out []netip.Addr
	for _, a := range all {
		if a = a.Unmap().WithZone(""); !a.IsLoopback() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// ReadClusterset reads the ConfigMap pelago-clusterset.
func ReadClusterset(ctx context.Context, hub client.Client, namespace string) (Clusterset, error) {
	set, err := readClusterset(ctx, hub, namespace)
	if err == nil && !set.Fabric.IsValid() {
		err = fmt.Errorf("key %s of ConfigMap %s/%s at the hub is no range of nodes' addresses: run `pelago deploy-broker` there again, which writes it",
			keyFabric, namespace, ClustersetConfigMap)
	}
	return set, err
}

// readClusterset leaves out a fabric that is not valid.
func readClusterset(ctx context.Context, hub client.Client, namespace string) (Clusterset, error) {
	cm := &corev1.ConfigMap{}
	if err := hub.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ClustersetConfigMap}, cm); err != nil {
		return Clusterset{}, fmt.Errorf("get ConfigMap %s/%s at the hub: %w", namespace, ClustersetConfigMap, err)
	}
	split := func(key string) []string {
		return strings.FieldsFunc(cm.Data[key], func(r rune) bool { return r == ',' || r == ' ' })
	}
	set := Clusterset{
		Mode: cm.Data["mode"], HubID: cm.Data[config.KeySetHubID], CustomDomains: split("custom-domains"), Components: split("components"),
		BrokerURL: cm.Data[config.KeySetServer], CA: []byte(cm.Data[config.KeySetCA]), AutoAccept: cm.Data[keyAutoAccept] == "true",
		AutoAcceptNetwork: cm.Data[keyAutoAcceptNetwork] == "true", ClusterSetIPs: cm.Data[keyClusterSetIPs] == "true",
	}
	_, knows := cm.Data[keyAutoAcceptNetwork]
	set.Asks = knows && Plan{set: set}.Asks()
	if text := cm.Data[config.KeySetMemberObjects]; text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return Clusterset{}, fmt.Errorf("read key %s of ConfigMap %s/%s at the hub: %w", config.KeySetMemberObjects, namespace, ClustersetConfigMap, err)
		}
		set.MemberObjects = n
	}
	private := spec.PrivateRanges()
	for _, text := range split(config.KeySetClusterRanges) {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			return Clusterset{}, fmt.Errorf("read key %s of ConfigMap %s/%s at the hub: %w", config.KeySetClusterRanges, namespace, ClustersetConfigMap, err)
		}
		set.Allowed = append(set.Allowed, r)
		if !slices.Contains(private, r) {
			set.ClusterRanges = append(set.ClusterRanges, r)
		}
	}
	for _, text := range split(keyHub) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return Clusterset{}, fmt.Errorf("read key %s of ConfigMap %s/%s at the hub: %w", keyHub, namespace, ClustersetConfigMap, err)
		}
		set.Hub = append(set.Hub, a)
	}
	if fabric, err := netip.ParsePrefix(cm.Data[keyFabric]); err == nil && config.CheckFabric(fabric) == nil {
		set.Fabric = fabric
	}
	return set, nil
}

// From makes what Setup writes, except for what it finds at the hub, and an empty book.
func From(b spec.Broker) (Clusterset, Book, error) {
	if err := spec.Join(b.Validate()); err != nil {
		return Clusterset{}, Book{}, err
	}
	set := Clusterset{Mode: b.Mode, CustomDomains: b.CustomDomains, Components: b.Components, Fabric: b.FabricCIDR, BrokerURL: b.BrokerURL,
		ClusterRanges: b.ClusterRanges, MemberObjects: b.MemberObjects, AutoAccept: b.AutoAccept, AutoAcceptNetwork: b.AutoAcceptNetwork, ClusterSetIPs: b.ClustersetIPEnabled}
	if _, err := NewBook(b.GlobalnetEnabled, b.GlobalnetCIDRRange, MinClusterSize); err != nil {
		return set, Book{}, spec.Within("globalnetCIDRRange", err)
	}
	book, err := NewBook(b.GlobalnetEnabled, b.GlobalnetCIDRRange, b.GlobalnetClusterSize)
	if err != nil {
		return set, book, spec.Within("defaultGlobalnetClusterSize", err)
	}
	book, err = book.WithClusterSetIPs(b.ClustersetIPCIDRRange)
	return set, book, spec.Within("clustersetIPCIDRRange", err)
}

// Spec are the settings that have been written.
func Spec(set Clusterset, book Book) spec.Broker {
	b := spec.DefaultBroker()
	b.Mode, b.CustomDomains, b.Components, b.BrokerURL, b.AutoAccept = set.Mode, set.CustomDomains, set.Components, set.BrokerURL, set.AutoAccept
	b.ClusterRanges, b.MemberObjects = set.ClusterRanges, cmp.Or(set.MemberObjects, b.MemberObjects)
	b.AutoAcceptNetwork, b.ClustersetIPEnabled, b.GlobalnetEnabled = set.AutoAcceptNetwork, set.ClusterSetIPs, book.Globalnet
	if book.ClusterSetIPs.IsValid() {
		b.ClustersetIPCIDRRange = book.ClusterSetIPs
	}
	if set.Fabric.IsValid() {
		b.FabricCIDR = set.Fabric
	}
	if book.Globalnet {
		b.GlobalnetCIDRRange, b.GlobalnetClusterSize = book.Range, book.ClusterSize
	}
	return b
}

// Former returns the settings and the book that an earlier Setup has written; ok: there was one.
func Former(ctx context.Context, hub client.Client) (set Clusterset, book Book, ok bool, err error) {
	if set, err = readClusterset(ctx, hub, manifests.BrokerNamespace); err == nil {
		_, book, err = readBook(ctx, hub, manifests.BrokerNamespace)
	}
	if apierrors.IsNotFound(err) {
		return Clusterset{}, Book{}, false, nil
	}
	return set, book, err == nil, err
}

// checkRegistered refuses another mode, and another key unless psk is nil, while clusters are
// registered: they keep what they have joined with.
func checkRegistered(ctx context.Context, hub client.Client, set Clusterset, psk []byte) error {
	have, book, ok, err := Former(ctx, hub)
	n := len(book.Clusters)
	if err != nil || !ok || n == 0 {
		return err
	}
	if have.Mode != set.Mode {
		return spec.Refuse("mode", "change the mode from %s to %s: %d clusters are registered with the former: use spec.mode %s, "+
			"or remove the clusters first with `pelago unjoin`", have.Mode, set.Mode, n, have.Mode)
	}
	secret := &corev1.Secret{}
	err = hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: PSKSecret}, secret)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Secret %s/%s at the hub: %w", manifests.BrokerNamespace, PSKSecret, err)
	}
	if key := secret.Data["psk"]; psk != nil && len(key) > 0 && !bytes.Equal(key, psk) {
		return fmt.Errorf("replace the pre-shared key: %d clusters are registered with the present one, and could not connect to later ones: "+
			"leave --ipsec-psk-from out, or remove the clusters first with `pelago unjoin`", n)
	}
	return nil
}

// Setup writes the ConfigMaps and the key of the clusterset. The book is kept if its settings are
// those of want, the key if psk is nil. While clusters are registered, neither can change, nor can
// the mode and the fabric. It returns the key.
func Setup(ctx context.Context, hub client.Client, want Book, set Clusterset, psk []byte) (*corev1.Secret, error) {
	if err := errors.Join(config.CheckFabric(set.Fabric), checkRegistered(ctx, hub, set, psk), setupFabric(ctx, hub, set.Fabric, want.ClusterSetIPs)); err != nil {
		return nil, err
	}
	if err := setupBook(ctx, hub, want); err != nil {
		return nil, err
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ClustersetConfigMap, Namespace: manifests.BrokerNamespace}}
	if err := manifests.Put(ctx, hub, cm, func() { cm.Data = set.data() }); err != nil {
		return nil, err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: PSKSecret, Namespace: manifests.BrokerNamespace}}
	err := manifests.Put(ctx, hub, secret, func() {
		if psk == nil && len(secret.Data["psk"]) > 0 {
			return
		}
		key := psk
		if key == nil {
			key = make([]byte, 48)
			rand.Read(key) // never fails
		}
		secret.Data = map[string][]byte{"psk": key}
	})
	return secret, err
}

func setupBook(ctx context.Context, hub client.Client, want Book) error {
	data, err := want.Data()
	if err != nil {
		return err
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: AllocationConfigMap, Namespace: manifests.BrokerNamespace}, Data: data}
	err = hub.Create(ctx, cm)
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return wrap(err, "create ConfigMap %s", AllocationConfigMap)
	}
	_, have, err := readBook(ctx, hub, manifests.BrokerNamespace)
	if err != nil {
		return err
	}
	sameGlobalnet := have.Globalnet == want.Globalnet && have.Range == want.Range && have.ClusterSize == want.ClusterSize
	if sameGlobalnet && have.ClusterSetIPs == want.ClusterSetIPs {
		return nil
	}
	cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: AllocationConfigMap, Namespace: manifests.BrokerNamespace}}
	n := len(have.Clusters)
	switch {
	case n == 0:
		return manifests.Put(ctx, hub, cm, func() { cm.Data = data })
	case sameGlobalnet && !have.ClusterSetIPs.IsValid(): // the book of an earlier release
		return manifests.Put(ctx, hub, cm, func() { cm.Data[keyVIPRange] = data[keyVIPRange] })
	case sameGlobalnet:
		return spec.Refuse("clustersetIPCIDRRange", "change the range of ClusterSetIPs from %s to %s: %d clusters are registered with the former; use "+
			"spec.clustersetIPCIDRRange %s, or remove the clusters first with `pelago unjoin`", have.ClusterSetIPs, want.ClusterSetIPs, n, have.ClusterSetIPs)
	default:
		field := "globalnetEnabled"
		switch {
		case have.Globalnet != want.Globalnet:
		case have.Range != want.Range:
			field = "globalnetCIDRRange"
		default:
			field = "defaultGlobalnetClusterSize"
		}
		return spec.Refuse(field, "change globalnet from %s to %s: %d clusters are registered with the former; use the former flags, "+
			"or remove the clusters first with `pelago unjoin`", have.describe(), want.describe(), n)
	}
}

// setupFabric refuses a fabric or a range of ClusterSetIPs that overlaps ranges of registered
// clusters, and a change of the fabric while clusters are registered.
func setupFabric(ctx context.Context, hub client.Client, fabric, vips netip.Prefix) error {
	list := &submarinerv1.ClusterList{}
	if err := hub.List(ctx, list, client.InNamespace(manifests.BrokerNamespace)); err != nil {
		return fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	for i := range list.Items {
		ranges, err := rangesOf(&list.Items[i])
		if err != nil {
			return err
		}
		whose := fmt.Sprintf("cluster %q", list.Items[i].Name)
		if err := errors.Join(spec.Within("fabricCIDR", OutsideFabric(fabric, unnamed(ranges), whose)),
			spec.Within("clustersetIPCIDRRange", OutsideClusterSetIPs(vips, unnamed(ranges), whose))); err != nil {
			return err
		}
	}
	cm := &corev1.ConfigMap{}
	err := hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: ClustersetConfigMap}, cm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ConfigMap %s/%s at the hub: %w", manifests.BrokerNamespace, ClustersetConfigMap, err)
	}
	if have := cm.Data[keyFabric]; have != "" && have != fabric.String() && len(list.Items) > 0 {
		return spec.Refuse("fabricCIDR", "change the fabric range from %s to %s: %d clusters have joined with the former; use spec.fabricCIDR %s, "+
			"or remove the clusters first with `pelago unjoin`", have, fabric, len(list.Items), have)
	}
	return nil
}

func (b Book) describe() string {
	if !b.Globalnet {
		return "off"
	}
	return fmt.Sprintf("%s (%d addresses each)", b.Range, b.ClusterSize)
}

// Credential issues the token of a broker-info.subm and returns it as the Secret that the file
// carries.
func Credential(ctx context.Context, hub client.Client, ca []byte) (*corev1.Secret, error) {
	token, err := issue(ctx, hub, manifests.BrokerNamespace, manifests.RegistrarAccount, CredentialLife, nil)
	if err != nil {
		return nil, fmt.Errorf("issue a token for ServiceAccount %s: %w", manifests.RegistrarAccount, err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: manifests.RegistrarAccount, Namespace: manifests.BrokerNamespace},
		Data: map[string][]byte{
			corev1.ServiceAccountRootCAKey:    ca,
			corev1.ServiceAccountNamespaceKey: []byte(manifests.BrokerNamespace),
			corev1.ServiceAccountTokenKey:     []byte(token),
		},
	}, nil
}
