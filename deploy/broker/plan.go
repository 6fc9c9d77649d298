package broker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Plan is how an API server becomes the hub of a clusterset, or changes its settings.
type Plan struct {
	// Changes are the settings that differ from those of an earlier run, one line each.
	Changes []string
	// PSK is the pre-shared key of the cables; nil: the present one, or a new one.
	PSK []byte
	// CA are CAs of the hub, PEM, besides that of the access to it; nil: those that were announced
	// before. Members trust the former and the next while the hub moves.
	CA []byte

	set  Clusterset
	book Book // empty
}

// Asks reports whether an administrator has to accept each cluster before others connect to it.
func (p Plan) Asks() bool { return !p.set.AutoAccept && !p.set.AutoAcceptNetwork }

// NewPlan completes what is wanted by the settings of an earlier run, and refuses what is not
// valid. given reports whether a field, by its path, was given; the others are kept.
func NewPlan(ctx context.Context, hub client.Client, want spec.Broker, given func(path string) bool) (p Plan, err error) {
	set, book, ok, err := Former(ctx, hub)
	if err != nil {
		return p, err
	}
	former := Spec(set, book)
	if ok {
		want.Keep(former, given)
	}
	if p.set, p.book, err = From(want); err != nil {
		return p, err
	}
	p.set.CA = set.CA
	if ok {
		p.Changes = changes(settings(former), settings(Spec(p.set, p.book)))
	}
	return p, nil
}

// settings are the texts of the settings that have an effect, by flag.
func settings(b spec.Broker) map[string]string {
	out := spec.Texts(b)
	if !b.GlobalnetEnabled {
		delete(out, "globalnet-cidr-range")
		delete(out, "globalnet-cluster-size")
	}
	return out
}

func changes(before, after map[string]string) (out []string) {
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] != after[key] {
			out = append(out, fmt.Sprintf("%s: %s → %s", key, cmp.Or(before[key], "unset"), cmp.Or(after[key], "unset")))
		}
	}
	return out
}

// Apply installs the broker, and issues the credential by which clusters join.
func (p Plan) Apply(ctx context.Context, hub manifests.Cluster, progress manifests.Progress) (Info, error) {
	if err := manifests.HubBase(ctx, hub.Client, progress); err != nil {
		return Info{}, err
	}
	var err error
	if p.set.HubID, err = HubID(ctx, hub.Client); err != nil {
		return Info{}, err
	}
	progress("Writing the settings of the clusterset")
	url := cmp.Or(p.set.BrokerURL, hub.Config.Host)
	if p.set.Hub, err = HubAddresses(ctx, hub.Client, url, hub.Config.Host); err != nil {
		return Info{}, err
	}
	ca, err := hub.CA(ctx)
	if err != nil {
		return Info{}, err
	}
	former := p.set.CA
	if p.CA != nil {
		former = p.CA
	}
	p.set.CA = config.MergeCA(ca, former)
	psk, err := Setup(ctx, hub.Client, p.book, p.set, p.PSK)
	if err != nil {
		return Info{}, err
	}
	if err := manifests.Hub(ctx, hub.Client, progress); err != nil {
		return Info{}, err
	}
	token, err := Credential(ctx, hub.Client, p.set.CA)
	if err != nil {
		return Info{}, err
	}
	return Info{
		BrokerURL: url, ClientToken: token,
		IPSecPSK:         &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: psk.Name, Namespace: psk.Namespace}, Data: psk.Data},
		ServiceDiscovery: slices.Contains(p.set.Components, spec.ComponentServiceDiscovery),
		Components:       p.set.Components, CustomDomains: p.set.CustomDomains,
	}, nil
}
