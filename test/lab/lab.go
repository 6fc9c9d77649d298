package lab

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/lab/machine"
)

// Lab is a lab on this machine. Its methods may be called from several
// goroutines and processes; those that change it keep each other out.
type Lab struct {
	dir      string // state directory
	record   record
	progress binaries.Progress
}

// Open returns the lab of that name; the error wraps ErrNotFound if none exists.
func Open(name string) (*Lab, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	r, err := readRecord(name)
	if err != nil {
		return nil, err
	}
	return &Lab{dir: filepath.Join(stateRoot, name), record: r, progress: func(string) {}}, nil
}

// Name returns the lab's name.
func (l *Lab) Name() string { return l.record.Plan.Name }

// Plan returns every name and address of the lab.
func (l *Lab) Plan() Plan { return l.record.Plan }

// Options returns the options that the lab was made with, complete.
func (l *Lab) Options() Options { return l.record.Options }

// Dir returns the lab's state directory.
func (l *Lab) Dir() string { return l.dir }

// Kubectl returns the path of the lab's kubectl.
func (l *Lab) Kubectl() string { return filepath.Join(l.record.Kubernetes, "kubectl") }

func (l *Lab) report(format string, args ...any) { l.progress(fmt.Sprintf(format, args...)) }

// OnProgress lets the lab's methods report their steps.
func (l *Lab) OnProgress(progress binaries.Progress) { l.progress = progress }

// Log is the log file of one component.
type Log struct{ Component, File string }

// Logs lists the logs of a node, a cluster's control plane or the hub.
func (l *Lab) Logs(member string) ([]Log, error) {
	var logs []Log
	if _, err := l.record.Plan.Node(member); err == nil {
		for _, service := range slices.Concat([]string{"init"}, machine.Services(), l.NetworkDaemons()) {
			logs = append(logs, Log{service, machine.LogFile(l.nodeDir(member), service)})
		}
		return logs, nil
	}
	c, err := l.record.Plan.Cluster(member)
	if err != nil {
		return nil, fmt.Errorf("lab %s has no node or cluster %q (pelago-lab status lists them)", l.Name(), member)
	}
	for _, component := range c.components() {
		logs = append(logs, Log{component, l.controlPlaneLog(member, component)})
	}
	daemons, err := l.daemons(member)
	for _, d := range daemons {
		logs = append(logs, Log{d, l.controlPlaneLog(member, d)})
	}
	return logs, err
}
