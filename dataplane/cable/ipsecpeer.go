//go:build linux

package cable

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Proposals in strongSwan's syntax: AES-GCM with a Diffie-Hellman exchange at every rekeying. The
// second of each has the curves of FIPS 186.
var (
	ikeProposals = []string{"aes128gcm16-prfsha256-x25519", "aes256gcm16-prfsha384-ecp384"}
	espProposals = []string{"aes128gcm16-x25519", "aes256gcm16-ecp384"}
)

// ikeID is the IKE identity of a tunnel of a gateway. Each tunnel is an IKE connection of its own:
// of several child SAs with equal traffic selectors, the responder could not tell which tunnel a
// request belongs to.
func ikeID(fabric netip.Addr, tunnel int) string {
	if tunnel == 0 {
		return fabric.String()
	}
	return fmt.Sprintf("tunnel%d.%s.pelago", tunnel, strings.ReplaceAll(fabric.String(), ".", "-"))
}

// connectionPrefix is the prefix of the names of our connections and secrets in the daemon.
const connectionPrefix = "pelago-"

func connectionName(fabric netip.Addr, tunnel int) string {
	return fmt.Sprintf("%s%s-%d", connectionPrefix, fabric, tunnel)
}

// connection is the desired IKE connection of a tunnel to a peer.
type connection struct {
	local  Local
	peer   Peer
	tunnel int
	// ifID of the xfrm interface; 0: the daemon has its own device.
	ifID uint32
	// public keys in PEM: this gateway's, and those that the peer may use; "" and none with PSK.
	key  string
	keys []string
	// lifetimes of the keys of ESP (rekey) and IKE; dpd: interval of dead peer detection.
	rekey, ike, dpd time.Duration
}

func (c connection) name() string { return connectionName(c.peer.Fabric, c.tunnel) }

// initiator reports whether this side initiates. If both did, exchanges would collide.
func (c connection) initiator() bool { return c.local.Fabric.Less(c.peer.Fabric) }

// starts reports whether this side initiates at once: it needs the peer's address.
func (c connection) starts() bool { return c.initiator() && c.peer.Address.IsValid() }

// fields are those of the connection in a load-conn request.
func (c connection) fields() fields {
	// The daemon's unit is a second. Rounded up, the two sides' times differ for any lifetime of
	// the keys.
	seconds := func(d time.Duration) string { return strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))) }
	// The responder rekeys only if the initiator does not: two exchanges that collide can end
	// without any keys. Keys expire long after their rekeying, for a peer that responds slowly.
	rekey, ike := c.rekey*3/2, c.ike*3/2
	if c.initiator() {
		rekey, ike = c.rekey, c.ike
	}
	closeAction, dpdAction := "none", "clear"
	if c.starts() {
		closeAction, dpdAction = "start", "restart"
	}
	child := fields{
		"local_ts", []string{c.local.Fabric.String() + "/32"}, "remote_ts", []string{c.peer.Fabric.String() + "/32"},
		"esp_proposals", espProposals, "mode", "tunnel",
		"rekey_time", seconds(rekey), "rand_time", seconds(c.rekey / 10), "life_time", seconds(2*rekey + 30*time.Second),
		// No start action: it would make the daemon terminate and initiate an existing connection
		// whenever it is loaded again.
		"start_action", "none", "close_action", closeAction, "dpd_action", dpdAction,
	}
	if c.ifID != 0 {
		id := strconv.Itoa(int(c.ifID))
		child = append(child, "if_id_in", id, "if_id_out", id)
	}
	local := fields{"auth", "psk", "id", ikeID(c.local.Fabric, c.tunnel)}
	remote := fields{"auth", "psk", "id", ikeID(c.peer.Fabric, c.tunnel)}
	if c.key != "" {
		local[1], remote[1] = "pubkey", "pubkey"
		local = append(local, "pubkeys", []string{c.key})
		remote = append(remote, "pubkeys", c.keys)
	}
	addresses, port := []string{"%any"}, c.local.Listen
	if c.peer.Address.IsValid() {
		addresses, port = []string{c.peer.Address.Unmap().String(), "%any"}, c.peer.Port
	}
	return fields{
		"version", "2", "proposals", ikeProposals, "local_addrs", []string{"%any"}, "local_port", strconv.Itoa(int(c.local.Listen)),
		"remote_addrs", addresses, "remote_port", strconv.Itoa(int(port)),
		// UDP encapsulation always: one port through firewalls, and a NAT box may appear later.
		// unique: a gateway that restarted after a crash replaces its former connection.
		"encap", "yes", "mobike", "no", "unique", "replace", "keyingtries", "0",
		"rekey_time", seconds(ike), "rand_time", seconds(c.ike / 10), "over_time", seconds(ike + 30*time.Second),
		"dpd_delay", seconds(c.dpd), "local", local, "remote", remote, "children", fields{"wire", child},
	}
}

// ensureConnections loads secrets and connections that differ into the daemon, unloads others, and
// initiates connections without keys. Those of a retired tunnel remain as long as its device, those
// of a peer that has fewer tunnels for Linger.
func (w *IPsec) ensureConnections(local Local, peers []Peer, userspace bool, states map[string]sa, now time.Time) error {
	known, err := w.known()
	if err != nil {
		return err
	}
	key, err := w.loadKey(len(known) == 0)
	if err != nil {
		return err
	}
	var errs []error
	wanted := map[string]bool{}
	for _, p := range peers {
		tunnels := min(local.Tunnels, max(1, p.Tunnels))
		for i := tunnels; i < MaxTunnels; i++ {
			name := connectionName(p.Fabric, i)
			if _, receives := w.retired[i]; known[name] && (receives || i < local.Tunnels && w.retiredConnections.lingers(name, 0, now, w.o.Linger)) {
				wanted[name] = true
			}
		}
		for i := range tunnels {
			c := connection{
				local: local, peer: p, tunnel: i, rekey: w.o.Rekey, ike: w.o.IKERekey, dpd: w.o.DPD,
			}
			if keys, err := peerKeys(p.Identity); key != "" && len(keys) > 0 {
				errs = append(errs, err)
				c.key, c.keys = key, keys
			}
			if !userspace {
				c.ifID = firstIfID + uint32(i)
			}
			wanted[c.name()] = true
			delete(w.retiredConnections, c.name())
			errs = append(errs, w.ensureConnection(c, known[c.name()], states[c.name()]))
		}
	}
	for name := range known {
		if !wanted[name] {
			errs = append(errs, w.unload(name))
		}
	}
	// also those that a new daemon never had
	maps.DeleteFunc(w.up, func(name string, _ bool) bool { return !wanted[name] })
	return errors.Join(errs...)
}

// known are the names of our connections in the daemon.
func (w *IPsec) known() (map[string]bool, error) {
	m, err := w.vici.call("get-conns")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, n := range list(m, "conns") {
		if strings.HasPrefix(n, connectionPrefix) {
			names[n] = true
		}
	}
	return names, nil
}

// loadKey loads this gateway's private key if the daemon is fresh or has another, which it unloads,
// and returns the public key in PEM; "": the gateway has none.
func (w *IPsec) loadKey(fresh bool) (string, error) {
	if w.keys == nil {
		return "", nil
	}
	der, err := x509.MarshalPKIXPublicKey(&w.keys.own.PublicKey)
	if err != nil {
		return "", fmt.Errorf("encode the public key of IKE: %w", err)
	}
	public := publicPEM(der)
	if !fresh && w.loadedKey.public == public {
		return public, nil
	}
	private, err := privatePEM(w.keys.own)
	if err != nil {
		return "", err
	}
	m, err := w.vici.call("load-key", "type", "any", "data", private)
	if err != nil {
		return "", fmt.Errorf("load the private key: %w", err)
	}
	if former := w.loadedKey.id; !fresh && former != "" {
		if _, err := w.vici.call("unload-key", "id", former); err != nil {
			return "", fmt.Errorf("unload the former private key: %w", err)
		}
	}
	w.loadedKey = loadedKey{id: text(m, "id"), public: public}
	return public, nil
}

// loadedKey is a private key in the daemon: its id there, and the public one in PEM.
type loadedKey struct{ id, public string }

func (w *IPsec) ensureConnection(c connection, known bool, state sa) error {
	name, f := c.name(), c.fields()
	secret, err := pairKey(c.local.PSK, IPsecDriver, c.local.Fabric, c.peer.Fabric)
	if err != nil {
		return err
	}
	if as := fmt.Sprint(f, secret); !known || w.loaded[name] != as {
		if c.key == "" {
			_, err := w.vici.call("load-shared", "id", name, "type", "IKE", "data", string(secret[:]),
				"owners", []string{ikeID(c.local.Fabric, c.tunnel), ikeID(c.peer.Fabric, c.tunnel)})
			if err != nil {
				return fmt.Errorf("secret of %s: %w", c.peer.Name, err)
			}
		} else if _, err := w.vici.call("unload-shared", "id", name); err != nil {
			return fmt.Errorf("secret of %s: %w", c.peer.Name, err)
		}
		if state.ike != "" && state.ike != "ESTABLISHED" {
			// It is being initiated to the former address, and would be forever.
			if err := w.terminate(name); err != nil {
				return err
			}
		}
		if _, err := w.vici.call("load-conn", name, f); err != nil {
			return fmt.Errorf("connection to %s: %w", c.peer.Name, err)
		}
		w.loaded[name], w.since[name] = as, time.Now()
		if state.ike != "ESTABLISHED" && c.starts() {
			return w.initiate(c)
		}
		return nil
	}
	// Both sides' connections may also have ended without a new one, or an IKE SA may be left
	// without ESP keys. The responder gives the initiator responderDelay from when it first
	// observes that keys are missing: a gateway that is restarting initiates, and two exchanges
	// that collide end with two pairs of keys, where the switch from one to the other loses packets
	// in flight.
	if state.ike == "CONNECTING" && state.calls && c.peer.Address.IsValid() && state.endpoint.Addr().Unmap() != c.peer.Address.Unmap() {
		// The SA was up when the address changed: the daemon restarts it towards the previous
		// address, forever.
		if err := w.terminate(name); err != nil {
			return err
		}
		return w.initiate(c)
	}
	none, half := state.ike == "", state.ike == "ESTABLISHED" && !state.up
	if _, missing := w.since[name]; state.up {
		delete(w.since, name)
	} else if !missing {
		w.since[name] = time.Now()
	}
	if c.peer.Address.IsValid() && (none && c.starts() || (none || half) && time.Since(w.since[name]) > responderDelay) {
		w.since[name] = time.Now()
		return w.initiate(c)
	}
	return nil
}

// initiate starts the key exchange and does not wait for it.
func (w *IPsec) initiate(c connection) error {
	if _, err := w.vici.call("initiate", "ike", c.name(), "child", "wire", "timeout", "-1"); err != nil {
		return fmt.Errorf("initiate the connection to %s: %w", c.peer.Name, err)
	}
	return nil
}

// unload removes a connection, its keys and its secret from the daemon.
func (w *IPsec) unload(name string) error {
	delete(w.loaded, name)
	delete(w.since, name)
	_, conn := w.vici.call("unload-conn", "name", name)
	_, shared := w.vici.call("unload-shared", "id", name)
	return errors.Join(conn, shared, w.terminate(name))
}

// terminate ends all IKE SAs of a connection without waiting for the peer's acknowledgement.
func (w *IPsec) terminate(name string) error {
	_, err := w.vici.call("terminate", "ike", name, "force", "yes", "timeout", "-1")
	if err != nil && !strings.Contains(err.Error(), "no matching SAs") {
		return err
	}
	return nil
}
