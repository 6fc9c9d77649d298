package broker

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy/spec"
)

// TestBrokerFields: an object of the operator and flags of deploy-broker make the same settings,
// another run keeps them, and a wrong value is reported at its field, for every field that there
// is.
func TestBrokerFields(t *testing.T) {
	type object = v1alpha1.BrokerSpec
	ways := map[string]struct {
		set      func(*object) // nil: the flags are in the annotation
		flags    string
		wrong    func(*object)
		wrongFor string // flags
	}{
		"spec.globalnetEnabled": {set: func(s *object) { s.GlobalnetEnabled = true }, flags: "--globalnet"},
		"spec.globalnetCIDRRange": {func(s *object) { s.GlobalnetEnabled, s.GlobalnetCIDRRange = true, "120.0.0.0/8" }, "--globalnet --globalnet-cidr-range=120.0.0.0/8",
			func(s *object) { s.GlobalnetEnabled, s.GlobalnetCIDRRange = true, "120.0.0.1/8" }, "--globalnet --globalnet-cidr-range=120.0.0.1/8"},
		"spec.defaultGlobalnetClusterSize": {func(s *object) { s.GlobalnetEnabled, s.DefaultGlobalnetClusterSize = true, 1024 }, "--globalnet --globalnet-cluster-size=1024",
			func(s *object) { s.GlobalnetEnabled, s.DefaultGlobalnetClusterSize = true, 1 }, "--globalnet --globalnet-cluster-size=1"},
		"spec.clustersetIPEnabled": {set: func(s *object) { s.ClustersetIPEnabled = true }, flags: "--enable-clusterset-ip"},
		"spec.clustersetIPCIDRRange": {func(s *object) { s.ClustersetIPCIDRRange = "244.0.0.0/8" }, "--clusterset-ip-cidr-range=244.0.0.0/8",
			func(s *object) { s.ClustersetIPCIDRRange = "244.0.0.0/24" }, "--clusterset-ip-cidr-range=244.0.0.0/24"},
		"spec.defaultCustomDomains": {func(s *object) { s.DefaultCustomDomains = []string{"example.org"} }, "--custom-domains=example.org",
			func(s *object) { s.DefaultCustomDomains = []string{"a b"} }, "--custom-domains=a_b"},
		"spec.components": {func(s *object) { s.Components = []string{"connectivity", "service-discovery"} }, "--components=connectivity,service-discovery",
			func(s *object) { s.Components = []string{"connectivity"} }, "--components=connectivity"},
		"spec.fabricCIDR":        {flags: "--fabric-cidr=245.0.0.0/8", wrongFor: "--fabric-cidr=245.0.0.0/9"},
		"spec.brokerURL":         {flags: "--broker-url=https://hub.example.org"},
		"spec.mode":              {flags: "--mode=mcs", wrongFor: "--mode=other"},
		"spec.autoAccept":        {flags: "--auto-accept=true", wrongFor: "--auto-accept=maybe"},
		"spec.autoAcceptNetwork": {flags: "--auto-accept-network=true", wrongFor: "--auto-accept-network=maybe"},
		"spec.clusterRanges":     {flags: "--cluster-ranges=11.0.0.0/8,30.0.0.0/8", wrongFor: "--cluster-ranges=127.0.0.0/8"},
		"spec.memberObjects":     {flags: "--member-objects=9000", wrongFor: "--member-objects=20001"},
	}
	names := spec.Flags(spec.Broker{})
	if diff := cmp.Diff(slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(ways))); diff != "" {
		t.Fatalf("add the field here: -spec +here\n%s", diff)
	}
	parse := func(flags string) (b spec.Broker, set *pflag.FlagSet, err error) {
		set = pflag.NewFlagSet("deploy-broker", pflag.ContinueOnError)
		b.AddFlags(set)
		if err = set.Parse(strings.Fields(flags)); err == nil {
			_, _, err = From(b)
		}
		return b, set, names.Error(err)
	}
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	for path, w := range ways {
		t.Run(path, func(t *testing.T) {
			var s object
			annotations := map[string]string{v1alpha1.AnnotationFlags: w.flags}
			if w.set != nil {
				w.set(&s)
				annotations = nil
			}
			o, errs := spec.FromBroker(s, annotations)
			want, _, err := parse(w.flags)
			if err != nil || len(errs) > 0 {
				t.Fatal(err, errs)
			}
			want.AutoAcceptNetwork = true // of an object, unless its annotation has the flag
			if diff := cmp.Diff(want, o.Broker, prefixes); diff != "" {
				t.Errorf("-deploy-broker +operator\n%s", diff)
			}
			set, book, err := From(want)
			if err != nil {
				t.Fatal(err)
			}
			var again spec.Broker
			again.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
			again.Keep(Spec(set, book), func(string) bool { return false })
			if diff := cmp.Diff(want, again, prefixes); diff != "" {
				t.Errorf("-given +kept\n%s", diff)
			}

			if w.wrong == nil && w.wrongFor == "" {
				return
			}
			at := path
			if s, annotations = (object{}), nil; w.wrong != nil {
				w.wrong(&s)
			} else {
				annotations, at = map[string]string{v1alpha1.AnnotationFlags: w.wrongFor}, "metadata.annotations[pelago.io/flags]"
			}
			o, errs = spec.FromBroker(s, annotations)
			if err = spec.Join(errs); err == nil {
				_, _, err = From(o.Broker)
			}
			var about *spec.Error
			if !errors.As(err, &about) {
				t.Fatalf("a wrong value: %v", err)
			}
			if got := o.Locate(about); got.Path != at {
				t.Errorf("a wrong value is reported at %s: %s", got.Path, got.Text)
			}
			if _, _, err := parse(w.wrongFor); err == nil {
				t.Errorf("no error of deploy-broker %s", w.wrongFor)
			}
		})
	}
}
