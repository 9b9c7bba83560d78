#!/bin/sh
# Five parties in network namespaces with addresses of their own: ranks that really talk over TCP.
#
#     sudo benchmarks/namespaces.sh [ranks, 2 to 5 [options of vpem fit, such as --compress qsgd:8bits]]
#
# Makes a bridge and a namespace a rank, cuts data/breast_cancer.h5 into five parties' files, fits them
# over MPI with a rank a namespace, each in a folder of its own party's files, and compares the fit
# with that of one process. The counters of the interfaces show what travelled. Needs root, iproute2,
# and vpem and mpiexec (MPICH) on the path; VPEM may say how to run vpem.
set -eu

ranks=${1:-5}
[ $# -eq 0 ] || shift
here=$(cd "$(dirname "$0")/.." && pwd)
vpem=${VPEM:-vpem}
name=vpem$$
net=10.207.91
home=$(mktemp -d)

clean() {
    for rank in $(seq 0 $((ranks - 1))); do
        ip netns del "$name-$rank" 2>/dev/null || true
    done
    ip link del "$name" 2>/dev/null || true
    rm -rf "$home"
}
trap clean EXIT
trap 'exit 1' INT TERM

ip link add "$name" type bridge
ip addr add "$net.254/24" dev "$name"
ip link set "$name" up
hosts=
for rank in $(seq 0 $((ranks - 1))); do
    space=$name-$rank
    address=$net.$((rank + 1))
    ip netns add "$space"
    ip link add "v$$-$rank" type veth peer name eth0 netns "$space"
    ip link set "v$$-$rank" master "$name" up
    ip -n "$space" addr add "$address/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
    hosts=$hosts${hosts:+,}$address
done

# What hydra runs instead of ssh: the first word that is an address says in which namespace.
cat >"$home/enter" <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
address=\$1
shift
exec ip netns exec "$name-\$((\${address##*.} - 1))" sh -c "\$*"
END
chmod +x "$home/enter"

# Each rank runs in the folder of its own parties' files: of the others it has none.
$vpem data split "$here/data/breast_cancer.h5" --agents 5 --shuffle --drop-ids 0.05 -q -o "$home/all"
for party in 0 1 2 3 4; do
    # Agents lie on ranks in runs, as evenly as can be.
    rank=0
    while [ $(((rank + 1) * 5 / ranks)) -le $party ]; do rank=$((rank + 1)); done
    mkdir -p "$home/$rank"
    cp "$home/all/party$party.h5" "$home/$rank"
done
cat >"$home/rank" <<END
#!/bin/sh
cd "$home/\$PMI_RANK"
exec $vpem "\$@"
END
chmod +x "$home/rank"

set -- fit party0.h5 party1.h5 party2.h5 party3.h5 party4.h5 --parties --align ids \
    --topology cycle --threads 1 --json -q "$@"
(cd "$home/all" && $vpem "$@") >"$home/one.json"
# On one machine MPICH would find shared memory however far apart addresses are.
export MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp UCX_TLS=tcp,self
before=$(cat /sys/class/net/v$$-*/statistics/rx_bytes | awk '{ n += $1 } END { print n }')
mpiexec -launcher ssh -launcher-exec "$home/enter" -hosts "$hosts" -localhost "$net.254" -ppn 1 \
    -n "$ranks" "$home/rank" "$@" --engine mpi >"$home/ranks.json"
after=$(cat /sys/class/net/v$$-*/statistics/rx_bytes | awk '{ n += $1 } END { print n }')

python3 - "$home/one.json" "$home/ranks.json" "$((after - before))" <<'END'
import json
import sys

one, other = (json.load(open(path)) for path in sys.argv[1:3])
assert one["alignment"] == other["alignment"]
assert one["communication"]["bytes"] == other["communication"]["bytes"]
apart = abs(one["log_likelihood"] - other["log_likelihood"])
handed = sum(kind["by_mpi"] for kind in other["handed"].values())
print(f"ranks, rows:                         {other['ranks']}, {other['n_samples']}")
print(f"log-likelihood of one process, ranks: {one['log_likelihood']:.12f}, {apart:.1e} apart")
print(f"bytes of sums by the ledger:         {one['communication']['bytes']}")
print(f"bytes of sums handed to MPI:         {handed}")
print(f"bytes sent by all interfaces:        {sys.argv[3]}")
assert apart < 1e-10
assert int(sys.argv[3]) > handed
END
