package peering

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/hubclient"
)

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
		requests++
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
