package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// settleWithin is how long the checks may find errors after a step: gateways connect, and Leases
// change hands.
const settleWithin = 2 * time.Minute

// upgrade are the flags of upgrade.
type upgrade struct {
	checks
	image       string
	hostContext string
	backup      string
	plan        bool
	skipChecks  bool
}

func upgradeCommand() *cobra.Command {
	var u upgrade
	cmd := &cobra.Command{
		Use:   "upgrade [broker-info.subm] --image IMAGE",
		Short: "Upgrade hub and members, one after the other, with checks between",
		Long: `upgrade brings a clusterset to the version of this program and of --image: the hub first, then
one member after the other, in each of which the nodes follow one by one. It runs init,
deploy-broker and join as --plan prints them, so that every setting is kept. After each step
all clusters are checked; the first error ends it. Run it again to go on, with another image if
that was the cause: what was begun comes first, and members that run the image already are
left out.

The hub is among the contexts, or the current context of --hub-kubeconfig; a hub in a host cluster
needs --host-context as well. Without a hub give the broker-info.subm of the members, which may have expired.

Versions of releases may differ by one minor version; an older one is refused.`,
		Example: `  pelago upgrade --image registry.example/pelago:v1.3.0 --plan
  pelago upgrade --image registry.example/pelago:v1.3.0 --contexts g1,g2 --hub-kubeconfig hub.kubeconfig --host-context mgmt --backup hub.tar.gz
  pelago upgrade broker-info.subm --image registry.example/pelago:v1.3.0 --contexts g1,g2`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return u.upgrade(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	u.addTargetFlags(f)
	view.AddOutputFlag(f, &u.output)
	f.StringVar(&u.image, "image", manifests.DefaultImage, "image of all components")
	f.StringVar(&u.hostContext, "host-context", "", "context of the cluster in which the hub runs as pods")
	f.StringVar(&u.backup, "backup", "", "with --host-context: first write a backup of the hub to this file")
	f.BoolVar(&u.plan, "plan", false, "print the steps and their commands, and do nothing")
	f.DurationVar(&u.timeout, "timeout", 5*time.Minute, "how long a member may take without progress: each pod that becomes ready begins the wait again")
	f.BoolVar(&u.skipChecks, "skip-checks", false, "begin although checks find errors")
	return cmd
}

// upgradeStep is a command, or a reason why a cluster needs none.
type upgradeStep struct {
	Cluster string `json:"cluster"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	// Args are those of pelago; none: the cluster runs the image already.
	Args []string `json:"args,omitempty"`
	// Note is for the reader of the plan.
	Note string `json:"note,omitempty"`
	// begun: components of the member are between two versions, or do not all run: an earlier upgrade
	// has ended there.
	begun bool
}

func (u *upgrade) upgrade(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	if u.backup != "" && u.hostContext == "" {
		return errors.New("--backup: give --host-context, the cluster of the hub")
	}
	targets, err := u.targets(nil)
	if err != nil {
		return err
	}
	set, result, err := u.read(ctx, targets)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pelago-upgrade-")
	if err != nil {
		return fmt.Errorf("make a directory for the broker-info.subm: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	info := filepath.Join(dir, "broker-info.subm")
	if len(args) > 0 {
		info = args[0]
	}
	steps, err := u.steps(set, info, len(args) > 0)
	if err != nil {
		return err
	}
	if u.plan {
		return printSteps(out, u.output, steps)
	}
	if err := printSteps(out, u.output, steps); err != nil {
		return err
	}
	progress := newProgress(errOut)
	run := func(ctx context.Context, args []string) error {
		cmd := root("pelago")
		cmd.SetArgs(args)
		cmd.SetOut(errOut)
		cmd.SetErr(errOut)
		return cmd.ExecuteContext(ctx)
	}
	checked := func(ctx context.Context) (check.Result, error) {
		_, r, err := u.read(ctx, targets)
		return r, err
	}
	begun := slices.ContainsFunc(steps, func(s upgradeStep) bool { return s.begun })
	if errs := result.Count(check.Error); errs > 0 && !u.skipChecks && !begun {
		return errors.Join(result.Print(errOut, "table"),
			fmt.Errorf("%d checks find errors before the upgrade: mend them, or give --skip-checks", errs))
	}
	return runSteps(ctx, steps, run, checked, u.skipChecks, settleWithin, progress)
}

// runSteps runs steps until one fails, or the checks after it do. What an earlier run has begun
// fails checks until it is done, so they are made from then on.
func runSteps(
	ctx context.Context, steps []upgradeStep, run func(context.Context, []string) error, checked func(context.Context) (check.Result, error),
	skipChecks bool, settle time.Duration, progress manifests.Progress,
) error {
	last := 0
	for i, s := range steps {
		if s.begun {
			last = i
		}
	}
	for i, s := range steps {
		if len(s.Args) == 0 {
			progress("%s: %s", s.Cluster, s.Note)
			continue
		}
		progress("Step %d of %d, %s: pelago %s", i+1, len(steps), s.Cluster, strings.Join(s.Args, " "))
		err := run(ctx, s.Args)
		if err == nil && !skipChecks && i >= last {
			err = awaitChecks(ctx, checked, settle, progress)
		}
		if err != nil {
			return fmt.Errorf("upgrade of %s, step %d of %d: %w: the later steps are not begun; mend it and run `pelago upgrade` again",
				s.Cluster, i+1, len(steps), err)
		}
	}
	progress("All clusters run the image")
	return nil
}

// awaitChecks waits until the checks find no error.
func awaitChecks(ctx context.Context, checked func(context.Context) (check.Result, error), within time.Duration, progress manifests.Progress) error {
	for deadline := time.Now().Add(within); ; {
		r, err := checked(ctx)
		if err != nil {
			return err
		}
		n := r.Count(check.Error)
		if n == 0 {
			progress("%s", r.Summary())
			return nil
		}
		if time.Now().Add(checkInterval).After(deadline) {
			f := r.Findings()[0]
			return inspect.Status{Code: 1, Text: fmt.Sprintf("%d checks find errors, the first: cluster %s: %s", n, f.Cluster, refusal{f})}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(checkInterval):
		}
	}
}

// steps plans the upgrade of what was read. info is the broker-info.subm that members join with;
// given: it exists, else the step of the hub writes it.
func (u *upgrade) steps(set *check.Set, info string, given bool) ([]upgradeStep, error) {
	_, to := view.SplitImage(u.image)
	var steps []upgradeStep
	flags := func(context string) []string {
		var out []string
		if u.kubeconfig != "" {
			out = append(out, "--kubeconfig", u.kubeconfig)
		}
		if context != "" {
			out = append(out, "--context", context)
		}
		return out
	}
	if u.hostContext != "" {
		host := append([]string{"--host-context", u.hostContext}, flags("")...)
		if u.backup != "" {
			steps = append(steps, upgradeStep{Cluster: "hub", Note: "backup", Args: append([]string{"hub", "backup", u.backup}, host...)})
		}
		admin := filepath.Join(filepath.Dir(info), "hub.kubeconfig")
		steps = append(steps, upgradeStep{Cluster: "hub", To: to, Note: "programs of the hub",
			Args: append([]string{"init", "--image", u.image, "--output", admin}, host...)})
	}
	var members []upgradeStep
	hub := given
	for i := range set.Clusters {
		c := &set.Clusters[i]
		if c.Err != nil {
			return nil, fmt.Errorf("read cluster %s: %w", c.Name(), c.Err)
		}
		if c.Broker {
			hub = true
			at := flags(c.Context)
			if u.hubKubeconfig != "" && c.Context == "hub" {
				at = []string{"--kubeconfig", u.hubKubeconfig}
			}
			s := upgradeStep{Cluster: c.Name(), To: to, Note: "definitions, rights and policies",
				Args: append([]string{"deploy-broker", "--output", info}, at...)}
			if given {
				s.Args[2] = filepath.Join(filepath.Dir(info), "broker-info.next.subm")
			}
			steps = append(steps, s)
			if c.Propagates() && u.hostContext == "" {
				steps = append(steps, upgradeStep{Cluster: c.Name(), To: to,
					Note: "run `pelago init` there with your flags, and the new pelago-hub where it runs as a process"})
			}
		}
		if !c.Member {
			continue
		}
		s, err := u.member(c, to)
		if err != nil {
			return nil, err
		}
		if s.Note == "" {
			s.Args = append([]string{"join", info, "--clusterid", c.Name(), "--image", u.image, "--timeout", u.timeout.String(),
				"--keep-registration"}, flags(c.Context)...)
			if c.Config.WorkloadsOnly {
				s.Args = append(s.Args, "--workloads-only")
			}
		}
		members = append(members, s)
	}
	if !hub {
		return nil, errors.New("no hub with a broker is among the contexts: name it by --contexts or --hub-kubeconfig, or give a " +
			"broker-info.subm")
	}
	slices.SortStableFunc(members, func(a, b upgradeStep) int { // those that an earlier run has begun first
		return cmp.Compare(map[bool]int{true: 0, false: 1}[a.begun], map[bool]int{true: 0, false: 1}[b.begun])
	})
	return append(steps, members...), nil
}

// member is the step of a member without its command; with a note it needs none.
func (u *upgrade) member(c *check.Cluster, to string) (upgradeStep, error) {
	s := upgradeStep{Cluster: c.Name(), To: to}
	if len(c.Components) == 0 {
		return s, fmt.Errorf("cluster %s: its components are not known: %s", c.Name(), c.Missing)
	}
	current := true
	for _, of := range c.Components {
		current = current && of.Image == u.image && of.Done()
		s.begun = s.begun || !of.Done() || of.Image != c.Components[0].Image
		if of.Image != u.image && s.From == "" {
			_, s.From = view.SplitImage(of.Image)
		}
	}
	if current {
		s.From, s.Note = to, "runs the image already"
		return s, nil
	}
	if s.From == "" {
		s.From = to
	}
	if err := skew(s.From, to); err != nil {
		return s, fmt.Errorf("cluster %s: %w", c.Name(), err)
	}
	return s, nil
}

// skew refuses versions of releases between which an upgrade is not supported. Versions that are no
// releases cannot be compared.
func skew(from, to string) error {
	old, errOld := utilversion.ParseSemantic(from)
	next, errNext := utilversion.ParseSemantic(to)
	switch {
	case errOld != nil || errNext != nil:
		return nil
	case next.LessThan(old):
		return fmt.Errorf("it runs %s, which is newer than %s: to go back, run `pelago deploy-broker` and `pelago join` of the former program", from, to)
	case next.Major() != old.Major() || next.Minor() > old.Minor()+1:
		return fmt.Errorf("it runs %s: upgrade to %d.%d first, one minor version at a time", from, old.Major(), old.Minor()+1)
	}
	return nil
}

func printSteps(out io.Writer, output string, steps []upgradeStep) error {
	t := view.Table{Header: []string{"STEP", "CLUSTER", "FROM", "TO", "COMMAND"}, Empty: "No cluster."}
	for i, s := range steps {
		command := s.Note
		if len(s.Args) > 0 {
			command = "pelago " + strings.Join(s.Args, " ")
		}
		from, to := s.From, s.To
		if from == "" {
			from = "-"
		}
		if to == "" {
			to = "-"
		}
		t.Rows = append(t.Rows, view.Row{Cells: []string{fmt.Sprint(i + 1), s.Cluster, from, to, command}, Object: s})
	}
	return view.PrintTables(out, output, t)
}
