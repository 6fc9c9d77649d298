package load

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestParseDrops(t *testing.T) {
	const snmp = "Ip: Forwarding DefaultTTL\nIp: 1 64\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 10 1 7 20 6 0\nUdpLite: InDatagrams\nUdpLite: 0\n"
	if got, err := parseDrops([]byte(snmp)); got != 6 || err != nil {
		t.Errorf("parseDrops = %d, %v; want 6", got, err)
	}
	for _, bad := range []string{"", "Udp: InDatagrams\nUdp: 1\n", "Udp: InDatagrams RcvbufErrors\nUdp: 1\n", "Udp: RcvbufErrors\nUdp: x\n"} {
		if got, err := parseDrops([]byte(bad)); err == nil {
			t.Errorf("parseDrops(%q) = %d; want an error", bad, got)
		}
	}
}

func TestPercentile(t *testing.T) {
	var d []time.Duration
	for i := 100; i > 0; i-- {
		d = append(d, time.Duration(i)*time.Microsecond)
	}
	got := []float64{percentile(d, 50), percentile(d, 99), percentile(d[:1], 99)}
	if diff := cmp.Diff([]float64{51, 100, 1}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRawAddr(t *testing.T) {
	sa := rawAddr(netip.MustParseAddrPort("120.2.0.5:7001"))
	got := *(*[8]byte)(unsafe.Pointer(sa))
	// struct sockaddr_in: port in network byte order
	want := [8]byte{unix.AF_INET, 0, 0x1b, 0x59, 120, 2, 0, 5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
