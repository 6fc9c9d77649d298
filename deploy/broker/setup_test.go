package broker

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// What clusters have joined with cannot change while they are registered, with globalnet or
// without. The errors are those of the command line.
func TestSetupWithClusters(t *testing.T) {
	set := Clusterset{Mode: "submariner", HubID: "hub", Fabric: fabric, AutoAcceptNetwork: true}
	hub := registered(t, walkthrough(t), set)
	range9, err := NewBook(true, netip.MustParsePrefix("9.0.0.0/8"), 65536)
	if err != nil {
		t.Fatal(err)
	}
	size, err := NewBook(true, netip.MustParsePrefix("120.0.0.0/8"), 256)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		book   Book
		change func(*Clusterset)
		psk    string
		want   string // "": accepted
	}{
		"the same settings": {book: walkthrough(t)},
		"the same key":      {book: walkthrough(t), psk: "key"},
		"another key": {book: walkthrough(t), psk: "another",
			want: "replace the pre-shared key: 1 clusters are registered with the present one"},
		"another mode": {book: walkthrough(t), change: func(s *Clusterset) { s.Mode = "mcs" },
			want: "change the mode from submariner to mcs: 1 clusters are registered"},
		"another fabric": {book: walkthrough(t), change: func(s *Clusterset) { s.Fabric = netip.MustParsePrefix("200.0.0.0/8") },
			want: "change the fabric range from 241.0.0.0/8 to 200.0.0.0/8: 1 clusters have joined with the former; use --fabric-cidr 241.0.0.0/8"},
		"without globalnet": {book: Book{},
			want: "change globalnet from 120.0.0.0/8 (65536 addresses each) to off: 1 clusters are registered"},
		"another range of globalnet": {book: range9,
			want: "change globalnet from 120.0.0.0/8 (65536 addresses each) to 9.0.0.0/8 (65536 addresses each): 1 clusters are registered"},
		"another size of the GlobalCIDRs": {book: size,
			want: "change globalnet from 120.0.0.0/8 (65536 addresses each) to 120.0.0.0/8 (256 addresses each): 1 clusters are registered"},
	} {
		t.Run(name, func(t *testing.T) {
			set := set
			if tt.change != nil {
				tt.change(&set)
			}
			var psk []byte
			if tt.psk != "" {
				psk = []byte(tt.psk)
			}
			_, err := Setup(t.Context(), hub, tt.book, set, psk)
			err = spec.Flags(spec.Broker{}).Error(err)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// registered is a hub with these settings, the clusters of the book and the key "key".
func registered(t *testing.T, book Book, set Clusterset) client.Client {
	t.Helper()
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	hub := fake.NewClientBuilder().WithScheme(scheme).Build()
	if _, err := Setup(t.Context(), hub, book, set, []byte("key")); err != nil {
		t.Fatal(err)
	}
	for _, e := range book.Clusters {
		c := &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: e.ClusterID,
			Annotations: map[string]string{pelagov1alpha1.AnnotationClusterUID: e.ClusterUID}},
			Spec: submarinerv1.ClusterSpec{ClusterID: e.ClusterID, GlobalCIDR: texts(e.GlobalCIDR), ClusterCIDR: []string{"10.7.0.0/16"}}}
		if err := hub.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return hub
}
