package loader

import (
	"fmt"
	"testing"
	"time"

	"github.com/pelago-net/pelago/bpf"
)

// BenchmarkSweep measures a sweep of tables that hold nothing to remove.
func BenchmarkSweep(b *testing.B) {
	for _, flows := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint("flows=", flows), func(b *testing.B) {
			l := open(b)
			now := uint64(bootClock())
			for i := range flows {
				opener := bpf.PelagoFlowKey{Saddr: be32(ip("10.7.0.5")), Daddr: be32(ip("120.2.0.20")) + uint32(i>>16)<<24, Sport: uint16(i), Dport: be16(80), Proto: 6, Direction: 1}
				v := bpf.PelagoFlow{State: now << 1, Seen: now, Saddr: be32(ip("120.1.0.1")), Daddr: opener.Daddr, Sport: opener.Sport, Dport: opener.Dport, Role: uint8(bpf.PelagoFlowRoleFLOW_CLIENT), Primary: 1}
				if err := l.objs.Flows.Put(opener, v); err != nil {
					b.Fatal(err)
				}
				v.Primary = 0
				if err := l.objs.Flows.Put(answerKey(opener, v), v); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if s, err := l.Sweep(time.Hour); err != nil || s.Flows != flows || s.Removed != 0 {
					b.Fatalf("%+v, %v", s, err)
				}
			}
		})
	}
}
