package images

import (
	"fmt"
	"path/filepath"
)

// Names of the lab's images.
const (
	Pause    = "localhost/pause:dev"
	CoreDNS  = "localhost/coredns:dev"
	WhereAmI = "localhost/whereami:dev"
	// WhereAmINext is the same image under another tag, for tests that change the tag.
	WhereAmINext = "localhost/whereami:next"
	// Kube are the programs of a hub's control plane, for tests that run it as pods.
	Kube = "localhost/kube:dev"
	// MetricsServer serves metrics.k8s.io, for tests of `pelago top`.
	MetricsServer = "localhost/metrics-server:dev"
)

// PauseImage is the sandbox image made of a static program.
func PauseImage(program string) Image {
	return Image{Name: Pause, Entrypoint: []string{"/pause"},
		Layers: []Layer{{{Path: "/pause", Source: program}}}}
}

// CoreDNSImage is CoreDNS made of a static program.
func CoreDNSImage(program string) Image {
	return Image{Name: CoreDNS, Entrypoint: []string{"/coredns"},
		Layers: []Layer{{{Path: "/coredns", Source: program}}}}
}

// MetricsServerImage is metrics-server made of a static program.
func MetricsServerImage(program string) Image {
	return Image{Name: MetricsServer, Entrypoint: []string{"/metrics-server"},
		Layers: []Layer{{{Path: "/metrics-server", Source: program}}}}
}

// KubeImage is the static program of test/kube under the names of etcd, its tool, and the parts of
// a control plane.
func KubeImage(program string) Image {
	layer := Layer{{Path: "/usr/bin/kube", Source: program}}
	for _, name := range []string{"etcd", "etcdutl", "kube-apiserver", "kube-controller-manager"} {
		layer = append(layer, File{Path: "/usr/bin/" + name, Link: "kube"})
	}
	return Image{Name: Kube, Layers: []Layer{layer}}
}

// busyboxTools are the commands that busybox gives to whereami.
var busyboxTools = []string{"sh", "ash", "awk", "base64", "cat", "chmod", "cp", "cut", "date", "dd", "df", "echo", "env",
	"false", "find", "free", "grep", "head", "hostname", "id", "ip", "kill", "less", "ln", "ls", "md5sum", "mkdir", "mount",
	"mv", "netstat", "ping", "ping6", "printf", "ps", "rm", "route", "sed", "seq", "sha256sum", "sleep", "sort", "stat",
	"tail", "tar", "tee", "test", "time", "timeout", "top", "touch", "tr", "traceroute", "true", "umount", "uname", "uniq",
	"vi", "watch", "wc", "wget", "which", "xargs", "yes"}

// debianTools are the machine's own programs in whereami: path on the machine
// and further names in the image.
var debianTools = map[string][]string{
	"/usr/bin/curl":       nil,
	"/usr/bin/dig":        nil,
	"/usr/bin/nslookup":   nil,
	"/usr/bin/nc.openbsd": {"/usr/bin/nc"},
	"/usr/bin/iperf3":     nil,
	"/usr/bin/tcpdump":    nil,
}

// Names of the images that the MCS conformance suite uses for its client and its server.
const (
	ConformanceClient = "nicolaka/netshoot:v0.15"
	ConformanceServer = "alpine/socat:1.7.4.4"
)

// ConformanceImage is a shell with what the suite runs in both: the name resolution and connections
// of its client, socat as its server. Unlike the images of these names it has no entrypoint: the
// suite gives a command with each.
func ConformanceImage() (Image, error) {
	// Debian's busybox runs its own commands before those of PATH, hence another shell.
	tools, err := Programs("/usr/bin/dash", "/usr/bin/nslookup", "/usr/bin/nc.openbsd", "/usr/bin/socat")
	if err != nil {
		return Image{}, fmt.Errorf("gather the tools of %s: %w (pelago-lab prerequisites --install brings them)", ConformanceClient, err)
	}
	tools = append(tools, File{Path: "/usr/bin/nc", Link: "nc.openbsd"}, File{Path: "/bin/sh", Link: "/usr/bin/dash"})
	tools = append(tools, Busybox("awk", "cat", "grep", "sleep", "tail", "tr")...)
	return Image{Name: ConformanceClient, Also: []string{ConformanceServer}, Cmd: []string{"/bin/sh"}, Layers: []Layer{append(tools, Accounts()...)}}, nil
}

// WhereAmIImage is the whereami server with a shell, DNS, HTTP and network
// tools for clients.
func WhereAmIImage(program string) (Image, error) {
	var files []string
	var links Layer
	for file, names := range debianTools {
		files = append(files, file)
		for _, name := range names {
			links = append(links, File{Path: name, Link: filepath.Base(file)})
		}
	}
	tools, err := Programs(files...)
	if err != nil {
		return Image{}, fmt.Errorf("gather the tools of %s: %w (pelago-lab prerequisites --install brings them)", WhereAmI, err)
	}
	tools = append(tools, links...)
	tools = append(tools, Busybox(busyboxTools...)...)
	tools = append(tools, Accounts()...)
	return Image{Name: WhereAmI, Also: []string{WhereAmINext}, Entrypoint: []string{"/usr/bin/whereami"},
		Layers: []Layer{tools, {{Path: "/usr/bin/whereami", Source: program}}}}, nil
}
