package cable

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// charonEnd bounds the end of a daemon on a busy machine. strongSwan 5.9.8 hangs for ever, once in about a thousand
// times, when a vici connection is closed at the moment of SIGTERM: its last thread waits for one that has ended (watcher's remove
// below vici's destroy). By then it has told its peers. Supervisor kills it, too.
const charonEnd = 10 * time.Second

// ikeDaemon is strongSwan's IKE daemon, from Debian's package, in a network namespace: as many run on one machine as a test has
// gateways. In production it has a container of its own.
type ikeDaemon struct {
	command *exec.Cmd
	done    chan error
}

// startIKEDaemon starts a daemon and waits until its vici socket answers. start runs a command in the gateway's network namespace
// (netns.NS.Start). conf is the content of strongswan.conf (Charon.File), written into dir; socket is the vici socket
// named there. Both lie outside /run, of which the daemon gets one of its own for its pid file.
func startIKEDaemon(start func(*exec.Cmd) error, conf, socket, dir string) (*ikeDaemon, error) {
	if _, err := os.Stat(charonBinary); err != nil {
		return nil, fmt.Errorf("find the IKE daemon: %w: apt-get install strongswan-charon strongswan-swanctl libstrongswan-standard-plugins libcharon-extra-plugins", err)
	}
	file := filepath.Join(dir, "strongswan.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration of the IKE daemon: %w", err)
	}
	command := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "mount -t tmpfs none /run && exec "+charonBinary)
	command.Env = append(os.Environ(), "STRONGSWAN_CONF="+file)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := start(command); err != nil {
		return nil, fmt.Errorf("start the IKE daemon: %w", err)
	}
	d := &ikeDaemon{command: command, done: make(chan error, 1)}
	go func() { d.done <- command.Wait() }()
	// It takes 50 ms, in an emulated machine that shares its processor seconds.
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if s, err := net.Dial("unix", socket); err == nil {
			s.Close() // it answers, that is all
			return d, nil
		}
		select {
		case err := <-d.done:
			return nil, fmt.Errorf("the IKE daemon ended: %w: see the log that %s names", err, file)
		default:
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("the IKE daemon does not listen on %s: see the log that %s names", socket, file), d.Stop())
		}
	}
}

// Stop ends the daemon in order: it notifies its peers. One that hangs is killed.
func (d *ikeDaemon) Stop() error { return d.end(syscall.SIGTERM) }

// Kill ends it at once, as a crash would.
func (d *ikeDaemon) Kill() error { return d.end(syscall.SIGKILL) }

func (d *ikeDaemon) end(with syscall.Signal) error {
	if err := d.command.Process.Signal(with); errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	select {
	case <-d.done:
	case <-time.After(charonEnd):
		_ = d.command.Process.Kill() // it may have ended this moment
		<-d.done
	}
	return nil
}
