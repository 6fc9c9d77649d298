package packet

import (
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// together runs a program on every frame from as many goroutines, starting together, and returns
// what came out.
func together(t *testing.T, k *Kernel, program *ebpf.Program, c Context, frames [][]byte) []Result {
	t.Helper()
	out := make([]Result, len(frames))
	errs := make([]error, len(frames))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, frame := range frames {
		wg.Go(func() {
			<-start
			out[i], errs[i] = k.TryRun(program, frame, c)
		})
	}
	close(start)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// onePort has many CPUs send frames, and fails if they show more than one source port.
func onePort(t *testing.T, k *Kernel, frames [][]byte) {
	t.Helper()
	used := map[uint16]bool{}
	for _, r := range together(t, k, k.EdgeOut, pod, frames) {
		if r.Action != Redirect {
			t.Fatalf("a packet was not sent (action %d)", r.Action)
		}
		o, err := DecodeOverlay(r.Frame)
		if err != nil {
			t.Fatal(err)
		}
		used[decode(t, o.Inner).UDP.Source] = true
	}
	if len(used) != 1 {
		t.Fatalf("the ports %v are shown, want one", used)
	}
}

// Many CPUs with packets of one new flow agree on one translation, and the losers leave nothing
// behind.
func TestManyOpenOneFlow(t *testing.T) {
	k := load(t, 1, 2)
	const packets = 8
	for round := range uint16(200) {
		frames := make([][]byte, packets)
		for i := range frames {
			frames[i] = Frame(udpPacket("x", ports(2000+round, 53), func(p *Packet) { p.ID = uint16(i) }).Encode())
		}
		onePort(t, k, frames)
		k.checkTable(t)
	}
	if got := k.flows(t); got != 200 {
		t.Errorf("%d flows; want 200", got)
	}
}

// The same at the server's edge: one backend for one connection.
func TestManyDeliverOneFlow(t *testing.T) {
	k := load(t, 1, 2)
	for round := range uint16(200) {
		frames := make([][]byte, 8)
		for i := range frames {
			frames[i] = overlay(1, 1, 2, clientUDP(ports(2000+round, 53), func(p *Packet) { p.ID = uint16(i) }).Encode()).Encode()
		}
		for _, r := range together(t, k, k.UplinkIn, Context{}, frames) {
			if r.Action != Redirect {
				t.Fatalf("round %d: a packet was not delivered (action %d)", round, r.Action)
			}
		}
	}
	if got := k.checkTable(t); got != 200 {
		t.Errorf("%d flows; want 200", got)
	}
}

// Flows that run out, are swept, purged and opened again on several CPUs at once over few ports:
// the table stays sound.
func TestOpenAgainstSweep(t *testing.T) {
	k := loadTimers(t, loader.Timers{
		UDP: time.Nanosecond, ICMP: time.Nanosecond, TCPEstablished: time.Nanosecond, TCPTransitory: time.Nanosecond, ClosedFloor: time.Nanosecond,
	}, 1, 2)
	deadline := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for worker := range uint16(3) {
		wg.Go(func() {
			for i := uint16(0); time.Now().Before(deadline); i++ {
				source := 2000 + (i*7+worker)%400
				for _, p := range []Packet{tcpPacket(SYN, ports(source, 80)), udpPacket("x", ports(source, 53))} {
					if _, err := k.TryRun(k.EdgeOut, Frame(p.Encode()), pod); err != nil {
						t.Error(err)
					}
				}
				p := clientTCP(SYN, to(global(1, 21)), ports(source, 80))
				if _, err := k.TryRun(k.UplinkIn, overlay(1, 1, 2, p.Encode()).Encode(), Context{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	removed := 0
	for i := 0; time.Now().Before(deadline); i++ {
		stats, err := k.Loader.Sweep(0)
		if err != nil {
			t.Fatal(err)
		}
		n, err := k.Loader.PurgeFunc(equals(ip("10.7.2.10")))
		if err != nil {
			t.Fatal(err)
		}
		removed += stats.Removed + n
	}
	wg.Wait()
	if removed == 0 {
		t.Error("nothing was removed: the test does not test what it says")
	}
	k.checkTable(t)
}

// The daemon confirms its tables while the programs note which clusters they reach: neither undoes
// the other's.
func TestAdvertiseAgainstPackets(t *testing.T) {
	k := load(t, 1, 1)
	frame := overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode()).Encode()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := k.Loader.Apply(state(1, 1)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 10000 {
		ready := uint32(i % 2)
		for _, n := range gatewayNodes {
			key := nodeIP(2, int(n)).As4()
			k.putPath(t, key, bpf.PelagoPath{Probed: 1, Ready: ready, Ring: farRing(nanotime(t))})
		}
		if _, err := k.TryRun(k.UplinkIn, frame, Context{}); err != nil {
			t.Fatal(err)
		}
		var s bpf.PelagoAdvertised
		if err := k.Standings.Lookup(uint32(0), &s); err != nil {
			t.Fatal(err)
		}
		if reached := s.Unreachable[0]&(1<<2) == 0; reached != (ready == 1) {
			t.Errorf("packet %d: cluster 2 is advertised as reached: %t; want %t", i, reached, ready == 1)
			break
		}
	}
	close(stop)
	wg.Wait()
}
