package apiserver

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/test/need"
)

// Shared is one server for all tests of a package, started on first use. Tests use namespaces of
// their own.
//
//	var server = apiserver.NewShared(apiserver.CRDs())
//
//	func TestMain(m *testing.M) { os.Exit(server.Run(m)) }
type Shared struct {
	start func() (*server, error)
	stop  func() error
}

// NewShared describes a server; nothing runs yet.
func NewShared(opts ...Option) *Shared {
	s := &Shared{stop: func() error { return nil }}
	s.start = sync.OnceValues(func() (*server, error) {
		srv, err := start(opts)
		if err == nil {
			s.stop = srv.stop
		}
		return srv, err
	})
	return s
}

// Config is an administrator's access to the server.
func (s *Shared) Config(t testing.TB) *rest.Config {
	t.Helper()
	need.Kubernetes(t)
	srv, err := s.start()
	if err != nil {
		t.Fatal(err)
	}
	return rest.CopyConfig(srv.config)
}

// Run runs the tests, then stops the server if one was started, and returns the exit code of the
// test binary.
func (s *Shared) Run(m *testing.M) int { return Run(m, s) }

// Run is Shared.Run for a package whose tests need servers of several configurations.
func Run(m *testing.M, servers ...*Shared) int {
	code := m.Run()
	for _, s := range servers {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}
