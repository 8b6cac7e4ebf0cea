"""What nccl-tests and OSU call the operations and element types that are measured here."""

#: nccl-tests' names of element types and of the programs.
NCCL_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int8": "int8",
}
NCCL_PROGRAMS = {"all_to_all": "alltoall_perf"}

#: OSU's titles and names of element types.
OSU_TITLES = {
    "all_reduce": "Allreduce Latency Test",
    "all_gather": "Allgather Latency Test",
    "reduce_scatter": "Reduce_scatter Latency Test",
    "all_to_all": "All-to-All Personalized Exchange Latency Test",
    "broadcast": "Broadcast Latency Test",
    "reduce": "Reduce Latency Test",
    "gather": "Gather Latency Test",
    "scatter": "Scatter Latency Test",
    "barrier": "Barrier Latency Test",
    "latency": "Latency Test",
    "bandwidth": "Bandwidth Test",
    "bibandwidth": "Bi-Directional Bandwidth Test",
}
OSU_TYPES = {"float64": "MPI_DOUBLE", "float32": "MPI_FLOAT", "int32": "MPI_INT", "int8": "MPI_CHAR"}

#: What a file says that commbench printed in another tool's format.
PRINTED_BY_COMMBENCH = "Printed by commbench in the format of"


def nccl_program(operation: str) -> str:
    """The program of nccl-tests that measures an operation, or what it would be called."""
    return NCCL_PROGRAMS.get(operation, f"{operation}_perf")
