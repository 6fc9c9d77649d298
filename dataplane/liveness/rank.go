package liveness

import "time"

// staleAfter is stale_after of bpf/config.h.
const staleAfter = 120 * time.Second

// Rank is enum rank of bpf/health.h: the quality of a path, best first.
type Rank int

// Ranks.
const (
	RankGood Rank = iota
	RankStale
	RankLossy
	RankBad
	RankGone
	RankNone
)

func (r Rank) String() string { return [...]string{"good", "stale", "lossy", "bad", "gone", "none"}[r] }

// Rank returns the quality of the path: path_rank() of bpf/health.h.
func (p Path) Rank() Rank {
	switch {
	case p.Probed && !p.Ready, p.Dead():
		return RankGone
	case p.Suspect() || p.noReply:
		return RankBad
	case p.Lossy:
		return RankLossy
	case p.Age > staleAfter:
		return RankStale
	}
	return RankGood
}
