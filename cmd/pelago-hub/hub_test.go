package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.HubControllers())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func TestWithoutInit(t *testing.T) {
	_, err := open(t.Context(), server.Config(t), options{metricsAddress: "0", healthAddress: "0"})
	if err == nil || !strings.Contains(err.Error(), "run `pelago init` there") {
		t.Errorf("error %v, want one that names `pelago init`", err)
	}
}

// manager is one without controllers, which runs until the test ends.
func manager(t *testing.T, cfg *rest.Config, o options) ctrl.Manager {
	t.Helper()
	o.metricsAddress, o.healthAddress = "0", "0"
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	mgr, _, err := newManager(cfg, o, scheme)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return mgr
}

func elected(mgr ctrl.Manager) func() bool {
	return func() bool {
		select {
		case <-mgr.Elected():
			return true
		default:
			return false
		}
	}
}

// A killed process leaves its lease behind, valid for 15 s: a process with the same identity need
// not wait for it, others must.
func TestIdentity(t *testing.T) {
	c := apiserver.Connect(t, server.Config(t))
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: manifests.SystemNamespace}})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.HubName},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("hub-0"), LeaseDurationSeconds: ptr.To[int32](15)}}
	renew := func() {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		if err := client.IgnoreNotFound(c.Update(t.Context(), lease)); err != nil {
			t.Fatal(err)
		}
	}
	c.Make(lease)
	renew()
	other := manager(t, server.Config(t), options{leaderElect: true, identity: "hub-1"})
	nameless := manager(t, server.Config(t), options{leaderElect: true})
	await.Never(t, 3*time.Second, "another one leads", func() bool { return elected(other)() || elected(nameless)() })
	renew()
	same := elected(manager(t, server.Config(t), options{leaderElect: true, identity: "hub-0"}))
	await.True(t, "the same one leads, although the lease never ends", func() bool {
		renewed := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
		if err := c.Patch(t.Context(), lease, client.RawPatch(types.MergePatchType, renewed)); err != nil {
			t.Fatal(err)
		}
		return same()
	})
	if elected(other)() || elected(nameless)() {
		t.Error("two lead")
	}
}

// While the API server is unreachable the cache retries at least every second, however long that
// lasts. By default informers retry four times in the first 20 s, and then twice a minute.
func TestCacheComesBackSoon(t *testing.T) {
	line := apiserver.NewLine(t, server.Config(t))
	mgr := manager(t, line.Config(), options{})
	// it waits for the first list
	if _, err := mgr.GetCache().GetInformer(t.Context(), &corev1.ConfigMap{}); err != nil {
		t.Fatal(err)
	}
	line.Cut()
	var asked atomic.Int64
	away, err := net.Listen("tcp", line.Address())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := away.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = c.Close() // nothing was said
		}
	}()
	await.True(t, "it asks again and again", func() bool { return asked.Load() > 12 })
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	line.Heal()
	c := apiserver.Connect(t, server.Config(t))
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "later"}}
	c.Make(m)
	await.True(t, "it sees what has come", func() bool {
		return mgr.GetCache().Get(t.Context(), client.ObjectKeyFromObject(m), &corev1.ConfigMap{}) == nil
	})
}
