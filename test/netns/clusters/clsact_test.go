package clusters

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/dataplane/loader"
)

// TestClsact runs the data path as on kernels before 6.6, where programs sit in filters of clsact.
func TestClsact(t *testing.T) {
	t.Parallel()
	s := New(t, Options{Nodes: 2, Gateways: 1, Clsact: true})
	client, server := s.Clusters[1].Nodes[1].AddPod(t), s.Clusters[2].Nodes[1].AddPod(t)
	vip := s.Clusters[2].ExposePod(server)
	s.Apply(t) // the second time, so every filter was replaced in place
	if out, err := client.Run("busybox", "ping", "-c", "3", "-i", "0.1", "-W", "1", vip.String()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n := client.Node
	must(t, n.Do(func() error {
		edge, err := n.NS.Index("pelago0")
		if err != nil {
			return err
		}
		uplink, err := n.NS.Index("un0")
		if err != nil {
			return err
		}
		attached, err := n.Loader.Attached()
		if err != nil {
			return err
		}
		want := map[string][]int{"edge_in": {edge}, "edge_out": {edge}, "uplink_in": {uplink}, "uplink_out": {uplink}}
		if diff := cmp.Diff(want, attached); diff != "" {
			t.Errorf("attached -want +got\n%s", diff)
		}
		if err := loader.Remove(n.PinPath); err != nil {
			return err
		}
		if attached, err = n.Loader.Attached(); err == nil && len(attached) > 0 {
			t.Errorf("still attached after Remove: %v", attached)
		}
		return nil
	}))
}
