package clusterdns

import (
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// server is one address of a server block: [scheme://]zone[:port].
type server struct {
	scheme string // "" or dns, tls, grpc, https …
	zone   string // lower case, without a final dot; "" is the root
	port   string // 53 if not given; may be an environment variable, {$NAME}
	bind   string // arguments of the directive bind of its block; "": all addresses
}

// plain reports whether it speaks DNS over UDP and TCP.
func (s server) plain() bool { return s.scheme == "" || s.scheme == "dns" }

func parseServer(key string) server {
	s := server{port: "53"}
	if scheme, rest, ok := strings.Cut(key, "://"); ok {
		s.scheme, key = strings.ToLower(scheme), rest
	}
	// What follows the last colon of a bare IPv6 prefix is no port.
	if i := strings.LastIndexByte(key, ':'); i >= 0 && i+1 < len(key) && !strings.Contains(key[i:], "/") {
		key, s.port = key[:i], key[i+1:]
	}
	s.zone = strings.ToLower(strings.TrimSuffix(key, "."))
	return s
}

// servers lists the addresses of all server blocks of a Corefile in order. It follows the grammar
// as far as needed for that: nested blocks, address lists continued after a comma, snippets,
// imports, and a last server without braces.
func servers(corefile string) []server {
	var out []server
	tokens := tokenize(corefile)
	for i := 0; i < len(tokens); {
		if tokens[i].text == "import" {
			i += 2
			continue
		}
		var keys []string
		for more := true; more && i < len(tokens) && tokens[i].text != "{"; i++ {
			var key string
			key, more = strings.CutSuffix(tokens[i].text, ",")
			keys = append(keys, key)
			// A list ends with its line, unless it ends with a comma.
			more = more || i+1 < len(tokens) && tokens[i+1].line == tokens[i].line
		}
		snippet := len(keys) == 1 && strings.HasPrefix(keys[0], "(") && strings.HasSuffix(keys[0], ")")
		first := len(out)
		for _, k := range keys {
			if k != "" && !snippet {
				out = append(out, parseServer(k))
			}
		}
		if i < len(tokens) && tokens[i].text != "{" {
			return out // no braces: the rest is this server's
		}
		for depth := 0; i < len(tokens); {
			switch tokens[i].text {
			case "{":
				depth++
			case "}":
				depth--
			}
			if depth == 1 && tokens[i].text == "bind" && tokens[i-1].line != tokens[i].line {
				bind := arguments(tokens[i:])
				for j := first; j < len(out); j++ {
					out[j].bind = strings.TrimSpace(out[j].bind + " " + bind)
				}
			}
			i++
			if depth == 0 {
				break
			}
		}
	}
	return out
}

// arguments are the words behind a directive on its line.
func arguments(tokens []token) string {
	var words []string
	for _, t := range tokens[1:] {
		if t.line != tokens[0].line {
			break
		}
		words = append(words, t.text)
	}
	return strings.Join(words, " ")
}

// token is a word of a Corefile and its line.
type token struct {
	text string
	line int
}

// tokenize splits a Corefile into words as CoreDNS does. Only the lexer of its library is used: the
// parser would read the files of imports and replace environment variables by those of this
// process.
func tokenize(corefile string) []token {
	var out []token
	for d := caddyfile.NewDispenser("Corefile", strings.NewReader(corefile)); d.Next(); {
		out = append(out, token{d.Val(), d.Line()})
	}
	return out
}
