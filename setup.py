"""Build the compiled core: every compiler directive of the project stands here, once."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

CORE = Path("vpem") / "_core"

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "nonecheck": False,
    "embedsignature": True,
    "freethreading_compatible": False,
}

# What Cython's memoryviews need stands in a module of its own, instead of in every kernel.
SHARED = "vpem._core._shared"

# Portable on purpose: nothing here asks for the instruction set of the building machine. Loops of
# vectors keep their place in cache lines, whatever stands before them; debug symbols take as long
# to write as the kernels.
OPTIMISE = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-falign-functions=64", "-g0"]

# VPEM_SANITIZE=1: an access beyond an array, or what C leaves undefined, ends the process.
SANITIZE = [
    "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer",
    "-g", "-O1",
]  # fmt: skip

# Kernels built under one of these are kept apart from others.
SWITCHES = ("VPEM_NO_OPENMP", "VPEM_SANITIZE")

OPENMP_PROBE = """
#include <omp.h>
int main(void) { int n = 0;
#pragma omp parallel reduction(+:n)
n += 1;
return n < 1 || omp_get_max_threads() < 1; }
"""


def openmp_flag(compiler: list[str]) -> str | None:
    """Return the flag with which ``compiler`` builds and links an OpenMP program, or None."""
    candidates = ["/openmp"] if sys.platform == "win32" else ["-fopenmp"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(OPENMP_PROBE)
        for flag in candidates:
            command = [*compiler, str(source), flag, "-o", str(Path(folder) / "probe")]
            try:
                built = subprocess.run(command, capture_output=True, cwd=folder, check=False)
            except OSError:
                return None
            if built.returncode == 0:
                return flag
    return None


class BuildCore(build_ext):
    """`build_ext` with OpenMP where the compiler has it, whose kernels a clone finds in place."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        if self.inplace:  # a folder that lasts: only kernels that changed are built again
            switches = [name for name in SWITCHES if os.environ.get(name)]
            kind = "-".join([self.plat_name, sys.implementation.cache_tag, *switches])
            self.build_lib = self.build_temp = os.path.join("build", f"kernels-{kind}")

    def run(self) -> None:
        super().run()
        if not self.inplace:  # Python started in the clone takes `vpem/` from there
            self.copy_extensions_to_source()

    def copy_extensions_to_source(self) -> None:
        force, self.force = self.force, True  # over kernels of another kind, though newer
        super().copy_extensions_to_source()
        self.force = force

    def take_clang(self) -> list[str]:
        """Compile by Clang in the place of Microsoft's compiler, which has no types of vectors."""
        found = shutil.which("clang-cl") or r"C:\Program Files\LLVM\bin\clang-cl.exe"
        self.compiler.initialize(self.plat_name)
        self.compiler.cc = found
        self.compiler.compile_options = [
            option for option in self.compiler.compile_options if option != "/GL"
        ]  # what that one alone understands
        return [found]

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "msvc":
            compiler, optimise = self.take_clang(), [f"/clang:{flag}" for flag in OPTIMISE]
        else:
            compiler, optimise = list(self.compiler.compiler), OPTIMISE
        flag = None if os.environ.get("VPEM_NO_OPENMP") else openmp_flag(compiler)
        if flag:
            print(f"vpem: kernels are built with OpenMP threads ({flag})")
        else:
            print("vpem: OpenMP is not available, kernels are built serial (one thread)")
        translated = cythonize(
            self.extensions,
            compiler_directives=DIRECTIVES,
            nthreads=self.parallel,
            quiet=True,
            shared_utility_qualified_name=SHARED,
        )
        for extension, in_c in zip(self.extensions, translated, strict=True):
            extension.sources = in_c.sources
            extension.extra_compile_args += optimise
            if os.environ.get("VPEM_SANITIZE"):
                extension.extra_compile_args += SANITIZE
                extension.extra_link_args += SANITIZE[:1]
            if flag:
                extension.extra_compile_args.append(flag)
                extension.extra_link_args.append(flag)
        super().build_extensions()


def extensions() -> list[Extension]:
    """Return one extension a kernel file, and what they share."""
    headers = [header.as_posix() for header in (CORE / "simd").glob("*")]
    kernels = [
        Extension(f"vpem._core.{path.stem}", [path.as_posix()], depends=headers)
        for path in sorted(CORE.glob("*.pyx"))
    ]
    return [Extension(SHARED, [SHARED.replace(".", "/") + ".c"]), *kernels]


COMMAND_LINE = ("vpem_cli", "vpem_cli.commands", "vpem_cli.study")

if __name__ == "__main__":  # processes that translate kernels load this file too
    setup(
        packages=[*find_packages(include=["vpem", "vpem.*"]), *COMMAND_LINE, "vpem.examples"],
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildCore},
    )
