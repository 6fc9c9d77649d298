package peering

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/hubclient"
)

// readRequest decodes a request for a token, which the client sends as protobuf.
func readRequest(t *testing.T, r *http.Request) (request authenticationv1.TokenRequest) {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &request)
	}
	if err != nil || request.Spec.ExpirationSeconds == nil {
		t.Errorf("read the request for a token: %v", err)
		request.Spec.ExpirationSeconds = new(int64)
	}
	return request
}

// TestClockAhead: a clock so far ahead of the hub's that every new token is due renews it once a
// minute, not in a loop.
func TestClockAhead(t *testing.T) {
	const ahead = 5 * 24 * time.Hour // more than half a life
	hubClock := time.Unix(1_700_000_000, 0)
	issue := func() string {
		return token(fmt.Sprintf(`{"iat":%d,"exp":%d}`, hubClock.Unix(), hubClock.Add(DefaultTokenLife).Unix()))
	}
	requests := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := readRequest(t, r)
		if *request.Spec.ExpirationSeconds <= int64(DefaultTokenLife.Seconds()) { // not the return token
			requests++
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(authenticationv1.TokenRequest{
			TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
			Status:   authenticationv1.TokenRequestStatus{Token: issue()},
		}); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: config.BrokerSecretName}, Data: map[string][]byte{
		config.KeyBrokerToken: []byte(issue()), config.KeyBrokerServer: []byte(server.URL), config.KeyNamespace: []byte("broker"), config.KeyBrokerCA: ca,
	}}
	source := NewTokenSource("")
	h, err := hubclient.New(hubclient.Options{Server: server.URL, CA: ca, Namespace: "broker", Token: source.Token, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	r := &tokenReconciler{
		TokenOptions: TokenOptions{Namespace: "ns", ClusterID: "g1", Source: source, Hub: h.Client(), BrokerNamespace: "broker", Life: DefaultTokenLife},
		local:        fake.NewClientBuilder().WithObjects(secret).Build(), events: record.NewFakeRecorder(100),
		now: func() time.Time { return hubClock.Add(ahead) },
	}
	renewed := func(want int, requeue time.Duration) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(secret)})
		if err != nil || requests != want || result.RequeueAfter != requeue {
			t.Fatalf("%d renewals, next in %s, %v; want %d, %s", requests, result.RequeueAfter, err, want, requeue)
		}
	}
	renewed(1, 0)
	renewed(1, time.Minute) // enqueued by the write of the Secret
	hubClock = hubClock.Add(59 * time.Second)
	renewed(1, time.Second)
	hubClock = hubClock.Add(time.Second)
	renewed(2, 0)
	if got := testutil.ToFloat64(source.Metrics()); got != ahead.Seconds() {
		t.Errorf("pelago_hub_clock_skew_seconds is %g, want %g", got, ahead.Seconds())
	}
	// The clock is corrected: the token is due at half of its life again.
	r.now = func() time.Time { return hubClock }
	renewed(2, DefaultTokenLife/2)
}

// TestReturnAfterDaysOff: a cluster that was off for longer than its token lives comes back with its
// return token, which the agent has requested before; for too long, it says what to do.
func TestReturnAfterDaysOff(t *testing.T) {
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		off   time.Duration
		known bool // the agent has requested a return token before
		event string
	}{
		"three days":               {3 * day, true, ""},
		"eight days":               {8 * day, true, reasonReturned},
		"eighty-nine days":         {89 * day, true, reasonReturned},
		"ninety-one days":          {91 * day, true, "away for too long to return by itself: run `pelago join` again"},
		"eight days, never online": {8 * day, false, "away for too long to return by itself: run `pelago join` again"},
	} {
		t.Run(name, func(t *testing.T) {
			hubClock := time.Unix(1_700_000_000, 0)
			issue := func(life time.Duration) string {
				return token(fmt.Sprintf(`{"iat":%d,"exp":%d,"kubernetes.io":{"secret":{"name":"cluster-g1.registration","uid":"u"}}}`, hubClock.Unix(), hubClock.Add(life).Unix()))
			}
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				c, err := parse(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
				if err != nil || c.expired(hubClock) {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				request := readRequest(t, r)
				if bound := request.Spec.BoundObjectRef; bound == nil || bound.UID != "u" {
					t.Errorf("request %+v: it is not bound to the registration", request.Spec)
				}
				w.WriteHeader(http.StatusCreated)
				if err := json.NewEncoder(w).Encode(authenticationv1.TokenRequest{
					TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
					Status:   authenticationv1.TokenRequestStatus{Token: issue(time.Duration(*request.Spec.ExpirationSeconds) * time.Second)},
				}); err != nil {
					t.Error(err)
				}
			}))
			defer server.Close()
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: config.BrokerSecretName}, Data: map[string][]byte{
				config.KeyBrokerToken: []byte(issue(DefaultTokenLife)), config.KeyBrokerServer: []byte(server.URL), config.KeyNamespace: []byte("broker"), config.KeyBrokerCA: ca,
			}}
			local := fake.NewClientBuilder().WithObjects(secret).Build()
			source := NewTokenSource("")
			h, err := hubclient.New(hubclient.Options{Server: server.URL, CA: ca, Namespace: "broker", Token: source.Token, Logger: logr.Discard()})
			if err != nil {
				t.Fatal(err)
			}
			reconcile := func() (events string, err error) { // of a new process
				recorder := record.NewFakeRecorder(100)
				r := &tokenReconciler{
					TokenOptions: TokenOptions{Namespace: "ns", ClusterID: "g1", Source: source, Hub: h.Client(), BrokerNamespace: "broker", Life: DefaultTokenLife},
					local:        local, events: recorder, now: func() time.Time { return hubClock },
				}
				_, err = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(secret)})
				for len(recorder.Events) > 0 {
					events += <-recorder.Events + "\n"
				}
				return events, err
			}
			if tt.known {
				if events, err := reconcile(); err != nil || !strings.Contains(events, reasonRenewed) {
					t.Fatalf("the first reconcile: %q, %v", events, err)
				}
			}
			hubClock = hubClock.Add(tt.off)
			events, err := reconcile()
			back := err == nil
			if want := tt.event == "" || tt.event == reasonReturned; back != want || !strings.Contains(events, tt.event) {
				t.Fatalf("after %s: events %q, %v", tt.off, events, err)
			}
			if !back {
				return
			}
			if _, err := reconcile(); err != nil {
				t.Error(err)
			}
			if c, err := parse(source.Token()); err != nil || c.expired(hubClock) || c.Expiry > hubClock.Add(DefaultTokenLife).Unix() {
				t.Errorf("the token in use is %+v, %v; want a valid one of 7 days", c, err)
			}
		})
	}
}
