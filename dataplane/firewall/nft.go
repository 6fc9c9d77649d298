package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Read reads the native tables of nftables, except those that skip reports by family ("ip", "inet")
// and name. Chains that no packet is judged by are not read.
func Read(skip func(family, table string) bool) (Ruleset, error) {
	c, err := nftables.New()
	if err != nil {
		return Ruleset{}, fmt.Errorf("open nftables: %w", err)
	}
	var r Ruleset
	var errs []error
	for family, name := range map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"} {
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			errs = append(errs, fmt.Errorf("list nftables chains: %w", err))
			continue
		}
		for _, found := range chains {
			hook, ok := hookOf(found)
			if !ok || skip(name, found.Table.Name) {
				continue
			}
			t := &nftTable{conn: c, table: found.Table, chains: map[string]*chain{}, sets: map[string]*set{}}
			first := t.called(found.Name)
			if first == nil {
				errs = append(errs, fmt.Errorf("list the rules of chain %s of nftables table %s %s: %w", found.Name, name, found.Table.Name, t.err))
				continue
			}
			r.bases = append(r.bases, &base{
				program: "nft", table: name + " " + found.Table.Name, hook: hook,
				drops: found.Policy != nil && *found.Policy == nftables.ChainPolicyDrop, chain: first, called: t.called,
			})
		}
	}
	// In the order of a listing, so that messages do not change.
	slices.SortFunc(r.bases, func(a, b *base) int {
		return strings.Compare(a.table+" "+a.chain.name, b.table+" "+b.chain.name)
	})
	return r, errors.Join(errs...)
}

func hookOf(c *nftables.Chain) (Hook, bool) {
	if c.Hooknum == nil || c.Type != nftables.ChainTypeFilter {
		return 0, false
	}
	switch *c.Hooknum {
	case *nftables.ChainHookInput:
		return Input, true
	case *nftables.ChainHookForward:
		return Forward, true
	}
	return 0, false
}

// nftTable reads chains and sets of a table when they are needed.
type nftTable struct {
	conn   *nftables.Conn
	table  *nftables.Table
	chains map[string]*chain
	sets   map[string]*set
	err    error // the last
}

func (t *nftTable) called(name string) *chain {
	if c, ok := t.chains[name]; ok {
		return c
	}
	t.chains[name] = nil
	rules, err := t.conn.GetRules(t.table, &nftables.Chain{Name: name, Table: t.table})
	if err != nil {
		t.err = err
		return nil
	}
	c := &chain{name: name}
	for _, r := range rules {
		c.rules = append(c.rules, rule{judge: func(p *Packet) (answer, []action) {
			m := machine{packet: p, set: t.set}
			return m.run(r.Exprs)
		}})
	}
	t.chains[name] = c
	return c
}

// set returns a set or map; nil: it could not be read.
func (t *nftTable) set(name string) *set {
	if s, ok := t.sets[name]; ok {
		return s
	}
	t.sets[name] = nil
	found, err := t.conn.GetSetByName(t.table, name)
	if err != nil {
		return nil
	}
	elements, err := t.conn.GetSetElements(found)
	if err != nil {
		return nil
	}
	s := &set{interval: found.Interval, elements: elements}
	t.sets[name] = s
	return s
}

const (
	registers    = 64 // bytes
	registerSize = 16
	wordSize     = 4
	nameSize     = 16 // of a device (IFNAMSIZ)
)

// machine evaluates the expressions of a rule. A register that nothing has been loaded into is not
// known: the library leaves out expressions that it does not know.
type machine struct {
	packet *Packet
	set    func(name string) *set
	bytes  [registers]byte
	known  [registers]bool
}

// offset is that of a register: 1 to 4 have 16 bytes each, those from 8 on 4 bytes.
func offset(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return int(register-unix.NFT_REG32_00) * wordSize
	}
	return (int(register) - 1) * registerSize
}

// load writes a register; nil: its value is not known.
func (m *machine) load(register uint32, value []byte) {
	at := offset(register)
	if at < 0 || at >= registers {
		return
	}
	size := len(value)
	if value == nil {
		size = registerSize
	}
	size = (size + wordSize - 1) / wordSize * wordSize
	for i := at; i < min(at+size, registers); i++ {
		m.bytes[i], m.known[i] = 0, value != nil
	}
	copy(m.bytes[at:], value)
}

func (m *machine) get(register uint32, size int) (value []byte, known bool) {
	at := offset(register)
	if at < 0 || at+size > registers {
		return nil, false
	}
	return m.bytes[at : at+size], !slices.Contains(m.known[at:at+size], false)
}

func (m *machine) run(exprs []expr.Any) (answer, []action) {
	matches := yes
	for _, e := range exprs {
		a, actions := m.step(e)
		if matches = min(matches, a); matches == no {
			return no, nil
		}
		if actions != nil {
			return matches, actions
		}
	}
	return matches, nil
}

// step evaluates an expression: whether the rule goes on, and what ends it.
func (m *machine) step(e expr.Any) (answer, []action) {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			m.load(e.Register, m.packet.meta(e.Key))
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			m.load(e.DestRegister, m.packet.payload(e))
		}
	case *expr.Ct:
		if !e.SourceRegister {
			value, ok := m.packet.ct(e.Key)
			if !ok {
				return no, nil
			}
			m.load(e.Register, value)
		}
	case *expr.Fib:
		var value []byte
		if e.ResultADDRTYPE && e.FlagDADDR && m.packet.Hook == Input {
			value = binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)
		}
		m.load(e.Register, value)
	case *expr.Immediate:
		m.load(e.Register, e.Data)
	case *expr.Bitwise:
		m.bitwise(e)
	case *expr.Numgen:
		m.load(e.Register, nil)
	case *expr.Hash:
		m.load(e.DestRegister, nil)
	case *expr.Exthdr:
		m.load(e.DestRegister, nil)
		return maybe, nil
	case *expr.Cmp:
		return m.compare(e), nil
	case *expr.Range:
		return m.within(e), nil
	case *expr.Lookup:
		return m.lookup(e)
	case *expr.Limit, *expr.Quota, *expr.Connlimit, *expr.Dynset, *expr.Objref:
		return maybe, nil
	case *expr.Match:
		if e.Name != "comment" {
			return maybe, nil
		}
	case *expr.Target:
		if e.Name == "REJECT" {
			return yes, []action{{kind: reject}}
		}
	case *expr.Reject:
		return yes, []action{{kind: reject}}
	case *expr.Queue: // a program decides
		return yes, []action{{kind: accept}, {kind: next}}
	case *expr.Verdict:
		if a := actionOf(e.Kind, e.Chain); a != nil {
			return yes, []action{*a}
		}
	}
	return yes, nil
}

// actionOf is nil for verdicts that continue with the next rule.
func actionOf(kind expr.VerdictKind, name string) *action {
	switch kind {
	case expr.VerdictAccept, expr.VerdictQueue, expr.VerdictStolen:
		return &action{kind: accept}
	case expr.VerdictDrop:
		return &action{kind: drop}
	case expr.VerdictReturn:
		return &action{kind: leave}
	case expr.VerdictJump:
		return &action{kind: jump, chain: name}
	case expr.VerdictGoto:
		return &action{kind: gotoChain, chain: name}
	}
	return nil
}

func (m *machine) bitwise(e *expr.Bitwise) {
	value, known := m.get(e.SourceRegister, int(e.Len))
	if !known || len(e.Mask) != len(value) || len(e.Xor) != len(value) {
		m.load(e.DestRegister, nil)
		return
	}
	out := make([]byte, len(value))
	for i := range value {
		out[i] = value[i]&e.Mask[i] ^ e.Xor[i]
	}
	m.load(e.DestRegister, out)
}

func (m *machine) compare(e *expr.Cmp) answer {
	value, known := m.get(e.Register, len(e.Data))
	if !known {
		return maybe
	}
	order := bytes.Compare(value, e.Data)
	switch e.Op {
	case expr.CmpOpEq:
		return answerOf(order == 0)
	case expr.CmpOpNeq:
		return answerOf(order != 0)
	case expr.CmpOpLt:
		return answerOf(order < 0)
	case expr.CmpOpLte:
		return answerOf(order <= 0)
	case expr.CmpOpGt:
		return answerOf(order > 0)
	case expr.CmpOpGte:
		return answerOf(order >= 0)
	}
	return maybe
}

func (m *machine) within(e *expr.Range) answer {
	value, known := m.get(e.Register, len(e.FromData))
	if !known || len(e.FromData) != len(e.ToData) {
		return maybe
	}
	in := answerOf(bytes.Compare(value, e.FromData) >= 0 && bytes.Compare(value, e.ToData) <= 0)
	if e.Op == expr.CmpOpNeq {
		return in.not()
	}
	return in
}

// lookup looks a register up in a set, in a map of values or in one of verdicts.
func (m *machine) lookup(e *expr.Lookup) (answer, []action) {
	verdicts := e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT
	s := m.set(e.SetName)
	if s == nil {
		if verdicts { // any
			return maybe, []action{{kind: accept}, {kind: next}}
		}
		if e.IsDestRegSet {
			m.load(e.DestRegister, nil)
		}
		return maybe, nil
	}
	value, known := m.get(e.SourceRegister, s.keySize())
	in, found := maybe, (*nftables.SetElement)(nil)
	if known || len(s.elements) == 0 {
		in, found = s.find(value)
	}
	switch {
	case !e.IsDestRegSet && e.Invert:
		return in.not(), nil
	case !e.IsDestRegSet, in == no:
		return in, nil
	case !verdicts && in == yes:
		m.load(e.DestRegister, found.Val)
		return yes, nil
	case !verdicts:
		m.load(e.DestRegister, nil)
		return maybe, nil
	case in == yes:
		return yes, verdict(found.Val)
	}
	all := []action{{kind: next}}
	for i := range s.elements {
		all = append(all, verdict(s.elements[i].Val)...)
	}
	return maybe, all
}

// verdict decodes the value of a verdict map: the attributes NFTA_VERDICT_CODE and
// NFTA_VERDICT_CHAIN.
func verdict(attributes []byte) []action {
	const header = 4
	var kind expr.VerdictKind
	name := ""
	for b := attributes; len(b) >= header; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < header || size > len(b) {
			break
		}
		switch value := b[header:size]; binary.NativeEndian.Uint16(b[2:]) &^ unix.NLA_F_NESTED {
		case unix.NFTA_VERDICT_CODE:
			if len(value) == wordSize {
				kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(value)))
			}
		case unix.NFTA_VERDICT_CHAIN:
			name = strings.TrimRight(string(value), "\x00")
		}
		b = b[min((size+wordSize-1)/wordSize*wordSize, len(b)):]
	}
	if a := actionOf(kind, name); a != nil {
		return []action{*a}
	}
	return []action{{kind: next}}
}

type set struct {
	interval bool
	elements []nftables.SetElement
}

func (s *set) keySize() int {
	for i := range s.elements {
		if n := len(s.elements[i].Key); n > 0 {
			return n
		}
	}
	return 0
}

// find looks a key up.
func (s *set) find(key []byte) (answer, *nftables.SetElement) {
	var begins *nftables.SetElement // the interval that may contain the key
	absent := no
	for i := range s.elements {
		e := &s.elements[i]
		switch {
		case len(e.Key) == 0: // of a catch-all element
			absent = maybe
		case len(e.KeyEnd) > 0: // a concatenation of ranges
			if bytes.Equal(key, e.Key) && bytes.Equal(key, e.KeyEnd) {
				return yes, e
			}
			absent = maybe
		case !s.interval:
			if bytes.Equal(key, e.Key) {
				return yes, e
			}
		case bytes.Compare(e.Key, key) <= 0:
			// Where one interval ends and the next begins, the beginning counts.
			if begins == nil || bytes.Compare(e.Key, begins.Key) > 0 || bytes.Equal(e.Key, begins.Key) && !e.IntervalEnd {
				begins = e
			}
		}
	}
	if begins != nil && !begins.IntervalEnd {
		return yes, begins
	}
	return absent, nil
}

// meta returns the value of a key, nil if it is not known.
func (p *Packet) meta(key expr.MetaKey) []byte {
	switch key {
	case expr.MetaKeyNFPROTO:
		return []byte{unix.NFPROTO_IPV4}
	case expr.MetaKeyPROTOCOL:
		return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP)
	case expr.MetaKeyL4PROTO:
		if p.Protocol != 0 {
			return []byte{p.Protocol}
		}
	case expr.MetaKeyIIFNAME:
		return p.In.name()
	case expr.MetaKeyOIFNAME:
		return p.Out.name()
	case expr.MetaKeyIIF:
		return p.In.index()
	case expr.MetaKeyOIF:
		return p.Out.index()
	}
	return nil
}

func (d Device) name() []byte {
	if d.Name == "" {
		return nil
	}
	b := make([]byte, nameSize)
	copy(b, d.Name)
	return b
}

func (d Device) index() []byte {
	if d.Index == 0 {
		return nil
	}
	return binary.NativeEndian.AppendUint32(nil, d.Index)
}

// Fields of the IPv4 and the UDP header.
const (
	protocolAt, sourceAt, destinationAt, portAt = 9, 12, 16, 2
)

func (p *Packet) payload(e *expr.Payload) []byte {
	switch {
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == sourceAt && e.Len <= 4 && p.Source.Is4():
		return p.Source.AsSlice()[:e.Len]
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == destinationAt && e.Len <= 4 && p.Destination.Is4():
		return p.Destination.AsSlice()[:e.Len]
	case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == protocolAt && e.Len == 1 && p.Protocol != 0:
		return []byte{p.Protocol}
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == portAt && e.Len == 2 && p.Port != 0:
		return binary.BigEndian.AppendUint16(nil, p.Port)
	}
	return nil
}

// Bits of `ct state`.
const (
	stateNew       = 1 << 3
	stateUntracked = 1 << 6
)

// ct returns the value of a key; nil: it is not known; ok is false if the packet has none.
func (p *Packet) ct(key expr.CtKey) (value []byte, ok bool) {
	switch {
	case key == expr.CtKeySTATE && p.Untracked:
		return binary.NativeEndian.AppendUint32(nil, stateUntracked), true
	case key == expr.CtKeySTATE:
		return binary.NativeEndian.AppendUint32(nil, stateNew), true
	case p.Untracked:
		return nil, false
	case key == expr.CtKeySTATUS: // neither translated nor expected
		return make([]byte, wordSize), true
	}
	return nil, true
}
