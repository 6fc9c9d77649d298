package netdev

// LenientConntrack makes conntrack accept TCP segments outside the window that it has seen: in
// hybrid mode it sees few of them. kube-proxy has the same option (--conntrack-tcp-be-liberal). The
// setting is the network namespace's and stays.
func LenientConntrack() error {
	return setSysctl("netfilter/nf_conntrack_tcp_be_liberal", "1")
}
