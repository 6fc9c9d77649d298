package walk

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// Pod names a pod of the lab.
type Pod struct{ Cluster, Namespace, Name string }

// In runs a command in a pod and returns what it prints; it shows nothing.
func (w *Walk) In(ctx context.Context, pod Pod, argv ...string) (string, error) {
	cmd, err := w.Command(ctx, pod, argv...)
	if err != nil {
		return "", err
	}
	return run(cmd, "")
}

// ShowIn is In with command and output shown, by kubectl exec.
func (w *Walk) ShowIn(ctx context.Context, pod Pod, argv ...string) (string, error) {
	args := append([]string{"--context", pod.Cluster, "-n", pod.Namespace, "exec", pod.Name, "--"}, argv...)
	return w.show(ctx, "", w.Lab.Kubectl(), args...)
}

// Command is a command in the namespaces of a running pod with one container, and in its v2 cgroup,
// where a CNI may have programs at its sockets. It is not an exec through the API server, which
// starts a dozen processes and costs a second of processor time where processes are expensive.
func (w *Walk) Command(ctx context.Context, pod Pod, argv ...string) (*exec.Cmd, error) {
	client, err := w.Lab.Clientset(pod.Cluster)
	if err != nil {
		return nil, err
	}
	p, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pod.Cluster, err)
	}
	pid, err := processOf(p.UID)
	if err != nil {
		return nil, fmt.Errorf("%s: pod %s/%s: %w", pod.Cluster, pod.Namespace, pod.Name, err)
	}
	args := []string{"--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--"}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("%s: pod %s/%s: %w", pod.Cluster, pod.Namespace, pod.Name, err)
	}
	args = append(append([]string{"nsenter"}, args...), argv...)
	if dir := machine.PodCgroup(string(groups)); dir != "" {
		args = append([]string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}
	return cmd, nil
}

// processOf finds the oldest process of a pod's container by its control groups, whose path has the
// pod's UID. Younger ones may be commands of Command that have yet to enter the namespaces, and
// process numbers start over at pid_max.
func processOf(pod types.UID) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	oldest, since := 0, uint64(math.MaxUint64)
	for _, file := range files {
		groups, err := os.ReadFile(file)
		if err != nil || !strings.Contains(strings.ReplaceAll(string(groups), "_", "-"), string(pod)) {
			continue // it has ended, or is of something else
		}
		dir := filepath.Dir(file)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return 0, err
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has ended
		}
		comm, started, err := parseStat(string(stat))
		if err != nil {
			return 0, fmt.Errorf("read %s/stat: %w", dir, err)
		}
		if comm != "pause" && started < since {
			oldest, since = pid, started
		}
	}
	if oldest == 0 {
		return 0, fmt.Errorf("no process of UID %s: it does not run", pod)
	}
	return oldest, nil
}

// parseStat returns the name of a process and its start, in ticks since boot (proc_pid_stat(5)).
func parseStat(text string) (comm string, started uint64, err error) {
	name, rest, ok := strings.Cut(text, "(")
	end := strings.LastIndex(rest, ")") // a name may contain it
	if fields := strings.Fields(rest[end+1:]); ok && end >= 0 && name != "" && len(fields) > 19 {
		started, err = strconv.ParseUint(fields[19], 10, 64)
		return rest[:end], started, err
	}
	return "", 0, fmt.Errorf("unexpected content %q", text)
}
