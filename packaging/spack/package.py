# A Spack recipe. Untried: it was checked as Python, never by Spack. In a repository of your own (spack repo create), put it at
# packages/lockstep/package.py; `spack install lockstep` builds a checkout: spack dev-build lockstep@main, in its folder.
from spack.package import *


class Lockstep(CMakePackage, CudaPackage):
    """Data-parallel training of neural networks on clusters, with the same bits on any number of ranks."""

    license("MIT")

    # No url: `spack dev-build lockstep@main` builds the folder that it is called in.
    version("main")

    variant("shared", default=True, description="Make the library liblockstep.so instead of liblockstep.a")
    variant("cuda", default=False, description="Compute on GPUs, too")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type=("build", "run"))
    depends_on("openmpi@4:")
    depends_on("hwloc@2.1:")
    depends_on("hdf5")
    depends_on("onednn@2.6:")
    depends_on("openblas threads=openmp", when="target=aarch64:")
    depends_on("boost@1.74:+program_options")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10:+fmt_external")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash")
    depends_on("zlib-api")
    depends_on("libpng")
    depends_on("pcre2+jit")
    depends_on("utf8proc")
    depends_on("libjpeg-turbo")
    depends_on("eigen@3.3:", type="build")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9.10:")
        depends_on("nccl@2.26:")

    conflicts("%gcc@:11", msg="Lockstep is C++20: GCC 12 or newer")
    conflicts("%clang@:13", msg="Lockstep is C++20: Clang 14 or newer")
    for below in ("5", "6", "7"):
        conflicts(f"cuda_arch={below}0", when="+cuda", msg="Lockstep needs GPUs of compute capability 8.0 or newer")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("LOCKSTEP_CUDA", "cuda"),
            self.define("LOCKSTEP_TESTS", False),
            # Spack's compiler wrapper passes the target's -march.
            self.define("LOCKSTEP_ARCH", ""),
        ]
        if self.spec.satisfies("+cuda"):
            architectures = self.spec.variants["cuda_arch"].value
            kinds = "all" if architectures == ("none",) else ";".join(architectures)
            args += [
                self.define("LOCKSTEP_CUDA_ARCHITECTURES", kinds),
                self.define("CUDNN_ROOT", self.spec["cudnn"].prefix),
                self.define("NCCL_ROOT", self.spec["nccl"].prefix),
            ]
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.lockstep)("--version")
