#!/usr/bin/env bash
# A second link, eth1 at RATE, between both hosts of an emulated cluster; then runs a command on host0:
#   commbench lab run --hosts 2 --rate 200mbit -- bash benchmarks/launch/second_link.sh RATE COMMAND...
# Only programs that are told to use eth1 do so, for example by GLOO_SOCKET_IFNAME. The link ends with the lab.
set -euo pipefail

if [ $# -lt 2 ] || [ -z "${COMMBENCH_SSH:-}" ]; then
    echo "usage, in a lab of two hosts: bash $0 RATE COMMAND..." >&2
    exit 2
fi
rate=$1
shift

# A process on host1 by which the kernel finds that host's network.
exec 3< <(exec "$COMMBENCH_SSH" host1 'echo $$; exec sleep infinity')
read -r process <&3
ip link add eth1 type veth peer name eth1 netns "$process"

# Give eth1 an address, 10.98.0.NUMBER, and the rate.
begin() {
    echo "set -e; ip addr add 10.98.0.$1/24 dev eth1; ip link set eth1 up;" \
        "tc qdisc add dev eth1 root tbf rate '$rate' burst 128kb latency 20ms"
}
"$COMMBENCH_SSH" host1 "$(begin 2)"
bash -c "$(begin 1)"
"$@"
