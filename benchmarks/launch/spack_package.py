"""A Spack recipe: copy it to packages/py-commbench/package.py of a repository, then `spack install
py-commbench`.
"""

from spack.package import *


class PyCommbench(PythonPackage):
    """Times MPI, Gloo and NCCL collectives and DDP training, and says which DDP setting to use."""

    # The directory of this checkout, or its address: spack install py-commbench@main
    git = "file:///path/to/commbench"

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="Measure MPI")
    variant("torch", default=True, description="Measure Gloo and DDP training")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    for _name in (
        "numpy",
        "pandas",
        "scipy",
        "typer",
        "typing-extensions",
        "rich",
        "matplotlib",
        "jinja2",
        "psutil",
    ):
        depends_on(f"py-{_name}", type=("build", "run"))
    depends_on("py-numba", type=("build", "run"))
    depends_on("mpi", type=("build", "link", "run"), when="+mpi")
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")
    depends_on("py-torch+distributed", type=("build", "run"), when="+torch")
