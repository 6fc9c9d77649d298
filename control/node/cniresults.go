package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/node/tables"
)

// CNIDir is where the CNI library keeps the results of plugins (CacheDir of libcni).
const CNIDir = "/var/lib/cni"

// podInterface is the name of a pod's device in the default network: container runtimes call it so,
// whatever the CNI.
const podInterface = "eth0"

// cniResults are the addresses that CNI plugins have given to pods, as the CNI library caches them:
// it writes a file at the end of each ADD, before a container of the pod starts. The API shows the
// address about a second later.
type cniResults struct {
	// dir is CNIDir; empty: nothing is read.
	dir   string
	files map[string]cniFile
}

// cniFile is a file that was read. One that is no result has no pod.
type cniFile struct {
	modified time.Time
	size     int64
	result   cniResult
}

// cniResult is the address of a pod in the default network.
type cniResult struct {
	pod     types.NamespacedName
	uid     types.UID // empty: the container runtime does not pass it
	address netip.Addr
}

// dirs are those of result files. cri-dockerd has one of its own.
func (c *cniResults) dirs() []string {
	return []string{filepath.Join(c.dir, "results"), filepath.Join(c.dir, "cache", "results")}
}

// read returns the results, the newest last. Files that have not changed are not read again.
func (c *cniResults) read() ([]cniResult, error) {
	files := map[string]cniFile{}
	var errs []error
	for _, dir := range c.dirs() {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("list the results of CNI plugins: %w", err))
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() {
				continue // removed
			}
			f, ok := c.files[path]
			if !ok || !f.modified.Equal(info.ModTime()) || f.size != info.Size() {
				content, err := os.ReadFile(path)
				if err != nil {
					continue // removed
				}
				f = cniFile{modified: info.ModTime(), size: info.Size()}
				if r, err := parseCNIResult(content); err == nil {
					f.result = r
				} // else it is of another device or network, or incomplete and read again when it is closed
			}
			files[path] = f
		}
	}
	c.files = files
	var found []cniFile
	for _, f := range files {
		if f.result.pod.Name != "" {
			found = append(found, f)
		}
	}
	slices.SortFunc(found, func(a, b cniFile) int { return a.modified.Compare(b.modified) })
	out := make([]cniResult, len(found))
	for i, f := range found {
		out[i] = f.result
	}
	return out, errors.Join(errs...)
}

// parseCNIResult reads a file of libcni's cache (kind cniCacheV1). It is an error if it holds no
// IPv4 address of a pod in the default network.
func parseCNIResult(content []byte) (r cniResult, err error) {
	var f struct {
		Kind   string      `json:"kind"`
		IfName string      `json:"ifName"`
		Args   [][2]string `json:"cniArgs"`
		Result struct {
			IPs []struct {
				Address string `json:"address"`
			} `json:"ips"`
			IP4 struct {
				IP string `json:"ip"`
			} `json:"ip4"` // before version 0.3.0 of the specification
		} `json:"result"`
	}
	if err := json.Unmarshal(content, &f); err != nil {
		return r, fmt.Errorf("parse the result of a CNI plugin: %w", err)
	}
	if f.Kind != "cniCacheV1" || f.IfName != podInterface {
		return r, fmt.Errorf("result of kind %q for device %q; want cniCacheV1 for %s", f.Kind, f.IfName, podInterface)
	}
	for _, arg := range f.Args {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			r.pod.Namespace = arg[1]
		case "K8S_POD_NAME":
			r.pod.Name = arg[1]
		case "K8S_POD_UID":
			r.uid = types.UID(arg[1])
		}
	}
	texts := []string{f.Result.IP4.IP}
	for _, ip := range f.Result.IPs {
		texts = append(texts, ip.Address)
	}
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
			r.address = p.Addr()
			break
		}
	}
	if r.pod.Namespace == "" || r.pod.Name == "" || !r.address.IsValid() {
		return cniResult{}, fmt.Errorf("result of a CNI plugin for pod %q with address %s: no IPv4 address of a pod", r.pod, r.address)
	}
	return r, nil
}

// starting reports whether a pod of this node has no address in the API yet.
func starting(objs tables.Objects, p *corev1.Pod) bool {
	_, known := tables.PodIP(p)
	return !known && tables.IsLocal(objs, p)
}

// withStarting returns the objects with the addresses of pods whose CNI ADD has ended and that have
// none in the API yet. What the API shows takes precedence, also for the address of another pod.
func withStarting(objs tables.Objects, results []cniResult) tables.Objects {
	taken := map[netip.Addr]bool{}
	for i := range objs.Pods {
		if a, ok := tables.PodIP(&objs.Pods[i]); ok && !tables.Finished(&objs.Pods[i]) {
			taken[a] = true
		}
	}
	// The newest of each pod, and the pod of the newest of each address: the files of a former
	// sandbox may remain.
	byName, owner := map[types.NamespacedName]cniResult{}, map[netip.Addr]types.NamespacedName{}
	for _, r := range results {
		byName[r.pod], owner[r.address] = r, r.pod
	}
	objs.Pods = slices.Clone(objs.Pods) // those of the cache do not change
	for i := range objs.Pods {
		p := &objs.Pods[i]
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		r, ok := byName[name]
		if ok && starting(objs, p) && (r.uid == "" || r.uid == p.UID) && owner[r.address] == name && !taken[r.address] {
			p.Status.PodIPs = []corev1.PodIP{{IP: r.address.String()}}
			taken[r.address] = true
		}
	}
	return objs
}

// addStarting adds what CNI plugins have given to starting pods.
func (d *Daemon) addStarting(objs tables.Objects) (tables.Objects, []string) {
	if d.cni.dir == "" || !slices.ContainsFunc(objs.Pods, func(p corev1.Pod) bool { return starting(objs, &p) }) {
		return objs, nil
	}
	results, err := d.cni.read()
	if err != nil {
		return withStarting(objs, results), []string{err.Error()}
	}
	return withStarting(objs, results), nil
}

// watchCNI calls changed when a CNI ADD has ended, until ctx ends.
func watchCNI(ctx context.Context, c cniResults, changed func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch the results of CNI plugins: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	defer context.AfterFunc(ctx, func() {
		_ = events.SetReadDeadline(time.Now()) // it fails only if events is closed, when nothing reads
	})()
	add := func(dir string, mask uint32) error {
		_, err := unix.InotifyAddWatch(fd, dir, mask|unix.IN_ONLYDIR)
		if err != nil && !errors.Is(err, unix.ENOENT) { // it may be made later
			return fmt.Errorf("watch %s: %w (ENOSPC: raise the sysctl fs.inotify.max_user_watches)", dir, err)
		}
		return nil
	}
	watch := func() (err error) {
		for _, parent := range []string{c.dir, filepath.Join(c.dir, "cache")} {
			err = errors.Join(err, add(parent, unix.IN_CREATE))
		}
		for _, dir := range c.dirs() {
			err = errors.Join(err, add(dir, unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO))
		}
		return err
	}
	buffer := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		if err := watch(); err != nil {
			return err // the results are read at other changes then
		}
		// Which event it is does not matter.
		if _, err := events.Read(buffer); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return fmt.Errorf("watch the results of CNI plugins: %w", err)
		}
		changed()
	}
}

// wakeNow wakes the daemon without settleTime: the first packet of a new pod is about to come.
func (d *Daemon) wakeNow() {
	select {
	case d.urgent <- struct{}{}:
	default:
	}
}
