package liveness

import (
	"time"

	"github.com/pelago-net/pelago/bpf"
)

// StaleAfter is the age from which on the tables of a gateway that its daemon has not confirmed are
// stale.
const StaleAfter = time.Duration(bpf.PelagoLivenessLIVENESS_STALE) * time.Second

// Rank returns the quality of the path: path_base_rank() of bpf/health.h, and the ranks of paths
// that are suspect or gone.
func (p Path) Rank() bpf.PelagoRank {
	switch {
	case p.Probed && !p.Ready, p.Dead():
		return bpf.PelagoRankRANK_GONE
	case p.Suspect() || p.noReply:
		return bpf.PelagoRankRANK_BAD
	case p.Lossy:
		return bpf.PelagoRankRANK_LOSSY
	case p.Age > StaleAfter:
		return bpf.PelagoRankRANK_STALE
	}
	return bpf.PelagoRankRANK_GOOD
}
