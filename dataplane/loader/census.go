package loader

import (
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
)

// census counts flows by kind as their entries come in, in any order. What a TCP flow's state is both of its entries say,
// so the first of the two waits for the other; of all other flows the opener's is enough.
type census struct {
	kinds map[FlowKind]int
	half  map[bpf.PelagoFlowKey]half // by the key of the answers' entry
}

// half is one of the two entries of a TCP flow.
type half struct {
	opener    bool // it is the opener's
	role, tcp uint8
}

func newCensus() *census {
	return &census{kinds: map[FlowKind]int{}, half: map[bpf.PelagoFlowKey]half{}}
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

// result counts as well the flows of which the answers' entry did not come: it was made or removed meanwhile.
func (c *census) result() map[FlowKind]int {
	for k, h := range c.half {
		if h.opener {
			c.kinds[kindOf(h.role, k, h.tcp, 0)]++
		}
	}
	return c.kinds
}
