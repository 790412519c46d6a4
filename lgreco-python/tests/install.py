"""Installs the package for this Python as from a wheel, with a compiled extension module: install.py EXTENSION."""

import pathlib
import re
import shutil
import sys
import sysconfig

folder = pathlib.Path(__file__).parents[1]
site, scripts = (pathlib.Path(sysconfig.get_path(name)) for name in ("purelib", "scripts"))
for old in site.glob("lgreco*"):
    if old.is_dir():
        shutil.rmtree(old)
shutil.copytree(folder / "python/lgreco", site / "lgreco", ignore=shutil.ignore_patterns("__pycache__"))
shutil.copy(sys.argv[1], site / "lgreco/_lgreco.abi3.so")

(version,) = re.findall(r'^version = "(.*)"', (folder.parent / "Cargo.toml").read_text(), re.MULTILINE)
about = site / f"lgreco-{version}.dist-info"
about.mkdir()
(about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: lgreco\nVersion: {version}\n\n{(folder / 'PYPI.md').read_text()}")
((name, module, main),) = re.findall(r'\[project.scripts\]\n(\w+) = "([\w.]+):(\w+)"', (folder / "pyproject.toml").read_text())
script = scripts / name
script.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {main}\nsys.exit({main}())\n")
script.chmod(0o755)
