package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelago-net/pelago/deploy"
)

// unitDir is where an administrator's units are.
func (l *Local) unitDir() string {
	if l.units != "" {
		return l.units
	}
	return "/etc/systemd/system"
}

// systemd reports whether systemd runs this machine.
func (l *Local) systemd() bool {
	if l.systemctl != "" {
		return true
	}
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

func (l *Local) control(ctx context.Context, args ...string) error {
	program := "systemctl"
	if l.systemctl != "" {
		program = l.systemctl
	}
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Units are the systemd units of the programs, and of the renewal of certificates, by file name.
func (l *Local) Units(processes []deploy.Process) (map[string]string, error) {
	self, err := l.program("pelago")
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(l.Dir)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	units := map[string]string{
		"pelago-hub-renewal.service": fmt.Sprintf("[Unit]\nDescription=Renewal of the certificates of the Pelago hub\n\n[Service]\nType=oneshot\n"+
			"ExecStart=%s hub renew --local --dir=%s\n", self, dir),
		"pelago-hub-renewal.timer": "[Unit]\nDescription=Renewal of the certificates of the Pelago hub\n\n[Timer]\nOnCalendar=daily\nPersistent=true\n\n" +
			"[Install]\nWantedBy=timers.target\n",
	}
	after := "network-online.target"
	for _, p := range processes {
		args := strings.ReplaceAll(strings.Join(p.Args, " \\\n  "), "$", "$$")
		name := unitName(p.Name)
		units[name] = fmt.Sprintf("[Unit]\nDescription=Pelago hub: %s\nWants=network-online.target\nAfter=%s\n\n[Service]\nExecStart=%s\n"+
			"Restart=always\nRestartSec=1\nLimitNOFILE=65536\n\n[Install]\nWantedBy=multi-user.target\n", p.Name, after, args)
		after = name
	}
	return units, nil
}

func unitName(process string) string {
	if process == "pelago-hub" {
		return "pelago-hub.service"
	}
	return "pelago-hub-" + process + ".service"
}

// startUnits writes the units and starts them; those that have changed, anew.
func (l *Local) startUnits(ctx context.Context, processes []deploy.Process, progress deploy.Progress) error {
	units, err := l.Units(processes)
	if err != nil {
		return err
	}
	progress("Starting %d systemd units in %s", len(units), l.unitDir())
	var enable, changed []string
	for name, text := range units {
		file := filepath.Join(l.unitDir(), name)
		have, err := os.ReadFile(file)
		if err == nil && string(have) != text {
			changed = append(changed, name)
		}
		if err := writeChanged(file, []byte(text)); err != nil {
			return err
		}
		if name != "pelago-hub-renewal.service" {
			enable = append(enable, name)
		}
	}
	slices.Sort(enable)
	slices.Sort(changed)
	if err := errors.Join(l.control(ctx, "daemon-reload"), l.control(ctx, append([]string{"enable", "--now"}, enable...)...)); err != nil {
		return err
	}
	if len(changed) == 0 {
		return nil
	}
	return l.control(ctx, append([]string{"try-restart"}, changed...)...)
}

// Remove ends and removes the units, and with purge the directory.
func (l *Local) Remove(ctx context.Context, purge bool, progress deploy.Progress) error {
	if err := l.stop(ctx, "disable", "--now"); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(l.unitDir(), "pelago-hub*"))
	if err != nil {
		return err
	}
	for _, file := range names {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove unit: %w", err)
		}
	}
	if len(names) > 0 {
		if err := l.control(ctx, "daemon-reload"); err != nil {
			return err
		}
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
	names, err := filepath.Glob(filepath.Join(l.unitDir(), "pelago-hub*"))
	if err != nil {
		return err
	}
	if len(names) > 0 {
		for i := range names {
			names[i] = filepath.Base(names[i])
		}
		return l.control(ctx, append(slices.Clone(verb), names...)...)
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
