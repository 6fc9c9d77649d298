package loader

import (
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// census counts flows by kind as their entries are read, in any order. The state of a TCP flow
// depends on both of its entries, so the first one waits for the other; for all other flows the
// opener's entry is enough.
type census struct {
	kinds map[dump.FlowKind]int
	half  map[bpf.PelagoFlowKey]half // by the key of the answers' entry
}

// half is one of the two entries of a TCP flow.
type half struct {
	opener    bool // it is the opener's
	role, tcp uint8
}

func newCensus() *census {
	return &census{kinds: map[dump.FlowKind]int{}, half: map[bpf.PelagoFlowKey]half{}}
}

func (c *census) note(k bpf.PelagoFlowKey, v bpf.PelagoFlow) {
	if v.State&dying != 0 {
		return
	}
	this := half{opener: v.Primary != 0, role: v.Role, tcp: v.Tcp}
	if k.Proto != unix.IPPROTO_TCP {
		if this.opener {
			c.kinds[kindOf(v.Role, k, 0, 0)]++
		}
		return
	}
	at := k
	if this.opener {
		at = answerKey(k, v)
	}
	other, ok := c.half[at]
	switch {
	case !ok || other.opener == this.opener:
		c.half[at] = this
		return
	case this.opener:
		c.kinds[kindOf(this.role, k, this.tcp, other.tcp)]++
	default:
		c.kinds[kindOf(other.role, k, other.tcp, this.tcp)]++
	}
	delete(c.half, at)
}

// result also counts the flows whose answer entry was not read, because it was created or removed
// meanwhile.
func (c *census) result() map[dump.FlowKind]int {
	for k, h := range c.half {
		if h.opener {
			c.kinds[kindOf(h.role, k, h.tcp, 0)]++
		}
	}
	return c.kinds
}
