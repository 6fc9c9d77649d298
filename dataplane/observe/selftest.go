package observe

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// SelftestPod is a pod of this node, with what the tables have of it.
type SelftestPod struct {
	Name    string // namespace/name
	Address netip.Addr
	// Source is the interface index at which the node's stack is to receive its packets.
	Source uint32
	// Device is the node's end of its own device, MAC the address of the pod's end, and Namespace
	// the path of its network namespace; 0 and empty: not known.
	Device    uint32
	MAC       [6]byte
	Namespace string
	// Programs: pod_out is attached to Device.
	Programs bool
	Datapath dataplane.Datapath
}

// SelftestTarget is an address in a prefix that packets of pods are routed into the overlay for.
type SelftestTarget struct {
	Address netip.Addr
	// VIP: it is a ClusterSetIP.
	VIP bool
}

// SelftestReport is the result of a self-test.
type SelftestReport struct {
	// Paths counts the kinds of paths by what became of their packets.
	Paths map[SelftestOutcome]int
	// Findings are sorted by pod.
	Findings []SelftestFinding
	// Revision changes with the programs of others at the devices that were tested.
	Revision string
}

const (
	// selftestTTL is enough for two routers of the CNI before the node's stack; what leaves the
	// node by a device without our programs does not get far.
	selftestTTL = 3
	// selftestWait is how long a datagram is waited for: queues on one node are shorter.
	selftestWait = 300 * time.Millisecond
	// selftestPods is how many pods of one kind are tested until one passes: a NetworkPolicy may
	// deny the egress of some.
	selftestPods = 3
	// Source ports are ones that few sockets of pods use: an ICMP error of the node's stack reaches
	// no process.
	selftestSourcePort  = 700
	selftestSourcePorts = 256
	// selftestKinds bounds the kinds of paths that are tested.
	selftestKinds = 16
)

// selftestRuns counts self-tests from a random number on. Each has a source port of its own:
// conntrack repeats its decisions for a tuple, for 30 s by default, so that with a port that was
// used shortly before, a rule would be found that is gone, or one missed that is new.
var selftestRuns atomic.Uint32

func init() { selftestRuns.Store(rand.Uint32()) }

// selftestKind is what pods have in common whose packets take the same path through the node. Only
// a few pods of each kind are tested.
type selftestKind struct {
	device, port, route string
	programs            bool
	datapath            dataplane.Datapath
	vip                 bool
}

// Selftest sends, for each kind of path, a datagram as if from a pod to an address of another
// cluster, and reports whether edge_out received it from the device in the tables. The programs end
// each datagram at the latest at an uplink; no other process gets one. edge is the interface index
// of pelago0.
func Selftest(l *loader.Loader, edge uint32, pods []SelftestPod, to []SelftestTarget) (SelftestReport, error) {
	t := selftest{
		loader: l, edge: edge, links: map[uint32]netlink.Link{},
		port: selftestSourcePort + uint16(selftestRuns.Add(1)%selftestSourcePorts),
	}
	links, err := netdev.Dump(netlink.LinkList)
	if err != nil {
		return SelftestReport{}, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		t.links[uint32(l.Attrs().Index)] = l
	}
	report := SelftestReport{Paths: map[SelftestOutcome]int{}}
	var errs []error
	var revision strings.Builder
	for _, kind := range t.kinds(pods, to) {
		var worst SelftestFinding
		for _, v := range kind[:min(len(kind), selftestPods)] {
			device := cmp.Or(v.pod.Device, v.pod.Source)
			fmt.Fprintf(&revision, "%d:%d ", device, revisionAt(device))
			found, err := t.try(v)
			if err != nil {
				errs = append(errs, fmt.Errorf("test the path of pod %s: %w", v.pod.Name, err))
				continue
			}
			if found.Outcome == SelftestPassed {
				worst = found
				break
			}
			if worst.Outcome == "" || found.Outcome.worse(worst.Outcome) {
				worst = found
			}
		}
		switch worst.Outcome {
		case "": // none could be sent
		case SelftestPassed:
			report.Paths[SelftestPassed]++
		default:
			report.Paths[worst.Outcome]++
			report.Findings = append(report.Findings, worst)
		}
	}
	slices.SortFunc(report.Findings, func(a, b SelftestFinding) int { return cmp.Compare(a.Pod, b.Pod) })
	report.Revision = revision.String()
	return report, errors.Join(errs...)
}

// SelftestRevision returns the Revision of programs at the devices of an earlier one.
func SelftestRevision(earlier string) string {
	var b strings.Builder
	for device := range strings.FieldsSeq(earlier) {
		var ifindex uint32
		if _, err := fmt.Sscanf(device, "%d:", &ifindex); err == nil {
			fmt.Fprintf(&b, "%d:%d ", ifindex, revisionAt(ifindex))
		}
	}
	return b.String()
}

type selftest struct {
	loader *loader.Loader
	edge   uint32
	links  map[uint32]netlink.Link
	port   uint16 // source port of this run
}

// probed is a pod with a target, and the route that the node's rules give such a packet.
type probed struct {
	pod   SelftestPod
	to    SelftestTarget
	route trace.Stack
}

// kinds groups the paths. Pods without a known device at which the stack receives them are not
// connected, and reported elsewhere.
func (t *selftest) kinds(pods []SelftestPod, to []SelftestTarget) [][]probed {
	index := map[selftestKind]int{}
	var out [][]probed
	for _, pod := range slices.SortedFunc(slices.Values(pods), func(a, b SelftestPod) int { return a.Address.Compare(b.Address) }) {
		if pod.Source == 0 {
			continue
		}
		for _, target := range to {
			v := probed{pod: pod, to: target}
			// the address is that of the node as a source: the pod's is given
			v.route, _ = routeOf(trace.Packet{
				Source: netip.AddrPortFrom(pod.Address, 0), Destination: netip.AddrPortFrom(target.Address, 0),
			}, dataplane.Source{Ifindex: pod.Source}, t.edge)
			k := selftestKind{
				device: t.kindOf(pod.Source), port: t.kindOf(pod.Device), route: v.route.Device + v.route.Error,
				programs: pod.Programs, datapath: pod.Datapath, vip: target.VIP,
			}
			i, ok := index[k]
			switch {
			case ok:
				out[i] = append(out[i], v)
			case len(out) < selftestKinds:
				index[k] = len(out)
				out = append(out, []probed{v})
			}
		}
	}
	return out
}

// kindOf is the kind of a device, with that of the switch it is a port of.
func (t *selftest) kindOf(ifindex uint32) string {
	l, ok := t.links[ifindex]
	if !ok {
		return ""
	}
	kind := l.Type()
	if master, ok := t.links[uint32(l.Attrs().MasterIndex)]; ok {
		kind += " of " + master.Type() + " " + master.Attrs().Name
	}
	return kind
}

func (t *selftest) name(ifindex uint32) string {
	if l, ok := t.links[ifindex]; ok {
		return l.Attrs().Name
	}
	return fmt.Sprintf("device %d", ifindex)
}

// try sends one datagram and judges what became of it.
func (t *selftest) try(v probed) (SelftestFinding, error) {
	at := cmp.Or(v.pod.Device, v.pod.Source)
	source, ok := t.links[v.pod.Source]
	if !ok || t.links[at] == nil {
		return SelftestFinding{}, nil // gone; an event of the device follows
	}
	gateway := source.Attrs().HardwareAddr
	if v.pod.Namespace != "" {
		if mac, err := netdev.GatewayMAC(v.pod.Namespace); err == nil && mac != nil {
			gateway = mac // which need not be an address of this node
		}
	}
	p := trace.Probe{Marker: rand.Uint32()>>1 + 1, Packet: trace.Packet{
		Protocol: unix.IPPROTO_UDP, Source: netip.AddrPortFrom(v.pod.Address, t.port),
		Destination: netip.AddrPortFrom(v.to.Address, loader.SelftestPort),
	}}
	fd, err := listen(p)
	if err != nil {
		return SelftestFinding{}, fmt.Errorf("watch the devices: %w", err)
	}
	defer unix.Close(fd)
	if err := t.loader.BeginSelftest(p.Marker); err != nil {
		return SelftestFinding{}, err
	}
	if err := inject(at, gateway, v.pod.MAC, packetOf(p, selftestTTL)); err != nil {
		return SelftestFinding{}, errors.Join(err, t.loader.BeginSelftest(0))
	}
	o := observed{probed: v, at: t.name(at), source: t.name(v.pod.Source)}
	recorded, err := t.await(fd, p, &o)
	if err := errors.Join(err, t.loader.BeginSelftest(0)); err != nil {
		return SelftestFinding{}, err
	}
	o.edge, o.address, o.pod = recorded.Edge, recorded.Source, recorded.Pod != 0
	if recorded.Edge {
		o.ingress = t.name(recorded.Ingress)
	}
	if recorded.Uplink != 0 {
		o.uplink = t.name(recorded.Uplink)
	}
	o.programs = programsAt(at)
	return o.judge(), nil
}

// await returns what the programs recorded once one of them has ended the datagram, or after
// selftestWait. Meanwhile it notes where the datagram is seen.
func (t *selftest) await(fd int, p trace.Probe, o *observed) (loader.Selftest, error) {
	buffer := make([]byte, snapLen)
	for end := time.Now().Add(selftestWait); ; {
		recorded, err := t.loader.Selftest()
		if err != nil || recorded.Edge || recorded.Uplink != 0 {
			return recorded, err
		}
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		switch {
		case err == nil:
			if s, ok := sighting(p, buffer[:n], from); ok && !s.Answer && s.From == nil {
				o.seen = append(o.seen, s)
			}
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return recorded, fmt.Errorf("watch the devices: %w", err)
		case time.Now().After(end):
			return recorded, nil
		}
	}
}

// revisionAt returns a number that changes with the programs at the ingress of a device. Kernels
// before 6.6 have none: their filters are watched.
func revisionAt(ifindex uint32) uint64 {
	attached, err := link.QueryPrograms(link.QueryOptions{Target: int(ifindex), Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return 0
	}
	return attached.Revision
}

// programsAt names the programs of others at the ingress of a device, in the order of execution.
func programsAt(ifindex uint32) (names []string) {
	attached, err := link.QueryPrograms(link.QueryOptions{Target: int(ifindex), Attach: ebpf.AttachTCXIngress})
	if err == nil {
		for _, a := range attached.Programs {
			names = append(names, programName(a.ID))
		}
	}
	filters, err := netlink.FilterList(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: int(ifindex)}}, netlink.HANDLE_MIN_INGRESS)
	if err == nil {
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok {
				names = append(names, b.Name)
			} else {
				names = append(names, f.Type())
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "pod_out") })
}

func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprintf("program %d", id)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name == "" {
		return fmt.Sprintf("program %d", id)
	}
	return info.Name
}
