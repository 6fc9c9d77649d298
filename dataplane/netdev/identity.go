package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	identityTable = "pelago"
	identityChain = "postrouting"
	// identityPriority is just before that of masquerading (srcnat, 100).
	identityPriority = 99
)

// ensureIdentity translates the source of what enters pelago0 to itself. A connection that has a source translation gets
// no other one, so no CNI can masquerade it, whatever chain its rule stands in; an ACCEPT in our own chain would not keep
// the other chains from doing so. Conntrack has the flow with its true addresses, which policy engines rely on.
//
// The same in nft's words: table ip pelago { chain postrouting { type nat hook postrouting priority 99;
// oifname "pelago0" snat to ip saddr } }
func ensureIdentity() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: identityTable}
	if ok, err := identityExists(c, table); ok || err != nil {
		return err
	}
	c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{
		Name: identityChain, Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(identityPriority),
	})
	device := make([]byte, syscall.IFNAMSIZ)
	copy(device, Overlay)
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: device},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, // the source address
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: syscall.AF_INET, RegAddrMin: 1},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add table %s to nftables: %w", identityTable, err)
	}
	return nil
}

// identityExists says whether the rule is there as we make it; a table that is not is removed.
func identityExists(c *nftables.Conn, table *nftables.Table) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name != identityTable {
			continue
		}
		rules, err := c.GetRules(table, &nftables.Chain{Name: identityChain, Table: table})
		if err == nil && len(rules) == 1 && leadsFrom(rules[0], Overlay) {
			return true, nil
		}
		c.DelTable(table)
	}
	return false, nil
}

// leadsFrom says whether a rule compares with a device name and ends in a translation.
func leadsFrom(r *nftables.Rule, device string) bool {
	named, translates := false, false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Cmp:
			named = named || string(bytes.TrimRight(e.Data, "\x00")) == device
		case *expr.NAT:
			translates = true
		}
	}
	return named && translates
}

func removeIdentity() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: identityTable})
	if err := c.Flush(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("remove table %s from nftables: %w", identityTable, err)
	}
	return nil
}
