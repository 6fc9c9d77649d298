package cable

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
)

// ensureConnections tells the daemon of secrets and connections that it does not know as wanted, has it forget the others, after
// Linger where the peer is still there, and call whom it should have called.
func (w *IPsec) ensureConnections(local Local, peers []Peer, userspace bool, states map[string]sa, now time.Time) error {
	known, err := w.known()
	if err != nil {
		return fmt.Errorf("%w: %w", errDaemon, err)
	}
	certificate, authority, err := w.loadCertificates(len(known) == 0)
	if err != nil {
		return err
	}
	var errs []error
	still := map[string]bool{}
	for _, p := range peers {
		tunnels := min(local.Tunnels, max(1, p.Tunnels))
		for i := tunnels; i < MaxTunnels; i++ {
			if name := connectionName(p.Fabric, i); known[name] && w.leavers.keeps(name, now, w.o.Linger) {
				still[name] = true
			}
		}
		for i := range tunnels {
			c := connection{
				local: local, peer: p, tunnel: i, certificate: certificate, authority: authority,
				rekey: w.o.Rekey, ike: w.o.IKERekey, dpd: w.o.DPD,
			}
			if !userspace {
				c.ifID = firstIfID + uint32(i)
			}
			still[c.name()] = true
			delete(w.leavers, c.name())
			errs = append(errs, w.ensureConnection(c, known[c.name()], states[c.name()]))
		}
	}
	for name := range known {
		if !still[name] {
			errs = append(errs, w.forget(name))
		}
	}
	maps.DeleteFunc(w.up, func(name string, _ bool) bool { return !still[name] }) // also what a new daemon never knew
	return errors.Join(errs...)
}

// known are the names of our connections in the daemon.
func (w *IPsec) known() (map[string]bool, error) {
	m, err := w.vici.call("get-conns", nil)
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

// loadCertificates gives the daemon this gateway's private key, if it is new; certificates go with each connection.
func (w *IPsec) loadCertificates(fresh bool) (certificate, authority string, err error) {
	c := w.o.Certificates
	if c == nil {
		return "", "", nil
	}
	if certificate, err = der(c.Certificate); err != nil {
		return "", "", err
	}
	if authority, err = der(c.Authority); err != nil {
		return "", "", err
	}
	key, err := der(c.Key)
	if err != nil {
		return "", "", err
	}
	if !fresh && w.loaded["key"] == key {
		return certificate, authority, nil
	}
	m, err := message("type", "any", "data", key)
	if err == nil {
		_, err = w.vici.call("load-key", m)
	}
	if err != nil {
		return "", "", err
	}
	w.loaded["key"] = key
	return certificate, authority, nil
}

func (w *IPsec) ensureConnection(c connection, known bool, state sa) error {
	name := c.name()
	m, err := c.message()
	if err != nil {
		return err
	}
	secret, err := pairKey(c.local.PSK, IPsecDriver, c.local.Fabric, c.peer.Fabric)
	if err != nil {
		return err
	}
	as := m.String() + string(secret[:])
	if !known || w.loaded[name] != as {
		if c.certificate == "" {
			if err := w.loadSecret(c, secret); err != nil {
				return err
			}
		}
		if state.ike != "" && state.ike != "ESTABLISHED" {
			// It calls an address that is no longer wanted, and would for ever.
			if err := w.terminate(name); err != nil {
				return err
			}
		}
		if _, err := w.vici.call("load-conn", m); err != nil {
			return fmt.Errorf("connection to %s: %w", c.peer.Name, err)
		}
		w.loaded[name], w.since[name] = as, time.Now()
		if state.ike != "ESTABLISHED" && c.calls() {
			return w.initiate(c)
		}
		return nil
	}
	// Both sides' connections may also have ended with no new one begun, or an IKE SA be left without ESP keys. The side that is
	// called gives the caller its time, from when the keys are seen to be missing: a gateway that is just starting anew calls, and two
	// calls that cross end with two pairs of keys, where the change from one to the other loses what is on its way.
	none, half := state.ike == "", state.ike == "ESTABLISHED" && !state.installed
	if _, missing := w.since[name]; state.installed {
		delete(w.since, name)
	} else if !missing {
		w.since[name] = time.Now()
	}
	if c.peer.Address.IsValid() && (none && c.calls() || (none || half) && time.Since(w.since[name]) > patience) {
		w.since[name] = time.Now()
		return w.initiate(c)
	}
	return nil
}

// initiate has the daemon call, and does not wait.
func (w *IPsec) initiate(c connection) error {
	m, err := message("ike", c.name(), "child", "wire", "timeout", "-1")
	if err == nil {
		_, err = w.vici.call("initiate", m)
	}
	if err != nil {
		return fmt.Errorf("call %s: %w", c.peer.Name, err)
	}
	return nil
}

func (w *IPsec) loadSecret(c connection, secret [32]byte) error {
	m, err := message("id", c.name(), "type", "IKE", "data", string(secret[:]),
		"owners", []string{ikeID(c.local.Fabric, c.tunnel), ikeID(c.peer.Fabric, c.tunnel)})
	if err == nil {
		_, err = w.vici.call("load-shared", m)
	}
	if err != nil {
		return fmt.Errorf("secret of %s: %w", c.peer.Name, err)
	}
	return nil
}

// forget takes a connection, its keys and its secret from the daemon.
func (w *IPsec) forget(name string) error {
	delete(w.loaded, name)
	delete(w.since, name)
	var errs []error
	for _, c := range []struct{ command, key string }{{"unload-conn", "name"}, {"unload-shared", "id"}} {
		m, err := message(c.key, name)
		if err == nil {
			_, err = w.vici.call(c.command, m)
		}
		if c.command == "unload-shared" && w.o.Certificates != nil {
			err = nil // there is none
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, w.terminate(name))...)
}

// terminate ends all IKE connections of that name without waiting for the peer's consent.
func (w *IPsec) terminate(name string) error {
	m, err := message("ike", name, "force", "yes", "timeout", "-1")
	if err != nil {
		return err
	}
	if _, err := w.vici.call("terminate", m); err != nil && !strings.Contains(err.Error(), "no matching SAs") {
		return err
	}
	return nil
}
