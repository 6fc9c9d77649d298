package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// writeBackup writes the state of the hub, with a snapshot of the member of etcd at the endpoint.
func writeBackup(ctx context.Context, file string, settings map[string]string, pki PKI, endpoint string) error {
	return WriteBackup(file, settings, pki.Kept, func(to io.Writer) error { return takeSnapshot(ctx, endpoint, pki, to) })
}

// takeSnapshot copies the database of etcd as of now.
func takeSnapshot(ctx context.Context, endpoint string, pki PKI, to io.Writer) error {
	pair, err := tls.X509KeyPair(pki.Issued["apiserver-etcd.crt"], pki.Issued["apiserver-etcd.key"])
	if err != nil {
		return fmt.Errorf("read the certificate of the API server for etcd: %w: run `pelago init` again", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pki.Kept["etcd-ca.crt"])
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 30 * time.Second, Context: ctx, Logger: zap.NewNop(),
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer etcd.Close()
	return copySnapshot(ctx, etcd, to)
}

// readTime bounds the read before a snapshot.
const readTime = 30 * time.Second

// etcdMember is a client of one member of etcd.
type etcdMember interface {
	Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error)
	SnapshotWithVersion(ctx context.Context) (*clientv3.SnapshotResponse, error)
}

// copySnapshot copies the database of a member. A snapshot contains what the member has applied, so
// a linearizable read first waits until that includes everything committed, and fails if the member
// is cut off from the others.
func copySnapshot(ctx context.Context, etcd etcdMember, to io.Writer) error {
	reading, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if _, err := etcd.Get(reading, "/registry/health"); err != nil {
		return fmt.Errorf("read the newest state of etcd: %w: back up again when all members run and reach each other, see their logs", err)
	}
	s, err := etcd.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", err)
	}
	if _, err := io.Copy(to, s.Snapshot); err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", errors.Join(err, s.Snapshot.Close()))
	}
	return s.Snapshot.Close()
}
