package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// Local are the flags of init about a hub of processes on this machine.
type Local struct {
	Dir, BinDir, Address string
	Foreground           bool
	// KarmadaTools: pelago-hub serves Karmada's tools.
	KarmadaTools bool
	Timeout      time.Duration
	programs     string // of tests: the directory of the programs of Pelago
	systemd      Systemd
}

// LocalVersions are those that the tests run.
const LocalVersions = "etcd 3.7 (with etcdutl, for a restore), kube-apiserver and kube-controller-manager 1.37"

const (
	// defaultPort is that of the API server. The hub's other programs listen on the seven ports
	// from there on, at 127.0.0.1, and for Karmada's tools on the next, at all addresses.
	defaultPort = 6443
	karmadaPort = 8 // after that of the API server
	// renewalInterval is how often certificates are checked.
	renewalInterval = 24 * time.Hour
)

// program is the path of a program of the hub: those of Pelago are in the directory of this one.
func (l *Local) program(name string) (string, error) {
	dirs := []string{l.BinDir}
	if strings.HasPrefix(name, "pelago") {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
		dirs = []string{l.programs, l.BinDir, filepath.Dir(self)}
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return filepath.Abs(path)
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find %s in --bin-dir %q and in $PATH: %w: a hub needs %s, in one directory", name, l.BinDir, err, LocalVersions)
	}
	return filepath.Abs(path)
}

// options are those of the hub's programs, by the address of an earlier run if none is given.
func (l *Local) options() (Machine, PKINames, error) {
	o := Machine{Port: defaultPort}
	var names PKINames
	var err error
	if o.Dir, err = filepath.Abs(l.Dir); err != nil {
		return o, names, fmt.Errorf("--dir: %w", err)
	}
	if strings.ContainsAny(o.Dir, " \t\"'\\%$") {
		return o, names, fmt.Errorf("--dir %q: give one without blanks, quotes and the characters \\, %% and $", l.Dir)
	}
	address := l.Address
	if cfg, err := clientcmd.LoadFromFile(filepath.Join(o.Dir, "pki", AdminKubeconfig)); err == nil && address == "" {
		address = strings.TrimPrefix(cfg.Clusters["hub"].Server, "https://")
	}
	if address == "" {
		// Nothing is sent: the kernel names the address of the way out.
		c, err := net.Dial("udp", "192.0.2.1:9")
		if err != nil {
			return o, names, fmt.Errorf("find the address of this machine: %w: give --api-address", err)
		}
		address = c.LocalAddr().(*net.UDPAddr).IP.String()
		_ = c.Close() // it holds no data
	}
	name := address
	if host, port, err := net.SplitHostPort(address); err == nil {
		name = host
		if o.Port, err = strconv.Atoi(port); err != nil || o.Port < 1024 || o.Port > 65535-karmadaPort {
			return o, names, fmt.Errorf("--api-address %s: give a port from 1024 to %d", address, 65535-karmadaPort)
		}
	}
	// kube-apiserver 1.37 refuses to advertise a loopback address, and advertises that of the way
	// out without one.
	if ip := net.ParseIP(name); ip != nil && !ip.IsLoopback() {
		o.Address = name
	}
	hosts := []string{name, "localhost", "127.0.0.1", "kubernetes.default.svc"}
	names = PKINames{APIServer: hosts, Etcd: []string{"localhost", "127.0.0.1"},
		Internal: fmt.Sprintf("https://127.0.0.1:%d", o.Port), External: fmt.Sprintf("https://%s", net.JoinHostPort(name, strconv.Itoa(o.Port)))}
	if l.KarmadaTools {
		names.Karmada, names.KarmadaURL = hosts, "https://"+net.JoinHostPort(name, strconv.Itoa(o.Port+karmadaPort))
	}
	return o, names, nil
}

// Prepare writes keys, certificates and configuration into the directory, and returns the hub's
// programs with their paths as the first argument. What exists stays.
func (l *Local) Prepare(now time.Time) (processes []Process, err error) {
	o, names, err := l.options()
	if err != nil {
		return nil, err
	}
	processes, audit, err := o.Processes()
	if err != nil {
		return nil, err
	}
	last := Process{Name: "pelago-hub", Args: []string{"--kubeconfig=" + filepath.Join(o.Dir, "pki", "hub.kubeconfig"), "--identity=local",
		fmt.Sprintf("--metrics-address=127.0.0.1:%d", o.Port+5), fmt.Sprintf("--health-address=127.0.0.1:%d", o.Port+6),
		fmt.Sprintf("--proxy-address=127.0.0.1:%d", o.Port+7), "--proxy-host=localhost"}}
	if l.KarmadaTools {
		pki := filepath.Join(o.Dir, "pki", KarmadaName)
		last.Args = append(last.Args, fmt.Sprintf("--karmada-address=:%d", o.Port+karmadaPort),
			"--karmada-tls-cert-file="+pki+".crt", "--karmada-tls-private-key-file="+pki+".key")
	}
	processes = append(processes, last)
	for i, p := range processes {
		path, err := l.program(p.Name)
		if err != nil {
			return nil, err
		}
		processes[i].Args = append([]string{path}, p.Args...)
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "pki"), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the hub: %w", err)
	}
	if _, err := l.renew(names, now); err != nil {
		return nil, err
	}
	return processes, WriteChanged(filepath.Join(o.Dir, "audit.yaml"), []byte(audit))
}

// Renew renews certificates with less than a third of their lifetime left. The processes reload
// them.
func (l *Local) Renew(now time.Time) ([]string, error) {
	if _, err := os.Stat(filepath.Join(l.Dir, "pki", "ca.key")); err != nil {
		return nil, fmt.Errorf("find the hub in --dir %s: %w", l.Dir, err)
	}
	return l.renew(PKINames{}, now)
}

func (l *Local) renew(names PKINames, now time.Time) ([]string, error) {
	pki, err := l.pki()
	if err != nil {
		return nil, err
	}
	renewed, err := pki.Complete(names, now)
	if err != nil {
		return nil, err
	}
	return renewed, l.write(pki)
}

// pki reads the keys and certificates in the directory.
func (l *Local) pki() (PKI, error) {
	files := map[string][]byte{}
	entries, err := os.ReadDir(filepath.Join(l.Dir, "pki"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return PKI{}, fmt.Errorf("read the keys of the hub: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".new") {
			continue // of an interrupted write
		}
		if files[e.Name()], err = os.ReadFile(filepath.Join(l.Dir, "pki", e.Name())); err != nil {
			return PKI{}, fmt.Errorf("read the keys of the hub: %w", err)
		}
	}
	return Split(files), nil
}

func (l *Local) write(pki PKI) error {
	var errs []error
	for name, content := range pki.Files() {
		errs = append(errs, WriteChanged(filepath.Join(l.Dir, "pki", name), content))
	}
	return errors.Join(errs...)
}

// Install starts the hub's programs by systemd, or until ctx ends, makes the API server a hub, and
// calls ready with the kubeconfig of the administrator.
func (l *Local) Install(ctx context.Context, progress manifests.Progress, ready func(admin []byte) error) error {
	foreground := l.Foreground || !l.systemd.Runs()
	if !foreground {
		if err := l.checkUnits(); err != nil {
			return err
		}
	}
	processes, err := l.Prepare(time.Now())
	if err != nil {
		return err
	}
	var wait func() error
	var startHub func()
	if foreground {
		progress("Starting the hub until this command ends: logs are in %s", l.Dir)
		s := Supervisor{Dir: l.Dir}
		ctx, cancel := context.WithCancel(ctx)
		defer func() { cancel(); s.Wait() }()
		for _, p := range processes[:len(processes)-1] {
			s.Run(ctx, p)
		}
		startHub = func() { s.Run(ctx, processes[len(processes)-1]) }
		wait = func() error { return l.renewUntil(ctx, progress) }
	} else {
		units, err := l.units(processes)
		if err != nil {
			return err
		}
		progress("Starting %d systemd units", len(units))
		if err := l.systemd.Start(ctx, units); err != nil {
			return err
		}
		startHub, wait = func() {}, func() error { return nil }
	}
	admin, err := os.ReadFile(filepath.Join(l.Dir, "pki", AdminKubeconfig))
	if err != nil {
		return fmt.Errorf("read the kubeconfig of the hub: %w", err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(admin)
	if err != nil {
		return fmt.Errorf("read the kubeconfig of the hub: %w", err)
	}
	if err := Propagation(ctx, cfg, l.Timeout, progress); err != nil {
		return fmt.Errorf("%w\nSee the logs of etcd and kube-apiserver in %s, or by journalctl -u 'pelago-hub*'", err, l.Dir)
	}
	if err := l.completeRestore(); err != nil {
		return err
	}
	startHub()
	if err := ready(admin); err != nil {
		return err
	}
	return wait()
}

// renewUntil renews certificates until ctx ends.
func (l *Local) renewUntil(ctx context.Context, progress manifests.Progress) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(renewalInterval):
		}
		if renewed, err := l.Renew(time.Now()); err != nil {
			progress("%v", err)
		} else if len(renewed) > 0 {
			progress("Issued the certificates %v", renewed)
		}
	}
}

// Backup writes the state of the hub, which runs, into a file.
func (l *Local) Backup(ctx context.Context, file string) error {
	o, _, err := l.options()
	if err != nil {
		return err
	}
	pki, err := l.pki()
	if err != nil {
		return err
	}
	return writeBackup(ctx, file, nil, pki, fmt.Sprintf("https://127.0.0.1:%d", o.Port+1))
}

// checkUnits refuses to replace, or to stop, the units of a hub in another directory.
func (l *Local) checkUnits() error {
	dir, err := filepath.Abs(l.Dir)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	of, err := l.systemd.Hub()
	if err != nil || of == "" || of == dir {
		return err
	}
	return fmt.Errorf("--dir %s: the systemd units of this machine are of the hub in %s: give --dir %s, or remove that hub first with "+
		"`pelago deinit --local --dir %s`", l.Dir, of, of, of)
}

// units are the systemd units of the programs.
func (l *Local) units(processes []Process) (map[string]string, error) {
	self, err := l.program("pelago")
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(l.Dir)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	return Units(processes, self, dir), nil
}

// Remove ends and removes the units, and with purge the directory.
func (l *Local) Remove(ctx context.Context, purge bool, progress manifests.Progress) error {
	if err := l.stop(ctx, "disable", "--now"); err != nil {
		return err
	}
	if err := l.systemd.Remove(ctx); err != nil {
		return err
	}
	if !purge {
		progress("Keys, certificates and data stay in %s; --purge removes them", l.Dir)
		return nil
	}
	progress("Removing %s", l.Dir)
	return os.RemoveAll(l.Dir)
}

// stop ends the units by a verb of systemctl; of a hub in the foreground it demands that.
func (l *Local) stop(ctx context.Context, verb ...string) error {
	if err := l.checkUnits(); err != nil {
		return err
	}
	if found, err := l.systemd.Stop(ctx, verb...); err != nil || found {
		return err
	}
	o, _, err := l.options()
	if err != nil {
		return err
	}
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", o.Port+1), time.Second)
	if err != nil {
		return nil // etcd does not listen
	}
	return errors.Join(c.Close(), fmt.Errorf("the hub in %s runs: end its `pelago init --local --foreground` first", l.Dir))
}
