package natt

import (
	"net/netip"

	"golang.org/x/time/rate"
)

// Answers per second and at once: to one address, and to all. A peer asks with at most two addresses every two seconds,
// and some gateways may stand behind one address.
const (
	ratePerSource, burstPerSource = 20, 40
	rateOverall, burstOverall     = 2000, 2000
	maxSources                    = 4096
)

// limits bounds answers. Only authenticated requests reach it, so its table grows by peers and by replayed requests with
// made-up sources, and the latter up to maxSources.
type limits struct {
	overall *rate.Limiter
	sources map[netip.Addr]*rate.Limiter
}

func newLimits() *limits {
	return &limits{overall: rate.NewLimiter(rateOverall, burstOverall), sources: map[netip.Addr]*rate.Limiter{}}
}

// allow takes one answer to a source from what is allowed.
func (l *limits) allow(source netip.Addr) bool {
	s := l.sources[source]
	if s == nil {
		if len(l.sources) >= maxSources {
			l.forgetIdle()
		}
		if len(l.sources) >= maxSources {
			return false
		}
		s = rate.NewLimiter(ratePerSource, burstPerSource)
		l.sources[source] = s
	}
	return s.Allow() && l.overall.Allow()
}

// forgetIdle drops sources of which nothing was heard for so long that their allowance is full again.
func (l *limits) forgetIdle() {
	for source, s := range l.sources {
		if s.Tokens() >= burstPerSource {
			delete(l.sources, source)
		}
	}
}
