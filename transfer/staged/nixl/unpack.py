"""Unpacks what an agent with UCX needs of a wheel of NIXL: unpack.py WHEEL FOLDER.

The rest, half of the wheel, is other plugins and bindings of Python.
"""
import re
import sys
import zipfile

NEEDED = re.compile(
    r"\.nixl_cu\d+\.mesonpy\.libs/(plugins/libplugin_UCX|lib[^/]*)\.so[.\d]*"
    r"|nixl_cu\d+\.libs/(lib[^/]*|ucx/libu[^/]*)\.so[.\d]*"
)

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        if NEEDED.fullmatch(name):
            wheel.extract(name, sys.argv[2])
