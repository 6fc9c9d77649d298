package firewall

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Table is the table filter of iptables.
type Table struct {
	program string
	drops   map[string]bool     // chains with the policy DROP
	lines   map[string][]string // rules by chain
	chains  map[string]*chain
}

// ParseTable parses the output of `iptables -t filter -S` by a program, iptables or
// iptables-legacy. Options that are not known make a rule one that may match.
func ParseTable(program, listing string) *Table {
	t := &Table{program: program, drops: map[string]bool{}, lines: map[string][]string{}, chains: map[string]*chain{}}
	for line := range strings.Lines(listing) {
		words := splitWords(line)
		if len(words) < 2 {
			continue
		}
		name := words[1]
		if t.chains[name] == nil {
			t.chains[name] = &chain{name: name}
		}
		switch words[0] {
		case "-P":
			t.drops[name] = len(words) > 2 && words[2] == "DROP"
		case "-A":
			text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "-A "+name))
			t.lines[name] = append(t.lines[name], text)
			t.chains[name].rules = append(t.chains[name].rules, t.parseRule(text, words[2:]))
		}
	}
	return t
}

// Rules returns the rules of a chain as they are listed, without "-A" and its name; ok: it exists.
func (t *Table) Rules(name string) (rules []string, ok bool) {
	return t.lines[name], t.chains[name] != nil
}

// Ruleset returns the chains at the hooks.
func (t *Table) Ruleset() Ruleset {
	var r Ruleset
	for hook, name := range map[Hook]string{Input: "INPUT", Forward: "FORWARD"} {
		if c := t.chains[name]; c != nil {
			r.bases = append(r.bases, &base{
				program: t.program, table: "filter", hook: hook, drops: t.drops[name], chain: c,
				called: func(name string) *chain { return t.chains[name] },
			})
		}
	}
	return r
}

// FirstDrop returns the position, from 1, of the first rule of a chain that itself drops one of
// the packets for certain; 0: none does.
func (t *Table) FirstDrop(name string, packets []Packet) int {
	c := t.chains[name]
	if c == nil {
		return 0
	}
	for i, r := range c.rules {
		for _, p := range packets {
			matches, actions := r.judge(&p)
			if matches == yes && len(actions) == 1 && (actions[0].kind == drop || actions[0].kind == reject) {
				return i + 1
			}
		}
	}
	return 0
}

const loopback = "lo"

// splitWords splits a rule as iptables quotes it.
func splitWords(line string) []string {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted, begun = !quoted, true
		case !quoted && (c == ' ' || c == '\t' || c == '\n'):
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			begun = true
			word.WriteByte(c)
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// term is one condition of a rule.
type term func(*Packet) answer

func (t *Table) parseRule(text string, words []string) rule {
	var terms []term
	var actions []action
	for i := 0; i < len(words); {
		negated := words[i] == "!"
		if negated {
			i++
			if i == len(words) {
				break
			}
		}
		option := words[i]
		i++
		from := i
		for i < len(words) && words[i] != "!" && !strings.HasPrefix(words[i], "-") {
			i++
		}
		args := words[from:i]
		if option == "-j" || option == "-g" {
			if len(args) > 0 {
				actions = t.target(args[0], option == "-g")
			}
			break // what follows are options of the target
		}
		compare := condition(option, args)
		if negated {
			positive := compare
			compare = func(p *Packet) answer { return positive(p).not() }
		}
		terms = append(terms, compare)
	}
	return rule{text: text, judge: func(p *Packet) (answer, []action) {
		matches := yes
		for _, compare := range terms {
			if matches = min(matches, compare(p)); matches == no {
				break
			}
		}
		return matches, actions
	}}
}

// target is what a rule does. Other targets than these let the packet continue, or are chains.
func (t *Table) target(name string, isGoto bool) []action {
	switch name {
	case "ACCEPT":
		return []action{{kind: accept}}
	case "DROP":
		return []action{{kind: drop}}
	case "REJECT":
		return []action{{kind: reject}}
	case "RETURN":
		return []action{{kind: leave}}
	case "QUEUE", "NFQUEUE": // a program decides
		return []action{{kind: accept}, {kind: next}}
	}
	switch {
	case t.chains[name] == nil: // -N of all chains comes before the rules
		return nil
	case isGoto:
		return []action{{kind: gotoChain, chain: name}}
	}
	return []action{{kind: jump, chain: name}}
}

func condition(option string, args []string) term {
	arg := ""
	if len(args) > 0 {
		arg = args[0]
	}
	switch option {
	case "-m", "--comment":
		return func(*Packet) answer { return yes }
	case "-i":
		return func(p *Packet) answer { return sameDevice(p.In, arg) }
	case "-o":
		return func(p *Packet) answer { return sameDevice(p.Out, arg) }
	case "-s":
		return func(p *Packet) answer { return inPrefix(p.Source, arg) }
	case "-d":
		return func(p *Packet) answer { return inPrefix(p.Destination, arg) }
	case "-p":
		return func(p *Packet) answer { return sameProtocol(p.Protocol, arg) }
	case "--dport", "--dports":
		return func(p *Packet) answer { return inPorts(p.Port, arg) }
	case "--ctstate", "--state":
		return func(p *Packet) answer {
			state := "NEW"
			if p.Untracked {
				state = "UNTRACKED"
			}
			states := strings.Split(arg, ",")
			if !p.Untracked && (slices.Contains(states, "DNAT") || slices.Contains(states, "SNAT")) {
				return maybe
			}
			return answerOf(slices.Contains(states, state))
		}
	case "--dst-type":
		return func(p *Packet) answer {
			if p.Hook == Input && arg == "LOCAL" {
				return yes
			}
			return maybe
		}
	}
	return func(*Packet) answer { return maybe }
}

// sameDevice compares a device with a name, which with "+" at its end is the beginning of one.
func sameDevice(d Device, name string) answer {
	if d.Name == "" {
		return min(maybe, answerOf(name != loopback))
	}
	if beginning, ok := strings.CutSuffix(name, "+"); ok {
		return answerOf(strings.HasPrefix(d.Name, beginning))
	}
	return answerOf(d.Name == name)
}

func inPrefix(a netip.Addr, prefix string) answer {
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		single, err := netip.ParseAddr(prefix)
		if err != nil {
			return maybe // a mask that is no prefix
		}
		p = netip.PrefixFrom(single, single.BitLen())
	}
	if !a.IsValid() {
		return maybe
	}
	return answerOf(p.Contains(a))
}

func sameProtocol(protocol uint8, name string) answer {
	numbers := map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "esp": 50, "ah": 51, "ipv6-icmp": 58, "sctp": 132, "udplite": 136}
	number, ok := numbers[name]
	if !ok {
		n, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return maybe
		}
		number = uint8(n)
	}
	if protocol == 0 {
		return maybe
	}
	return answerOf(protocol == number)
}

// inPorts compares a port with a list of ports and ranges.
func inPorts(port uint16, list string) answer {
	if port == 0 {
		return maybe
	}
	for item := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(item, ":")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return maybe
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return maybe
		}
		if uint64(port) >= from && uint64(port) <= to {
			return yes
		}
	}
	return no
}
