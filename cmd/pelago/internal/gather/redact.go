package gather

import (
	"regexp"
	"strings"
)

// mark stands for what was cut out.
const mark = "<redacted>"

// credentials are forms of what must not leave the cluster.
var credentials = []*regexp.Regexp{
	// PEM (RFC 7468), also with line ends as JSON writes them; up to the end of a cut-off block
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
	// JSON Web Tokens (RFC 7519): header and claims begin with {"
	regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`),
	regexp.MustCompile(`(?i)\b(?:bearer|basic) [A-Za-z0-9+/._~-]{12,}=*`),
	// bootstrap tokens of Kubernetes
	regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
	// user and password in a URL
	regexp.MustCompile(`://[^/\s:@"]+:[^/\s@"]+@`),
	// PEM in base64, as kubeconfigs have keys: "-----BEGIN " and what follows
	regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/]{40,}=*`),
}

// fields are names whose value is a credential wherever it is.
var fields = regexp.MustCompile(`(?im)^([ \t]*(?:- )?"?(?:token|password|passwd|secret|psk|private-?key|client-key-data|client-certificate-data|bearer-?token)"?[ \t]*[:=][ \t]*"?)([^\s"<{\[][^\s"]{7,})`)

// redact cuts out credentials and returns how many there were.
func redact(text []byte) (out []byte, n int) {
	out = text
	for _, r := range credentials {
		out = r.ReplaceAllFunc(out, func([]byte) []byte { n++; return []byte(mark) })
	}
	out = fields.ReplaceAllFunc(out, func(found []byte) []byte {
		n++
		return append(fields.FindSubmatch(found)[1], mark...)
	})
	return out, n
}

// secretEnv are endings of names of environment variables whose values are credentials.
var secretEnv = []string{"TOKEN", "PASSWORD", "SECRET", "PSK", "KEY"}

// hide cuts out values of environment variables of pods, and Secrets inside of other objects, such
// as Works: their data is base64, which no form of credentials matches.
func hide(v any) {
	switch v := v.(type) {
	case map[string]any:
		if kind, _ := v["kind"].(string); kind == "Secret" { // another type is no kind
			for _, key := range []string{"data", "stringData"} {
				if _, has := v[key]; has {
					v[key] = mark
				}
			}
		}
		name, _ := v["name"].(string) // another type is no name
		if _, has := v["value"].(string); has {
			for _, end := range secretEnv {
				if strings.HasSuffix(strings.ToUpper(name), end) {
					v["value"] = mark
				}
			}
		}
		for _, child := range v {
			hide(child)
		}
	case []any:
		for _, child := range v {
			hide(child)
		}
	}
}
