package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/clusterset"
)

// What a pod gets by its device, and what it lacks.
func TestEndpoints(t *testing.T) {
	address := netip.MustParseAddr("10.7.2.5")
	own := netdev.PodDevice{Source: 3, Endpoint: dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}}}
	port := netdev.PodDevice{Source: 4, Endpoint: dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}}, Strict: "its device is a port of a switch, whose rules must see all packets"}
	macvlan := netdev.PodDevice{Source: 3, Problem: "its device is of kind macvlan"}
	for _, tt := range []struct {
		name     string
		cluster  func(string) (tables.Objects, tables.Host)
		datapath string
		imports  bool
		device   netdev.PodDevice
		want     dataplane.Endpoint
		limited  string
	}{
		{"strict, no ClusterSetIPs", clusterset.Globalnet, "strict", false, own, dataplane.Endpoint{}, ""},
		{"strict, ClusterSetIPs", clusterset.Globalnet, "strict", true, own, dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}, Datapath: dataplane.Strict}, ""},
		{"hybrid", clusterset.Globalnet, "hybrid", false, own, dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}, Datapath: dataplane.Hybrid}, ""},
		{"fast behind a switch", clusterset.Globalnet, "fast", false, port, dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}, Datapath: dataplane.Strict},
			"its packets pass the node's stack, as with datapath strict: its device is a port of a switch, whose rules must see all packets"},
		{"hybrid, macvlan", clusterset.Globalnet, "hybrid", false, macvlan, dataplane.Endpoint{},
			"its packets pass the node's stack, as with datapath strict: its device is of kind macvlan"},
		{"auto", clusterset.Globalnet, "auto", false, own, dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}, Datapath: dataplane.Fast}, ""},
		{"auto behind a switch", clusterset.Globalnet, "auto", false, port, dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{2}, Datapath: dataplane.Strict}, ""},
		{"auto, macvlan", clusterset.Globalnet, "auto", false, macvlan, dataplane.Endpoint{}, ""},
		{"strict, ClusterSetIPs, macvlan", clusterset.Globalnet, "strict", true, macvlan, dataplane.Endpoint{}, ""},
		{"strict, ClusterSetIPs, macvlan, no global IPs", clusterset.Flat, "strict", true, macvlan, dataplane.Endpoint{},
			"it does not reach the services of its own cluster at ClusterSetIPs: its device is of kind macvlan"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := tt.cluster("n2")
			if tt.imports {
				clusterset.Import(&objs)
			}
			host.Limited = map[netip.Addr]string{}
			var e endpoints
			again := e.find(objs, tables.Datapaths(objs, tt.datapath, true), map[netip.Addr]netdev.PodDevice{address: tt.device}, &host)
			if got := host.Endpoints[address]; got != tt.want {
				t.Errorf("endpoint %+v; want %+v", got, tt.want)
			}
			if got := host.Limited[address]; got != tt.limited {
				t.Errorf("lacks %q; want %q", got, tt.limited)
			}
			if missing := tt.device.Endpoint.Ifindex == 0; missing && !again {
				t.Error("it is not looked up again")
			}
		})
	}
}

// A pod that is left out is reported once it has been for some time, by one Event for each reason.
func TestLeftOut(t *testing.T) {
	pod := tables.LeftOut{Pod: types.NamespacedName{Namespace: "sample", Name: "a"}, UID: "1", Reason: "macvlan"}
	fresh := tables.LeftOut{Pod: types.NamespacedName{Namespace: "sample", Name: "b"}, UID: "2", Reason: "no route"}
	changed := pod
	changed.Reason = "netkit"
	var l leftOut
	start := time.Now()
	for _, step := range []struct {
		name         string
		after        time.Duration
		current      []tables.LeftOut
		lasting, due []tables.LeftOut
		waiting      bool
	}{
		{"new", 0, []tables.LeftOut{pod}, nil, nil, true},
		{"lasting, and another", leftOutAfter, []tables.LeftOut{pod, fresh}, []tables.LeftOut{pod}, []tables.LeftOut{pod}, true},
		{"the other is served now", leftOutAfter + time.Second, []tables.LeftOut{pod}, []tables.LeftOut{pod}, nil, false},
		{"for another reason", leftOutAfter + 2*time.Second, []tables.LeftOut{changed}, []tables.LeftOut{changed}, []tables.LeftOut{changed}, false},
		{"served", leftOutAfter + 3*time.Second, nil, nil, nil, false},
		{"again", leftOutAfter + 4*time.Second, []tables.LeftOut{pod}, nil, nil, true},
	} {
		lasting, due, waiting := l.update(step.current, start.Add(step.after))
		if diff := cmp.Diff(step.lasting, lasting); diff != "" {
			t.Errorf("%s: lasting -want +got\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.due, due); diff != "" {
			t.Errorf("%s: Events -want +got\n%s", step.name, diff)
		}
		if waiting != step.waiting {
			t.Errorf("%s: waiting %t; want %t", step.name, waiting, step.waiting)
		}
	}
}

// The pods that are left out come from the tables, with the reason.
func TestLeftOutOfTables(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	address := netip.MustParseAddr("10.7.2.5")
	name := types.NamespacedName{Namespace: "sample", Name: "web-1"}
	host.Limited = map[netip.Addr]string{address: "slow"}
	want := []tables.LeftOut{{Pod: name, UID: "uid-web-1", Connected: true, Reason: "slow"}}
	if diff := cmp.Diff(want, tables.Desired(objs, host).LeftOut); diff != "" {
		t.Errorf("limited -want +got\n%s", diff)
	}
	delete(host.Devices, address)
	host.Unserved = map[netip.Addr]string{address: "netkit"}
	want = []tables.LeftOut{{Pod: name, UID: "uid-web-1", Reason: "netkit"}}
	if diff := cmp.Diff(want, tables.Desired(objs, host).LeftOut); diff != "" {
		t.Errorf("unserved -want +got\n%s", diff)
	}
	if text := tables.DescribeLeftOut(want); text != "pods of this node that are left out (1): sample/web-1 (netkit)" {
		t.Errorf("described as %q", text)
	}
	for i := range objs.Pods {
		objs.Pods[i].DeletionTimestamp = &metav1.Time{}
	}
	if got := tables.Desired(objs, host).LeftOut; got != nil {
		t.Errorf("of a pod that is being deleted: %v", got)
	}
}
