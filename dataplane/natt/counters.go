package natt

import "sync/atomic"

// count numbers what is counted.
type count int

const (
	sent          count = iota // requests of ours
	answers                    // answers that were taken
	requests                   // requests of others that were answered
	calls                      // proven calls of others
	unsent                     // answers and calls that the kernel refused
	malformed                  // dropped: no message, or a kind that does not belong at this port
	otherVersion               // dropped: another version
	foreignKey                 // dropped: the MAC is wrong
	notForUs                   // dropped: to another gateway
	unknownPeer                // dropped: from a gateway that is not among the peers
	replayed                   // dropped: an answer to nothing that is out, or a call without a valid cookie
	fromElsewhere              // dropped: an answer that comes from another address than was asked
	tooMany                    // dropped: the source, or all together, asked too often
	countKinds
)

var countNames = [countKinds]string{
	"sent", "answers", "requests", "calls", "unsent", "malformed", "other_version", "foreign_key", "not_for_us", "unknown_peer",
	"replayed", "from_elsewhere", "too_many",
}

type counters [countKinds]atomic.Uint64

func (c *counters) add(k count) { c[k].Add(1) }

// Counters returns how many messages were handled or dropped since Open, by what became of them. The names are fixed.
func (d *Discovery) Counters() map[string]uint64 {
	out := make(map[string]uint64, countKinds)
	for k, name := range countNames {
		out[name] = d.counts[k].Load()
	}
	return out
}
