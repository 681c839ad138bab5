"""What pyproject.toml cannot say: the packages, and the optional compiled kernel (docs/install.md)."""

import hashlib
import os
import re
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

SOURCES = ("rmqha/wire/_kernel.pyx", "rmqha/wire/_sends.pxi", "rmqha/wire/_units.pxi", "rmqha/wire/_index.pxi")
"""The kernel's; the first one includes the others."""
WISHES = {"": None, "yes": True, "no": False}


def kernel() -> list[Extension]:
    """The kernel to build: none where ``RMQHA_EXTENSION`` is ``no``, and one that must not fail where it is ``yes``."""
    text = os.environ.get("RMQHA_EXTENSION", "")
    if text not in WISHES:
        raise SystemExit(f"RMQHA_EXTENSION is {text!r}: it may be yes, no, or not set")
    wish, unsupported = WISHES[text], sysconfig.get_config_var("Py_GIL_DISABLED")
    if wish and unsupported:
        raise SystemExit("RMQHA_EXTENSION=yes: the kernel does not support Pythons without a GIL")
    if wish is False or unsupported:
        return []
    source = b"".join(Path(name).read_bytes() for name in SOURCES)
    (version,) = re.findall('^__version__ = "(.+)"$', Path("rmqha/__init__.py").read_text(), re.MULTILINE)
    macros = [
        ("RMQHA_VERSION", f'"{version}"'),
        ("RMQHA_SOURCE", f'"{hashlib.sha256(source).hexdigest()}"'),
    ]
    first, *others = SOURCES
    return [Extension("rmqha.wire._kernel", [first], define_macros=macros, depends=others, optional=not wish)]


setup(
    packages=[*find_packages(include=["rmqha", "rmqha.*"]), "rmqha.web.templates", "twisted.plugins"],
    py_modules=["pyspark_rmqha", "pyspark_rmqha_archive"],  # found by Spark by its name
    package_dir={"": "."},  # an editable install is then a plain path entry, which twistd's plugin search needs
    package_data={
        "rmqha": ["py.typed", "settings/java_settings.txt", "pipeline/log4j2.properties"],
        "rmqha.web.templates": ["*.html"],
    },
    ext_modules=kernel(),
    zip_safe=False,
)
