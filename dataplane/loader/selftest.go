package loader

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/pelago-net/pelago/bpf"
)

// SelftestPort is the UDP destination port of the datagram of a self-test.
const SelftestPort = uint16(bpf.PelagoSelftestPortSELFTEST_PORT)

// Selftest is what the programs recorded of the datagram of a self-test.
type Selftest struct {
	// Edge: edge_out received it, from the device with interface index Ingress and with the address
	// Source.
	Edge    bool
	Ingress uint32
	Source  netip.Addr
	// Pod is the interface index of the pod's device at which pod_out received it; 0: it did not.
	Pod uint32
	// Uplink is that of the uplink by which it was about to leave; 0: none. It was dropped there.
	Uplink uint32
}

// BeginSelftest makes the programs record a datagram whose payload begins with the marker, in
// network byte order; 0 disables that. There is one self-test at a time.
func (l *Loader) BeginSelftest(marker uint32) error {
	// An older datagram may still be on its way: its result must not appear in the new entry.
	err := put(l.objs.Selftests, uint32(0), bpf.PelagoSelftest{})
	if err != nil || marker == 0 {
		return err
	}
	v := bpf.PelagoSelftest{Marker: binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, marker))}
	return put(l.objs.Selftests, uint32(0), v)
}

// Selftest returns what the programs have recorded since BeginSelftest.
func (l *Loader) Selftest() (Selftest, error) {
	var v bpf.PelagoSelftest
	if err := l.objs.Selftests.Lookup(uint32(0), &v); err != nil {
		return Selftest{}, fmt.Errorf("read map selftests: %w", err)
	}
	s := Selftest{Edge: v.Edge != 0, Ingress: v.Ingress, Pod: v.Pod, Uplink: v.Uplink}
	if s.Edge {
		s.Source = addr(v.Source)
	}
	return s, nil
}
