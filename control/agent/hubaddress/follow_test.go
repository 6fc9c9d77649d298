package hubaddress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
)

// hub answers with the ConfigMap of a clusterset and keeps the Lease of the member.
type hub struct {
	*httptest.Server
	ca    []byte
	token string // accepted

	mu       sync.Mutex
	data     map[string]string
	lease    *coordinationv1.Lease
	requests int
}

// loopback makes a certificate of the loopback address that is its own CA.
func loopback(t *testing.T) (ca []byte, serving tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// newHub makes one with a CA of its own.
func newHub(t *testing.T, id string) *hub {
	h := &hub{token: "t", data: map[string]string{config.KeySetHubID: id}}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(h.serve))
	ca, serving := loopback(t)
	h.ca = config.MergeCA(ca)
	h.TLS = &tls.Config{Certificates: []tls.Certificate{serving}}
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are what is tested
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hub) serve(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests++
	var out any
	status := func(code int) {
		w.WriteHeader(code)
		out = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: int32(code), Status: metav1.StatusFailure,
			Reason: map[int]metav1.StatusReason{401: metav1.StatusReasonUnauthorized, 404: metav1.StatusReasonNotFound}[code]}
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Header.Get("Authorization") != "Bearer "+h.token:
		status(http.StatusUnauthorized)
	case strings.HasSuffix(r.URL.Path, "/namespaces/broker/configmaps/pelago-clusterset"):
		out = corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, Data: h.data}
	case r.Method == http.MethodGet && h.lease == nil:
		status(http.StatusNotFound)
	case r.Method == http.MethodGet:
		out = h.lease
	default:
		h.lease = &coordinationv1.Lease{}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, h.lease)
		}
		if err != nil {
			status(http.StatusBadRequest)
			break
		}
		out = h.lease
	}
	_ = json.NewEncoder(w).Encode(out) // the client reports what it cannot read
}

func (h *hub) announce(server string, ca ...[]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.data[config.KeySetServer], h.data[config.KeySetCA] = server, string(config.MergeCA(ca...))
}

// trial is a follower and what it works on.
type trial struct {
	*follower
	clock  time.Time
	events *record.FakeRecorder
}

func newTrial(h *hub) *trial {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: config.BrokerSecretName}, Data: map[string][]byte{
		config.KeyBrokerCA: h.ca, config.KeyBrokerServer: []byte(h.URL), config.KeyBrokerToken: []byte("t"), config.KeyNamespace: []byte("broker"),
	}}
	events := record.NewFakeRecorder(20)
	tr := &trial{clock: time.Unix(1_700_000_000, 0), events: events}
	tr.follower = newFollower(Options{Namespace: "ns", BrokerNamespace: "broker", ClusterID: "g1", HubID: "hub", Token: func() string { return "t" }},
		fake.NewClientBuilder().WithObjects(secret).Build(), events)
	tr.now = func() time.Time { return tr.clock }
	return tr
}

// look makes one step and returns the access that the Secret has.
func (tr *trial) look(t *testing.T) config.Broker {
	t.Helper()
	if _, err := tr.step(t.Context()); err != nil {
		t.Fatal(err)
	}
	var secret corev1.Secret
	if err := tr.local.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: config.BrokerSecretName}, &secret); err != nil {
		t.Fatal(err)
	}
	b, err := config.ParseBroker(secret.Data)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// event are the Events since the last call, but those of another CA; empty if there is none.
func (tr *trial) event() string {
	var all []string
	for {
		select {
		case e := <-tr.events.Events:
			if !strings.Contains(e, reasonCA) {
				all = append(all, e)
			}
			continue
		default:
		}
		return strings.Join(all, "; ")
	}
}

func (tr *trial) wants(t *testing.T, got config.Broker, server, other, event string, followed float64) {
	t.Helper()
	if got.Server != server || got.Other != other {
		t.Errorf("the Secret has %s and %q, want %s and %q", got.Server, got.Other, server, other)
	}
	if e := tr.event(); !strings.Contains(e, event) || (event == "") != (e == "") {
		t.Errorf("Event %q, want %q", e, event)
	}
	if f := testutil.ToFloat64(tr.followed); f != followed {
		t.Errorf("pelago_hub_address_followed is %g, want %g", f, followed)
	}
}

// TestFollow: the hub announces another address, with another CA, and the member uses it.
func TestFollow(t *testing.T) {
	old, next := newHub(t, "hub"), newHub(t, "hub")
	tr := newTrial(old)
	tr.wants(t, tr.look(t), old.URL, "", "", 1)
	if got := *old.lease.Spec.HolderIdentity; got != old.URL {
		t.Errorf("reported %s, want %s", got, old.URL)
	}
	old.announce(next.URL, old.ca, next.ca)
	next.announce(next.URL, next.ca)
	got := tr.look(t)
	tr.wants(t, got, next.URL, old.URL, "HubMoved the hub is reached at "+next.URL, 1)
	if want := string(config.MergeCA(old.ca, next.ca)); string(got.CA) != want {
		t.Error("the bundle does not hold both CAs")
	}
	// from here on the next one counts, which announces its CA alone
	if got = tr.look(t); string(got.CA) != string(next.ca) {
		t.Error("the former CA is still trusted")
	}
	tr.wants(t, got, next.URL, old.URL, "", 1)
}

// TestRefused: an address that is not the hub's is not used, and what is wrong is reported.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		id, token string
		unknownCA bool
		closed    bool
		event     string
	}{
		"another hub":              {id: "other", token: "t", event: "is another hub, with the id other instead of hub"},
		"refuses the token":        {id: "hub", token: "x", event: "refuses this cluster's token"},
		"a CA that is not named":   {id: "hub", token: "t", unknownCA: true, event: "give its CA to `pelago deploy-broker --broker-ca`"},
		"an address without a hub": {id: "hub", token: "t", closed: true, event: "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := newHub(t, "hub"), newHub(t, tt.id)
			next.token = tt.token
			if tt.closed {
				next.Close()
			}
			ca := next.ca
			if tt.unknownCA {
				ca = nil
			}
			old.announce(next.URL, old.ca, ca)
			tr := newTrial(old)
			tr.wants(t, tr.look(t), old.URL, next.URL, "HubNotFollowed", 0)
			if got := old.lease.Annotations[v1alpha1.AnnotationHubProblem]; !strings.Contains(got, tt.event) {
				t.Errorf("reported at the hub: %q, want %q", got, tt.event)
			}
			if tt.unknownCA && next.requests > 0 {
				t.Error("a server without a certificate of the CAs has got the token")
			}
			tr.look(t)
			if e := tr.event(); e != "" {
				t.Errorf("the same problem has another Event: %s", e)
			}
			// nor when the present one is away
			old.Close()
			tr.look(t)
			tr.clock = tr.clock.Add(awayAfter)
			tr.wants(t, tr.look(t), old.URL, next.URL, "HubNotFollowed", 0)
		})
	}
}

// TestAway: a next address that did not answer when it was announced is used once the hub answers
// there, and no longer at the former.
func TestAway(t *testing.T) {
	old, next := newHub(t, "hub"), newHub(t, "hub")
	next.token = "not yet"
	old.announce(next.URL, old.ca, next.ca)
	tr := newTrial(old)
	tr.look(t)
	tr.event()
	old.Close()
	next.token = "t"
	next.announce(next.URL, next.ca)
	tr.wants(t, tr.look(t), old.URL, next.URL, "", 0) // it may be away for a moment only
	tr.clock = tr.clock.Add(awayAfter)
	tr.wants(t, tr.look(t), next.URL, old.URL, "HubMoved the hub is reached at "+next.URL, 0)
	got := tr.look(t)
	if got.Server != next.URL || testutil.ToFloat64(tr.followed) != 1 || *next.lease.Spec.HolderIdentity != next.URL {
		t.Errorf("after the move: %s, reported %v", got.Server, next.lease)
	}
}

// TestNothingAnnounced: neither a hub of an earlier release nor one that does not move changes
// anything; a CA that does not verify the present address is added to its own.
func TestNothingAnnounced(t *testing.T) {
	old, other := newHub(t, "hub"), newHub(t, "hub")
	tr := newTrial(old)
	delete(old.data, config.KeySetServer)
	if got := tr.look(t); string(got.CA) != string(old.ca) {
		t.Error("the CA has changed")
	}
	old.announce("", other.ca)
	if got := tr.look(t); string(got.CA) != string(config.MergeCA(other.ca, old.ca)) {
		t.Error("the bundle does not hold the present address's CA besides the announced one")
	}
	old.announce("http://insecure.example.com")
	if got := tr.look(t); got.Server != old.URL || testutil.ToFloat64(tr.followed) == 1 {
		t.Error("an address without TLS is followed")
	}
	// another hub at the present address
	old.announce("", nil)
	old.data[config.KeySetHubID] = "other"
	tr.event()
	tr.look(t)
	if e := tr.event(); !strings.Contains(e, "another hub") {
		t.Errorf("Event %q", e)
	}
}
