package cable

import (
	"net"
	"testing"
)

// A gateway that leaves asks whether packets wait in its process: in the TUN, which takes them until they are read, or at the
// socket.
func TestEmbeddedWaiting(t *testing.T) {
	ns := newSet(t, 1).gateways[0].ns
	must(t, ns.Sysctl("net/ipv6/conf/default/disable_ipv6", "1")) // it would greet its neighbours
	must(t, ns.Do(func() error {
		device, err := openTUN("pelago-wg9", 1400)
		must(t, err)
		t.Cleanup(func() { must(t, device.Close()) })
		run(t, ns, "ip", "address", "add", "10.9.0.1/24", "dev", "pelago-wg9")
		wire := &WireGuard{embedded: map[int]*embedded{0: {tun: device.File(), port: 4509}}}
		waits := func(what string, want bool) {
			t.Helper()
			if got, err := wire.Waiting(); err != nil || got != want {
				t.Errorf("%s: waiting %v, %v; want %v", what, got, err, want)
			}
		}
		waits("at first", false)

		out, err := net.ListenPacket("udp4", ":0")
		must(t, err)
		defer out.Close()
		_, err = out.WriteTo([]byte("out"), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 9})
		must(t, err)
		waits("a packet in the TUN", true)
		b := [][]byte{make([]byte, 2000)}
		_, err = device.Read(b, []int{0}, 16)
		must(t, err)
		waits("it was read", false)

		in, err := net.ListenPacket("udp", ":4509")
		must(t, err)
		defer in.Close()
		_, err = out.WriteTo([]byte("in"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4509})
		must(t, err)
		waits("a packet at the socket", true)
		_, _, err = in.ReadFrom(b[0])
		must(t, err)
		waits("that was read too", false)
		return nil
	}))
}
