"""Tests of parsing NCCL's log."""

from commbench.backends.nccl_library import algorithms_in, settings_in, transports_in

LOG = """\
node1:4242:4242 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
node1:4242:4260 [0] NCCL INFO Channel 00/02 : 0 1
node1:4242:4260 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
node1:4242:4260 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
node1:4242:4260 [0] NCCL INFO Channel 01 : 0[0] -> 2[1] via SHM/direct/direct
node1:4242:4260 [0] NCCL INFO Channel 02/0 : 0[0] -> 3[2] via P2P/CUMEM
node1:4242:4260 [0] NCCL INFO Connected all rings
node1:4242:4260 [0] NCCL INFO NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)
node1:4242:4260 [0] NCCL INFO NVLS multicast support is available on dev 1 (NVLS_NCHANNELS 16)
"""
CHOSEN = """\
node1:1:1 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..0}
node1:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
node1:1:1 [0] NCCL INFO ReduceScatter: 4096 Bytes -> Algo COLLNET_DIRECT proto Simple channel{Lo..Hi}={2..3}
node1:1:1 [0] NCCL INFO Broadcast: 32768 Bytes -> Algo NVLS_TREE proto LL channel{Lo..Hi}={0..3}
node1:1:1 [0] NCCL INFO AllGather [Symmetric]: 4096 Bytes -> Kernel AllGather_LLMC nchannels 2 nthreads 512
node1:1:1 [0] NCCL INFO SendRecv: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}
node1:1:1 [0] NCCL INFO Reduce [Copy Engine]: 4096 Bytes -> cudaMemcpy; CE synchronization with NVLS
"""


def test_algorithms_are_read():
    """Return the last algorithm of each operation, in the syntax of requests."""
    assert {
        "all_reduce": "ring/ll128/16ch",
        "reduce_scatter": "collnetdirect/simple/2ch",
        "broadcast": "nvlstree/ll/4ch",
        "all_gather": "symmetric/allgather_llmc",
        "reduce": "copy",
    } == algorithms_in(CHOSEN)
    across = "AllGather [Hierarchical CE]: 4096 Bytes -> {}RMA proxy + CE"
    for by in ("", "Rail Ring "):
        assert {"all_gather": "copy"} == algorithms_in(across.format(by))
    assert {} == algorithms_in(LOG)


def test_transports_and_settings_are_read():
    """Return each transport once, without adapter numbers and without mere capabilities; and the
    variables that NCCL took.
    """
    assert ["NET/Socket", "P2P/CUMEM", "SHM/direct"] == transports_in(LOG)
    assert [] == transports_in("")
    log = (
        f"{LOG}\n"
        "n0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
        "n0:1:1 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 4.\n"
    )
    assert {"NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "4"} == settings_in(log)
