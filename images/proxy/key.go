package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(bearerKey{})
}

// bearerKey matches requests whose Authorization header has the content of one of its files after "Bearer ". It reads
// the files for each request, so a key changes without a restart; an empty or missing one matches nothing. The time it
// takes tells nothing of a key.
//
//	@open bearer_key FILE...
type bearerKey struct {
	Files []string `json:"files"`
}

var (
	_ caddyfile.Unmarshaler             = (*bearerKey)(nil)
	_ caddyhttp.RequestMatcherWithError = (*bearerKey)(nil)
)

func (bearerKey) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.bearer_key", New: func() caddy.Module { return new(bearerKey) }}
}

func (m *bearerKey) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		m.Files = append(m.Files, d.RemainingArgs()...)
	}
	if len(m.Files) == 0 {
		return d.Err("bearer_key needs a file")
	}
	return nil
}

func (m bearerKey) MatchWithError(r *http.Request) (bool, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return false, nil
	}
	// Sums are of one length, whatever the length of a key is.
	given, matches := sha256.Sum256([]byte(token)), 0
	for _, file := range m.Files {
		content, err := os.ReadFile(file)
		key := bytes.TrimSpace(content)
		if err != nil || len(key) == 0 {
			continue
		}
		wanted := sha256.Sum256(key)
		matches |= subtle.ConstantTimeCompare(given[:], wanted[:])
	}
	return matches == 1, nil
}
