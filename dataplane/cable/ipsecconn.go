package cable

import (
	"encoding/pem"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"
)

// Proposals in the daemon's words: AES-GCM with a fresh Diffie-Hellman exchange at every change of keys. The second of
// each is for those who may use curves of FIPS 186 only.
var (
	ikeProposals = []string{"aes128gcm16-prfsha256-x25519", "aes256gcm16-prfsha384-ecp384"}
	espProposals = []string{"aes128gcm16-x25519", "aes256gcm16-ecp384"}
)

// Certificates replace the PSK: files in PEM. The certificate of a gateway must name, as subject alternative names, its
// fabric address, and for tunnel i > 0 the DNS name that TunnelName gives.
type Certificates struct{ Certificate, Key, Authority string }

// TunnelName is the name by which the daemons know tunnel i > 0 of a gateway. Each tunnel is an IKE connection of its own:
// within one, the peer could not tell from which tunnel a request for keys comes, as all have the same selectors.
func TunnelName(fabric netip.Addr, i int) string {
	return fmt.Sprintf("tunnel%d.%s.pelago", i, strings.ReplaceAll(fabric.String(), ".", "-"))
}

func ikeID(fabric netip.Addr, tunnel int) string {
	if tunnel == 0 {
		return fabric.String()
	}
	return TunnelName(fabric, tunnel)
}

// connectionPrefix begins the names of our connections and secrets in the daemon.
const connectionPrefix = "pelago-"

func connectionName(fabric netip.Addr, tunnel int) string {
	return fmt.Sprintf("%s%s-%d", connectionPrefix, fabric, tunnel)
}

// connection is an IKE connection as wanted: tunnel `tunnel` to a peer.
type connection struct {
	local  Local
	peer   Peer
	tunnel int
	// ifID of the xfrm interface, 0: the daemon has its own device.
	ifID uint32
	// certificate in DER, "" with PSK; rekey of ESP, ike of IKE; dpd: probe after so much silence.
	certificate, authority string
	rekey, ike, dpd        time.Duration
}

func (c connection) name() string { return connectionName(c.peer.Fabric, c.tunnel) }

// first says whether this side is the one to begin. Both could, and would sometimes meet half-way.
func (c connection) first() bool { return c.local.Fabric.Less(c.peer.Fabric) }

// calls says whether it begins at once: it must know where to call.
func (c connection) calls() bool { return c.first() && c.peer.Address.IsValid() }

func (c connection) message() (*vici.Message, error) {
	// Whole seconds are all that the daemon takes. Rounded up, the two sides stay apart however short the keys' life is.
	seconds := func(d time.Duration) string { return strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))) }
	// The side that is called changes keys only if the caller does not: two exchanges that cross can end without any keys.
	// The end of a key's life is far behind its change, for a peer that is slow to answer.
	start, rekey, ike := "none", c.rekey*3/2, c.ike*3/2
	if c.first() {
		rekey, ike = c.rekey, c.ike
	}
	if c.calls() {
		start = "start"
	}
	child := []any{
		"local_ts", []string{c.local.Fabric.String() + "/32"}, "remote_ts", []string{c.peer.Fabric.String() + "/32"},
		"esp_proposals", espProposals, "mode", "tunnel",
		"rekey_time", seconds(rekey), "rand_time", seconds(c.rekey / 10), "life_time", seconds(2*rekey + 30*time.Second),
		// No start action: the daemon would end and begin anew a connection of which anything is loaded anew.
		"start_action", "none", "close_action", start, "dpd_action", map[string]string{"start": "restart", "none": "clear"}[start],
	}
	if c.ifID != 0 {
		id := strconv.Itoa(int(c.ifID))
		child = append(child, "if_id_in", id, "if_id_out", id)
	}
	net, err := message(child...)
	if err != nil {
		return nil, err
	}
	children, err := message("wire", net)
	if err != nil {
		return nil, err
	}
	own := []any{"auth", "psk", "id", ikeID(c.local.Fabric, c.tunnel)}
	its := []any{"auth", "psk", "id", ikeID(c.peer.Fabric, c.tunnel)}
	if c.certificate != "" {
		own[1], its[1] = "pubkey", "pubkey"
		own, its = append(own, "certs", []string{c.certificate}), append(its, "cacerts", []string{c.authority})
	}
	local, err := message(own...)
	if err != nil {
		return nil, err
	}
	remote, err := message(its...)
	if err != nil {
		return nil, err
	}
	whole := []any{
		"version", "2", "proposals", ikeProposals, "local_addrs", []string{"%any"}, "local_port", strconv.Itoa(int(c.local.Listen)),
		// UDP always: one port through firewalls, and NAT boxes may appear later. unique: a gateway that comes back after a crash
		// takes the place of its former self.
		"encap", "yes", "mobike", "no", "unique", "replace", "keyingtries", "0", "rekey_time", seconds(ike),
		"rand_time", seconds(c.ike / 10), "over_time", seconds(ike + 30*time.Second), "dpd_delay", seconds(c.dpd), "local", local, "remote", remote, "children", children,
	}
	if c.peer.Address.IsValid() {
		whole = append(whole, "remote_addrs", []string{c.peer.Address.Unmap().String(), "%any"}, "remote_port", strconv.Itoa(int(c.peer.Port)))
	} else {
		whole = append(whole, "remote_addrs", []string{"%any"}, "remote_port", strconv.Itoa(int(c.local.Listen)))
	}
	conn, err := message(whole...)
	if err != nil {
		return nil, err
	}
	return message(c.name(), conn)
}

// der reads the first block of a PEM file.
func der(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the certificate or key: %w", err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return "", fmt.Errorf("read the certificate or key in %s: it is not PEM", path)
	}
	return string(block.Bytes), nil
}
