"""Recipe for Conan 2: pn::core and pn::cpu under the names that pn's own CMake package and pkg-config files give them.
With -o "pn/*:cpu=False" headers only."""

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir

required_conan_version = ">=2.0"


class Pn(ConanFile):
    name = "pn"
    description = "Codecs and kernels for packed neural-network weights: PN (pn3t, pn4t) and BF16_P12"
    license = "MIT"
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    # No fPIC: the code of a static library is position-independent, too.
    options = {"shared": [True, False], "cpu": [True, False]}
    default_options = {"shared": False, "cpu": True}

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include/pn/version.hpp"))
        self.version = ".".join(re.findall(r"^#define PN_VERSION_\w+ (\d+)$", header, re.M))

    def export_sources(self):
        for name in ("CMakeLists.txt", "LICENSE", "README.md"):
            copy(self, name, self.recipe_folder, self.export_sources_folder)
        for folder, pattern in (("include", "*"), ("src/cpu", "*"), ("cmake", "*.cmake"), ("cmake", "*.in")):
            copy(self, pattern, os.path.join(self.recipe_folder, folder),
                 os.path.join(self.export_sources_folder, folder))

    def configure(self):
        if not self.options.cpu:
            self.package_type = "header-library"
            self.options.rm_safe("shared")

    def package_id(self):
        if not self.info.options.cpu:
            self.info.clear()

    def validate(self):
        check_min_cppstd(self, 17)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["PN_CPU"] = bool(self.options.cpu)
        for part in ("PN_TOOL", "PN_TESTS", "PN_BENCH", "PN_CUDA"):
            toolchain.cache_variables[part] = "OFF"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        cmake = CMake(self)
        for component in ("runtime", "development"):
            cmake.install(component=component)
        # Conan's generators write their own, from package_info.
        for folder in ("lib/cmake", "lib/pkgconfig", "share"):
            rmdir(self, os.path.join(self.package_folder, folder))

    def package_info(self):
        self.cpp_info.set_property("cmake_config_version_compat", "SameMinorVersion")
        core = self.cpp_info.components["core"]
        core.set_property("cmake_target_name", "pn::core")
        core.set_property("pkg_config_name", "pn-core")
        core.bindirs = core.libdirs = []
        if self.options.cpu:
            cpu = self.cpp_info.components["cpu"]
            cpu.set_property("cmake_target_name", "pn::cpu")
            cpu.set_property("pkg_config_name", "pn-cpu")
            cpu.libs = ["pn_cpu"]
            cpu.includedirs = []
            cpu.requires = ["core"]
