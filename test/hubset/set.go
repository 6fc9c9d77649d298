// Package hubset is a whole clusterset without nodes for tests and benchmarks of the hub: the hub's
// API server, members with real or simulated API servers, and the product's own programs, as a user
// starts them: `pelago init`, `pelago join`, pelago-hub as a child process that can be killed and
// stopped. Everything ends with the calling process, also when that is killed.
//
// It knows the product only by its command lines and its API.
package hubset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/hubset/member"
)

// Options of a set.
type Options struct {
	// Binaries is the directory with pelago and pelago-hub, such as bin.
	Binaries string
	// Dir is where kubeconfigs and logs go. It must exist; what is in it stays.
	Dir string
	// Workloads has the real members run what a cluster without kubelets can: all workload
	// controllers and kube-scheduler, and a simulated node whose pods run without containers.
	Workloads bool
	// Real and Simulated are numbers of members: member1 to memberN, the real ones first.
	Real, Simulated int
	// Member is how the simulated ones are.
	Member member.Options
	// Server are options of the hub's API server next to the hub's controllers.
	Server []apiserver.Option
	// Through makes the product reach a server ("hub", "member1", …) by another config, for
	// instance through a recorder. The set's own Configs are not affected. nil: directly.
	Through func(name string, to *rest.Config) (*rest.Config, error)
	// HubFlags are flags of pelago-hub next to those that StartHub gives.
	HubFlags []string
}

// Member is one of the members.
type Member struct {
	Name string
	// Config is an administrator's access.
	Config *rest.Config
	// Simulated is nil for a real API server, and Server nil for a simulated member.
	Simulated *member.Member
	Server    *apiserver.Server

	kubeconfig string
	node       *node // nil: none
}

// Set is a clusterset.
type Set struct {
	options Options
	// Server is the hub's API server.
	Server  *apiserver.Server
	Members []*Member

	kubeconfig string // of the hub
	mu         sync.Mutex
	processes  []*Process
}

// Open starts the API servers. Nothing of the product runs or is installed yet.
func Open(ctx context.Context, o Options) (*Set, error) {
	s := &Set{options: o}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open a clusterset: %w", err), s.Close())
	}
	return s, nil
}

func (s *Set) open(ctx context.Context) error {
	var err error
	if s.Server, err = apiserver.Open(append([]apiserver.Option{apiserver.HubControllers()}, s.options.Server...)...); err != nil {
		return err
	}
	if s.kubeconfig, err = s.access("hub", s.Server.Config()); err != nil {
		return err
	}
	for i := range s.options.Real + s.options.Simulated {
		if err := ctx.Err(); err != nil {
			return err
		}
		m := &Member{Name: fmt.Sprintf("member%d", i+1)}
		if err := m.start(i < s.options.Real, s.options); err != nil {
			return err
		}
		s.Members = append(s.Members, m)
		if m.kubeconfig, err = s.access(m.Name, m.Config); err != nil {
			return err
		}
	}
	return nil
}

// start serves a member. A real one runs the controllers that the hub's rights and namespaces in it
// need, and workloads on request.
func (m *Member) start(realOne bool, o Options) (err error) {
	if !realOne {
		if m.Simulated, err = member.Start(o.Member); err == nil {
			m.Config = m.Simulated.Config()
		}
		return err
	}
	controllers := apiserver.Controllers("namespace-controller", "serviceaccount-controller",
		"serviceaccount-token-controller", "root-ca-certificate-publisher-controller", "clusterrole-aggregation-controller")
	if o.Workloads {
		controllers = apiserver.WorkloadControllers()
	}
	if m.Server, err = apiserver.Open(controllers); err != nil {
		return err
	}
	m.Config = m.Server.Config()
	if o.Workloads {
		m.node, err = startNode(m.Config, m.Name)
	}
	return err
}

// OpenMember serves one more real member, which the set neither joins nor closes.
func (s *Set) OpenMember(name string) (*Member, error) {
	m := &Member{Name: name}
	if err := m.start(true, s.options); err != nil {
		return nil, errors.Join(fmt.Errorf("open member %s: %w", name, err), m.Close())
	}
	return m, nil
}

// Close ends the member's server.
func (m *Member) Close() (err error) {
	if m.Simulated != nil {
		err = m.Simulated.Close()
	}
	if m.node != nil {
		m.node.stop()
	}
	if m.Server != nil {
		err = errors.Join(err, m.Server.Close())
	}
	return err
}

// access writes the kubeconfig with which the product reaches a server.
func (s *Set) access(name string, config *rest.Config) (file string, err error) {
	if s.options.Through != nil {
		if config, err = s.options.Through(name, config); err != nil {
			return "", fmt.Errorf("lead the way to %s: %w", name, err)
		}
	}
	text, err := apiserver.Kubeconfig(config)
	if err != nil {
		return "", err
	}
	file = filepath.Join(s.options.Dir, name+".kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", name, err)
	}
	return file, nil
}

// Close ends all processes and servers.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		p.Kill()
	}
	s.processes = nil
	var errs []error
	for _, m := range s.Members {
		errs = append(errs, m.Close())
	}
	s.Members = nil
	if s.Server != nil {
		errs = append(errs, s.Server.Close())
		s.Server = nil
	}
	return errors.Join(errs...)
}
