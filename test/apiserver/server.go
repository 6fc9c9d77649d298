package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/client-go/rest"
)

// Server is a server of a program that measures, or of a test that breaks it. It ends with the
// process, or by Close.
type Server struct{ server *server }

// Open starts a server that belongs to no test.
func Open(opts ...Option) (*Server, error) {
	s, err := start(opts)
	if err != nil {
		return nil, err
	}
	return &Server{server: s}, nil
}

// Close ends the server and removes its files.
func (s *Server) Close() error { return s.server.stop() }

// Config is an administrator's access to the server; it stays valid over KillAPI, StartAPI and
// Restore.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.server.config) }

// AuditLog is the file with the audit log, a JSON object a line; it exists if the option Audit was
// given.
func (s *Server) AuditLog() string { return s.server.auditLog() }

// Directory is the working directory of etcd and kube-apiserver; etcd listens at the socket
// client:0 in it.
func (s *Server) Directory() string { return s.server.dir.path }

// KillAPI ends kube-apiserver by SIGKILL. etcd and what it holds stay.
func (s *Server) KillAPI() { s.server.end("kube-apiserver") }

// StartAPI starts kube-apiserver again, on the port that it had, and waits until it is ready.
func (s *Server) StartAPI(ctx context.Context) error {
	port, err := s.server.port()
	if err != nil {
		return err
	}
	if err := s.server.apiserverAt(ctx, port, s.server.config); err != nil {
		return fmt.Errorf("start kube-apiserver again: %w", err)
	}
	return nil
}

// Backup copies etcd's data into a directory that does not exist yet. The API server is stopped
// meanwhile.
func (s *Server) Backup(ctx context.Context, dir string) error {
	s.server.end("kube-apiserver", "etcd")
	err := os.CopyFS(dir, os.DirFS(s.server.data()))
	if err := errors.Join(err, s.server.etcd(ctx)); err != nil {
		return fmt.Errorf("back up etcd: %w", err)
	}
	return s.StartAPI(ctx)
}

// Restore replaces etcd's data by a Backup: objects and resourceVersions are those of then.
// kube-controller-manager is restarted, as in a restored control plane: its watches would wait for
// resourceVersions that are still to come.
func (s *Server) Restore(ctx context.Context, dir string) error {
	s.server.end("kube-controller-manager", "kube-apiserver", "etcd")
	err := os.RemoveAll(s.server.data())
	if err == nil {
		err = os.CopyFS(s.server.data(), os.DirFS(dir))
	}
	if err := errors.Join(err, s.server.etcd(ctx)); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	if err := s.StartAPI(ctx); err != nil || len(s.server.options.controllers) == 0 {
		return err
	}
	return s.server.controllerManager(ctx)
}

func (s *server) data() string        { return filepath.Join(s.dir.path, "etcd") }
func (s *server) auditPolicy() string { return filepath.Join(s.dir.path, "audit-policy.yaml") }
func (s *server) auditLog() string    { return filepath.Join(s.dir.path, "audit.log") }

func (s *server) writeAuditPolicy() error {
	if s.options.audit == nil {
		return nil
	}
	if err := os.WriteFile(s.auditPolicy(), s.options.audit, 0o600); err != nil {
		return fmt.Errorf("write the audit policy: %w", err)
	}
	return nil
}

// end kills the programs of the given names, in that order, and forgets them.
func (s *server) end(names ...string) {
	for _, name := range names {
		s.processes = slices.DeleteFunc(s.processes, func(p *process) bool {
			if p.name == name {
				p.kill()
			}
			return p.name == name
		})
	}
}

// port is where the API server listens.
func (s *server) port() (int, error) {
	u, err := url.Parse(s.config.Host)
	if err != nil {
		return 0, fmt.Errorf("read the API server's address: %w", err)
	}
	return strconv.Atoi(u.Port())
}
