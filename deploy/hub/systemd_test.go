package hub

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestUnits writes the units of a hub and has a systemctl that notes its arguments.
func TestUnits(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	calls := filepath.Join(dir, "calls")
	programs := map[string]string{"systemctl": "#!/bin/sh\necho \"$@\" >> " + calls + "\n"}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "pelago", "pelago-hub"} {
		programs[name] = "#!/bin/sh\n"
	}
	for name, text := range programs {
		check(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	}
	l := &Local{Dir: filepath.Join(dir, "hub"), BinDir: bin, Address: "192.0.2.7", programs: bin, systemd: Systemd{Dir: t.TempDir(), Program: filepath.Join(bin, "systemctl")}}
	processes, err := l.Prepare(time.Now())
	check(t, err)
	called := func() string {
		text, err := os.ReadFile(calls)
		check(t, err)
		check(t, os.Remove(calls))
		return string(text)
	}
	start := func(processes []Process) error {
		units, err := l.units(processes)
		check(t, err)
		return l.systemd.Start(t.Context(), units)
	}
	const services = "pelago-hub-etcd.service pelago-hub-kube-apiserver.service pelago-hub-kube-controller-manager.service"
	check(t, start(processes))
	if diff := cmp.Diff("daemon-reload\nenable --now "+services+" pelago-hub-renewal.timer pelago-hub.service\n", called()); diff != "" {
		t.Errorf("systemctl: -want +got\n%s", diff)
	}
	units, err := l.units(processes)
	check(t, err)
	for name, want := range map[string]string{
		"pelago-hub-kube-apiserver.service": "After=pelago-hub-etcd.service\n",
		"pelago-hub.service":                "ExecStart=" + bin + "/pelago-hub \\\n  --kubeconfig=" + l.Dir + "/pki/hub.kubeconfig \\\n",
		"pelago-hub-renewal.service":        "ExecStart=" + bin + "/pelago hub renew --local --dir=" + l.Dir + "\n",
		"pelago-hub-renewal.timer":          "OnCalendar=daily\n",
	} {
		text, err := os.ReadFile(filepath.Join(l.systemd.Dir, name))
		if err != nil || !strings.Contains(string(text), want) || string(text) != units[name] {
			t.Errorf("%s (%v): %q is missing in\n%s", name, err, want, text)
		}
	}

	l.Address = "192.0.2.7:7443" // changed units are restarted, and only these
	processes, err = l.Prepare(time.Now())
	check(t, err)
	check(t, start(processes))
	if out := called(); !strings.Contains(out, "try-restart "+services+" pelago-hub.service\n") {
		t.Errorf("after a change of the port: %s", out)
	}
	l.Address = "" // the address stays
	_, err = l.Prepare(time.Now())
	check(t, err)
	check(t, start(processes))
	if out := called(); strings.Contains(out, "restart") {
		t.Errorf("without a change: %s", out)
	}

	// Without the --dir of before, and with an administrator's drop-in.
	other := *l
	other.Dir = filepath.Join(dir, "other")
	for verb, do := range map[string]func() error{
		"init":   func() error { return other.Install(t.Context(), t.Logf, func([]byte) error { return nil }) },
		"deinit": func() error { return other.Remove(t.Context(), false, t.Logf) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "give --dir "+l.Dir+",") {
			t.Errorf("%s with another --dir: %v", verb, err)
		}
	}
	if _, err := os.Stat(other.Dir); !os.IsNotExist(err) {
		t.Errorf("a refused init has made its directory: %v", err)
	}
	const added = "pelago-hub.service.d"
	check(t, os.Mkdir(filepath.Join(l.systemd.Dir, added), 0o755))

	check(t, l.Remove(t.Context(), false, t.Logf))
	if out := called(); strings.Contains(out, added) || !strings.HasPrefix(out, "disable --now pelago-hub-etcd.service") || !strings.HasSuffix(out, "daemon-reload\n") {
		t.Errorf("deinit: %s", out)
	}
	left, err := os.ReadDir(l.systemd.Dir)
	if err != nil || len(left) != 1 || left[0].Name() != added {
		t.Errorf("units %v (%v) stay, want the drop-in alone", left, err)
	}
	pki, err := l.pki()
	if err != nil || len(pki.Kept) == 0 {
		t.Errorf("without --purge the keys stay: %v (%v)", slices.Collect(maps.Keys(pki.Kept)), err)
	}
	check(t, l.Remove(t.Context(), true, t.Logf))
	if _, err := os.Stat(l.Dir); !os.IsNotExist(err) {
		t.Errorf("with --purge the directory stays: %v", err)
	}
}
