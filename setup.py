"""The one thing that pyproject.toml cannot say: three C files that are compiled where there is a compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "fdamed.ops._kernel",
            ["fdamed/ops/kernel.c"],
            extra_compile_args=["-O3", "-fopenmp"],
            optional=True,
        ),
        Extension(
            "fdamed.models._trunk",
            ["fdamed/models/trunk.c"],
            extra_compile_args=["-O3", "-Wno-psabi"],
            optional=True,
        ),
        Extension(
            "fdamed.models._tiles",
            ["fdamed/models/tiles.c"],
            extra_compile_args=["-O3", "-fopenmp", "-Wno-psabi"],
            optional=True,
        ),
    ]
)
