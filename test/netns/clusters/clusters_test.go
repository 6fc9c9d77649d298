package clusters

import (
	"testing"
)

func TestEcho(t *testing.T) {
	s := New(t, Options{Nodes: 2, Gateways: 1})
	client := s.Clusters[1].Nodes[1].AddPod(t)
	server := s.Clusters[2].Nodes[1].AddPod(t)
	vip := s.Clusters[2].ExposePod(server)
	s.Apply(t)
	out, err := client.Run("busybox", "ping", "-c", "3", "-W", "1", vip.String())
	t.Logf("%s %v", out, err)
	for _, c := range s.Clusters[1:] {
		for _, n := range c.Nodes {
			f, _ := n.Loader.Flows()
			t.Log(n.Name, n.Counters(t), f)
		}
	}
}
