package install

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

	"github.com/pelago-net/pelago/deploy"
)

// writeBackup writes the state of the hub, with a snapshot of the member of etcd at the endpoint.
func writeBackup(ctx context.Context, file string, settings map[string]string, pki deploy.PKI, endpoint string) error {
	return deploy.WriteBackup(file, settings, pki.Kept, func(to io.Writer) error { return takeSnapshot(ctx, endpoint, pki, to) })
}

// takeSnapshot copies the database of etcd as of now.
func takeSnapshot(ctx context.Context, endpoint string, pki deploy.PKI, to io.Writer) error {
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
	s, err := etcd.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", err)
	}
	if _, err := io.Copy(to, s.Snapshot); err != nil {
		return fmt.Errorf("take a snapshot of etcd: %w", errors.Join(err, s.Snapshot.Close()))
	}
	return s.Snapshot.Close()
}
