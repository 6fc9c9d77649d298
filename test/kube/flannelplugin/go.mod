module github.com/pelago-net/pelago/test/kube/flannelplugin

go 1.26.8

tool (
	github.com/containernetworking/plugins/plugins/meta/flannel
)

require (
	github.com/containernetworking/cni v0.8.1 // indirect
	github.com/containernetworking/plugins v0.9.1 // indirect; the last one with flannel
)
