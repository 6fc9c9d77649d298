package lab

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Daemon starts a program in the network of a cluster's control plane, in place of one of that name
// that runs there. It continues after the caller and ends with the lab. Its output is in a log that
// Logs lists.
func (l *Lab) Daemon(cluster, name string, argv ...string) error {
	if _, err := l.record.Plan.Cluster(cluster); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := l.EndDaemon(cluster, name, syscall.SIGKILL); err != nil {
		return err
	}
	_, err := l.ensureProcess(program{
		name: cluster + "/" + name, namespace: l.record.Plan.Namespace(cluster), argv: argv, log: l.controlPlaneLog(cluster, name),
	})
	return err
}

// EndDaemon ends a program that Daemon started by a signal, and waits for its end; one that does
// not run is no error.
func (l *Lab) EndDaemon(cluster, name string, by syscall.Signal) error {
	p := l.recorded(cluster + "/" + name)
	if err := p.signal(by); err != nil {
		return err
	}
	return awaitExit([]process{p}, endLimit)
}

// daemons are the programs that Daemon started for a cluster, running or not.
func (l *Lab) daemons(cluster string) ([]string, error) {
	c, err := l.record.Plan.Cluster(cluster)
	if err != nil {
		return nil, err
	}
	all, err := l.allRecorded()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range all {
		if name, ok := strings.CutPrefix(p.Name, cluster+"/"); ok && !slices.Contains(c.components(), name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
