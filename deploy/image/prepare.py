"""Gather what the operator's image is made of, so that building it needs no network.

Into a folder, which is then the whole context of the build: the wheels that ``requirements.txt``
pins, for the Python and the processor of the base image, each compared with its hash; the
operator's own wheel; the pins that apply; and the list of materials (CycloneDX).
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

HERE = Path(__file__).parent
REPO = HERE.parents[1]
# glibc versions that wheels may be published for, up to Debian 12's; pip does not add older ones.
GLIBC = tuple(f"2_{minor}" for minor in range(5, 37))
ASK = "import platform; print(platform.python_version(), platform.machine())"


def main() -> None:
    """Fill the folder, or only say what would be in the image."""
    arguments = _parser().parse_args()
    python, machine = arguments.python, arguments.machine
    if arguments.base:
        python, machine = _inside(arguments.base)
    folder: Path = arguments.folder
    wheels, pins = folder / "wheels", folder / "requirements.txt"
    shutil.rmtree(wheels, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    source = HERE / f"requirements{f'-{arguments.extra}' if arguments.extra else ''}.txt"
    pins.write_text("".join(applying(source.read_text(), python)))
    _list_materials(pins, folder / "sbom.cdx.json")
    if not arguments.materials:
        _download(pins, wheels, python, machine)
        _all_there(pins, wheels)
        _run(sys.executable, "-m", "build", "--wheel", f"--outdir={wheels}", REPO)
        shutil.copy(HERE / "Dockerfile", folder)
    size = sum(wheel.stat().st_size for wheel in wheels.glob("*.whl")) / 1e6
    count = pins.read_text().count("==")
    sys.stdout.write(f"{folder}: {count} pins, {size:.0f} MB, Python {python} {machine}\n")


def applying(text: str, python: str) -> Iterator[str]:
    """Return the pins, with their hashes, that hold for a version of Python.

    Without their conditions: pip asks those of the Python that it runs on, whatever it is told.
    """
    names = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    for pin in re.split(r"(?m)^(?=\S)", text)[1:]:
        head, _, hashes = pin.partition(" \\\n")
        requirement = Requirement(head)
        if requirement.marker is None or requirement.marker.evaluate(names):
            yield f"{requirement.name}{requirement.specifier} \\\n{hashes}"


def _list_materials(pins: Path, file: Path) -> None:
    """Write the list of materials of such pins; the same pins give the same bytes."""
    command = ("cyclonedx_py", "requirements", pins, f"--pyproject={REPO / 'pyproject.toml'}")
    _run(sys.executable, "-m", *command, "--output-reproducible", f"--output-file={file}")


def _download(pins: Path, into: Path, python: str, machine: str) -> None:
    """Wheels only, and only such as have a pinned hash."""
    platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in GLIBC]
    platforms += [f"--platform=manylinux{year}_{machine}" for year in (1, 2010, 2014)]
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    checked = ("--require-hashes", "--only-binary=:all:", "--no-deps", f"--requirement={pins}")
    _run(*command, *checked, f"--python-version={python}", *platforms, f"--dest={into}")


def _all_there(pins: Path, wheels: Path) -> None:
    """Stop where a pinned package has no wheel: the image would lack it and start all the same."""
    pinned = {canonicalize_name(name) for name in re.findall(r"(?m)^(\S+)==", pins.read_text())}
    got = {parse_wheel_filename(wheel.name)[0] for wheel in wheels.iterdir()}
    if pinned != got:
        sys.exit(f"pinned and not downloaded, or the reverse: {sorted(pinned ^ got)}")


def _inside(base: str) -> tuple[str, str]:
    """Version of Python and processor of a base image."""
    asked = ("docker", "run", "--rm", "--entrypoint=python3", base, "-c", ASK)
    told = subprocess.run(asked, check=True, capture_output=True, text=True)  # noqa: S603
    python, machine = told.stdout.split()
    return python, machine


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        words = " ".join(str(word) for word in command)
        sys.exit(f"{words} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the context of docker build")
    parser.add_argument("--base", help="base image to ask for its Python; needs Docker")
    parser.add_argument("--python", default=platform.python_version(), help="such as 3.13.1")
    parser.add_argument("--machine", default=platform.machine(), help="x86_64 or aarch64")
    parser.add_argument("--extra", choices=["bayes"], help="what the image has besides")
    parser.add_argument("--materials", action="store_true", help="only pins and list of materials")
    return parser


if __name__ == "__main__":
    main()
