package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Systemd runs the programs of a hub as units. The zero value is that of this machine.
type Systemd struct {
	// Dir has the units, Program is systemctl: of tests, others than the machine's.
	Dir, Program string
}

func (s Systemd) dir() string {
	if s.Dir != "" {
		return s.Dir
	}
	return "/etc/systemd/system" // an administrator's units
}

// Runs reports whether systemd runs this machine.
func (s Systemd) Runs() bool {
	if s.Program != "" {
		return true
	}
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

func (s Systemd) control(ctx context.Context, args ...string) error {
	program := "systemctl"
	if s.Program != "" {
		program = s.Program
	}
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Units are the systemd units of the programs, and of the renewal of certificates, by file name.
// pelago is the path of that program, dir the directory of the hub.
func Units(processes []Process, pelago, dir string) map[string]string {
	units := map[string]string{
		renewalUnit: fmt.Sprintf("[Unit]\nDescription=Renewal of the certificates of the Pelago hub\n\n[Service]\nType=oneshot\n"+
			"ExecStart=%s hub renew --local --dir=%s\n", pelago, dir),
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
	return units
}

// renewalUnit names the directory of the hub.
const renewalUnit = "pelago-hub-renewal.service"

// Hub returns the directory of the hub that the units are of, "" if none exist.
func (s Systemd) Hub() (string, error) {
	text, err := os.ReadFile(filepath.Join(s.dir(), renewalUnit))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read unit: %w", err)
	}
	_, dir, _ := strings.Cut(string(text), " --dir=") // the last argument of its command
	// up to the end of the line, which may be that of the file
	dir, _, _ = strings.Cut(dir, "\n")
	return dir, nil
}

// files are the units. The directories of an administrator's drop-ins, pelago-hub.service.d, are
// none and stay.
func (s Systemd) files() ([]string, error) {
	services, err := filepath.Glob(filepath.Join(s.dir(), "pelago-hub*.service"))
	if err != nil {
		return nil, err
	}
	timers, err := filepath.Glob(filepath.Join(s.dir(), "pelago-hub*.timer"))
	return append(services, timers...), err
}

func unitName(process string) string {
	if process == "pelago-hub" {
		return "pelago-hub.service"
	}
	return "pelago-hub-" + process + ".service"
}

// Start writes the units and starts them; units that have changed are restarted.
func (s Systemd) Start(ctx context.Context, units map[string]string) error {
	var enable, changed []string
	for name, text := range units {
		file := filepath.Join(s.dir(), name)
		have, err := os.ReadFile(file)
		if err == nil && string(have) != text {
			changed = append(changed, name)
		}
		if err := WriteChanged(file, []byte(text)); err != nil {
			return err
		}
		if name != renewalUnit {
			enable = append(enable, name)
		}
	}
	slices.Sort(enable)
	slices.Sort(changed)
	if err := errors.Join(s.control(ctx, "daemon-reload"), s.control(ctx, append([]string{"enable", "--now"}, enable...)...)); err != nil {
		return err
	}
	if len(changed) == 0 {
		return nil
	}
	return s.control(ctx, append([]string{"try-restart"}, changed...)...)
}

// Stop ends the units by a verb of systemctl, and reports whether there are any.
func (s Systemd) Stop(ctx context.Context, verb ...string) (found bool, err error) {
	names, err := s.files()
	if err != nil || len(names) == 0 {
		return false, err
	}
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	return true, s.control(ctx, append(slices.Clone(verb), names...)...)
}

// Remove removes the units, which have ended.
func (s Systemd) Remove(ctx context.Context) error {
	names, err := s.files()
	if err != nil || len(names) == 0 {
		return err
	}
	for _, file := range names {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("remove unit: %w", err)
		}
	}
	return s.control(ctx, "daemon-reload")
}
