"""The one thing that pyproject.toml cannot say: a C file that is compiled where there is a compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "fdamed.algebra._kernel",
            ["fdamed/algebra/kernel.c"],
            extra_compile_args=["-O3", "-fopenmp"],
            optional=True,
        )
    ]
)
