// Package lab brings up real Kubernetes clusters on one Linux machine, without
// Docker and without virtual machines, and breaks them on demand.
//
// A node is a set of namespaces (network, mount, pid, uts) with its own
// containerd, kubelet and kube-proxy; package machine is what runs inside. A
// cluster is a network namespace with etcd and the control plane, a switch
// namespace with a bridge, and its nodes. A router namespace joins the
// clusters, the hub and the host. API servers, kubelets and the
// kernel are real.
//
// Its command (cmd) and the tests call Up, Open and the methods of Lab. Everything
// a lab makes is found again from its state directory, so that any process can
// bring down what another one brought up, also half-way.
//
// The package never touches processes, links or mounts that it did not make,
// and it needs root.
package lab
