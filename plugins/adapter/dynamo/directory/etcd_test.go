package directory

import clientv3 "go.etcd.io/etcd/client/v3"

// leaseOf is the lease that the first key of an answer hangs on.
func leaseOf(g *clientv3.GetResponse) clientv3.LeaseID { return clientv3.LeaseID(g.Kvs[0].Lease) }
