package node

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// purges are the flows that the tables do not allow any more, and those that were removed.
type purges struct {
	running bool // one at a time: each dumps the table of flows
	// wanted are the tables that were written last.
	wanted tables.Result
	// owners are the pods of the local addresses in the tables; stale are addresses of pods that
	// are gone, whose flows are to be removed.
	owners map[netip.Addr]types.UID
	stale  map[netip.Addr]bool
	// purged: the flows that an earlier process left were compared with the tables.
	purged bool
	// audiences are those whose flows were compared with the table of flows last.
	audiences map[netip.Addr]dataplane.ClusterSet
	// mapped are the egress IPs with mappings whose flows were compared with the table of flows
	// last.
	mapped map[netip.Addr]bool
}

// purge is what one purge removes, and how it ended.
type purge struct {
	// gone: the flows of pods that are gone, among them those of stale; the next pod of an address
	// must get none of their packets.
	gone  func(netip.Addr) bool
	stale map[netip.Addr]bool
	// revoke: the flows of clusters outside of audiences, to which a service is not exported any
	// more.
	revoke    bool
	audiences map[netip.Addr]dataplane.ClusterSet
	// unmap: those that egress IPs opened before they were mapped.
	unmap  bool
	mapped map[netip.Addr]bool
	err    error
}

// note takes the tables that were written.
func (p *purges) note(r tables.Result) {
	for a, uid := range p.owners {
		if r.Owners[a] != uid {
			if p.stale == nil {
				p.stale = map[netip.Addr]bool{}
			}
			p.stale[a] = true
		}
	}
	p.owners, p.wanted = r.Owners, r
}

// next is what is to be removed: after a change of the tables, once after the start, and again
// after a failure.
func (p *purges) next() (job purge, due bool) {
	r := p.wanted
	if ready := r.State.Settings.Ready; ready && (len(p.stale) > 0 || !p.purged) {
		stale := p.stale
		job.stale = stale
		job.gone = func(a netip.Addr) bool {
			_, known := r.State.Source(a)
			_, local := r.Owners[a] // its device may be unknown for a moment
			return stale[a] || !known && !local
		}
	}
	job.audiences, job.mapped = r.State.Audiences, r.State.Mapped()
	job.revoke, job.unmap = !maps.Equal(p.audiences, job.audiences), !maps.Equal(p.mapped, job.mapped)
	return job, job.gone != nil || job.revoke || job.unmap
}

// begun takes the begin of a purge: addresses that lose their pod meanwhile are for the next one.
func (p *purges) begun(j purge) {
	p.running = true
	if j.gone != nil {
		p.stale = nil
	}
}

// run removes the flows.
func (j *purge) run(l *loader.Loader, log *slog.Logger) {
	report := func(removed int, err error, what string, args ...any) {
		if removed > 0 {
			log.Info(what, append(args, "flows", removed)...)
		}
		j.err = errors.Join(j.err, err)
	}
	if j.revoke {
		removed, err := l.PurgeRevoked(j.audiences)
		report(removed, err, "removed the flows of clusters to which their services are not exported")
	}
	if j.unmap {
		removed, err := l.PurgeUnmapped(j.mapped)
		report(removed, err, "removed the flows that are older than their mapping", "annotation", submarinerv1.AnnotationNATMapping)
	}
	if j.gone != nil {
		removed, err := l.PurgeFunc(j.gone)
		report(removed, err, "removed the flows of pods that are gone")
	}
}

// done takes the end of a purge; one that failed is repeated.
func (p *purges) done(j purge) {
	p.running = false
	if j.err != nil {
		if p.stale == nil {
			p.stale = map[netip.Addr]bool{}
		}
		maps.Copy(p.stale, j.stale)
		return
	}
	p.purged = p.purged || j.gone != nil
	p.audiences, p.mapped = j.audiences, j.mapped
}

// beginPurge removes the flows that the tables do not allow any more, unless a purge is under way,
// which is followed by another one. It dumps the table of flows, two seconds of a million, for
// which the loop must not wait: it also watches the paths.
func (d *Daemon) beginPurge() {
	job, due := d.purges.next()
	if d.purges.running || !due {
		return
	}
	d.purges.begun(job)
	go func() {
		job.run(d.loader, d.log)
		d.purgeEnded <- job
	}()
}

// notePurge takes the end of a purge.
func (d *Daemon) notePurge(j purge) {
	d.purges.done(j)
	if j.err != nil {
		d.log.Error("remove the flows that the tables do not allow any more", "error", j.err)
		d.wakeLater()
		return
	}
	d.beginPurge()
}

// endPurge waits for the purge that is under way.
func (d *Daemon) endPurge() {
	if d.purges.running {
		d.purges.done(<-d.purgeEnded)
	}
}
