"""What a person installs: the wheel, the environment file, the documents, and how light an import is."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from rattler import MatchSpec

import ddplab

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("workshop/*.md")]
NOTEBOOKS = [path.relative_to(ROOT) for folder in ("lessons", "solutions") for path in (ROOT / folder).rglob("*.ipynb")]


def python(code: str, interpreter: str | Path = sys.executable, **options) -> str:
    done = subprocess.run([str(interpreter), "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ------------------------------------------------------------------ environment.yml and pyproject.toml


def environment() -> tuple[list[str], list[str]]:
    """The conda specs and the pip arguments of environment.yml."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = [entry for entry in listed if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    return conda, pip


def test_conda_reads_every_spec_and_the_python_bound_is_that_of_pyproject():
    specs = dict(
        str(MatchSpec(text)).partition(" ")[::2] for text in environment()[0]
    )  # name → version, as conda reads it
    assert specs["python"] == PROJECT["requires-python"]
    assert "pip" in specs, "conda warns, and may fail, where pip is used and not listed"


def test_the_environment_names_no_package_that_pyproject_could_name():
    conda, pip = environment()
    assert {re.match(r"[\w-]+", spec)[0] for spec in conda} == {"python", "pip"}
    assert pip == ["-e ."], "pyproject.toml is the one list of packages"


def test_the_environment_satisfies_what_pip_would_install(tmp_path):
    (tmp_path / "pip.txt").write_text("\n".join(environment()[1]))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*command, "-r", str(tmp_path / "pip.txt")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_pin_lies_in_the_range_that_pyproject_states():
    from packaging.requirements import Requirement

    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    ranges = {(it := Requirement(text)).name: it.specifier for group in groups for text in group}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for name, version in pins.items():
        assert ranges.get(name) is None or version in ranges[name], f"{name}=={version} is not {name}{ranges[name]}"
    assert "torch" in pins


# ------------------------------------------------------------------ the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of the tracked files, so that nothing is written into the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", *PROJECT["license-files"]):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "ddplab").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "-w", str(folder), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The Python of a new environment: the wheel is in it, its dependencies are borrowed, the checkout is unknown."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    site = Path(python("import sysconfig; print(sysconfig.get_path('purelib'))", interpreter))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # a plain path line: the dependencies are found, the .pth of our own editable install is not read
    ours = python("import sysconfig; print(sysconfig.get_path('purelib'))")
    (site / "dependencies.pth").write_text(f"{ours}\n")
    return interpreter


def test_the_wheel_holds_every_module_and_the_digits(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        str(path.relative_to(ROOT))
        for kind in ("py", "js", "json", "npz", "toml")
        for path in (ROOT / "ddplab").rglob(f"*.{kind}")
    }
    assert ours == {name for name in packed if name.startswith("ddplab/")}
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert any(name.endswith("licenses/NOTICE") for name in packed), "the credit for the digits travels with them"


def test_the_wheel_works_where_the_repository_is_unknown(installed, tmp_path):
    code = "import ddplab, ddplab.course.data as data; print(ddplab.__file__); print(len(data.digits()))"
    file, images = python(code, installed, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(installed.parent.parent), "not the checkout's"
    assert images == "1437"
    script = tmp_path / "job.py"
    script.write_text(
        "import ddplab, torch, torch.distributed as dist\n"
        "def total():\n    x = torch.ones(1)\n    dist.all_reduce(x)\n    return x.item()\n"
        "if __name__ == '__main__':\n    print(ddplab.launch(total, quiet=True).results)\n"
    )
    done = subprocess.run([installed, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr


def test_a_lesson_opened_outside_the_repository_runs_against_the_wheel(installed, tmp_path):
    lesson = tmp_path / "lesson.ipynb"
    notebook = json.loads((ROOT / "lessons" / "1_one_device/1.1_start_here.ipynb").read_text())
    where = {"cell_type": "code", "execution_count": None, "id": "where", "metadata": {}, "outputs": [],
             "source": "import ddplab\nprint('package:', ddplab.__file__)"}  # fmt: skip
    notebook["cells"].append(where)
    lesson.write_text(json.dumps(notebook))
    kernel = {"argv": [str(installed), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
              "display_name": "wheel", "language": "python"}  # fmt: skip
    spec = tmp_path / "kernels" / "wheel" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(kernel))
    ran = python(
        "import nbformat; from nbclient import NotebookClient\n"
        f"nb = nbformat.read({str(lesson)!r}, 4)\n"
        f"where = {{'metadata': {{'path': {str(tmp_path)!r}}}}}\n"
        "NotebookClient(nb, kernel_name='wheel', timeout=120, resources=where).execute()\n"
        "print(nb.cells[-1].outputs[0].text)",
        env={**os.environ, "JUPYTER_PATH": str(tmp_path), "DDPLAB_PANEL": "off"},
        cwd=tmp_path,
    )
    assert str(installed.parent.parent) in ran.rpartition("package:")[2], ran


# ------------------------------------------------------------------ the public face


def test_the_import_is_light():
    heavy = ["matplotlib", "ipywidgets", "anywidget", "IPython", "torch.utils.data.dataloader", "nbformat", "pytest"]
    before = f"import torch, sys; heavy = {{*{heavy}}} - sys.modules.keys()"
    code = f"{before}; import ddplab; print(sorted(heavy & sys.modules.keys()))"
    assert python(code) == "[]"


def test_the_import_of_a_rank_or_of_what_a_lesson_plays_with_brings_nothing_of_the_notebook_side():
    heavy = "print({'matplotlib', 'ipywidgets', 'anywidget', 'IPython'} & sys.modules.keys())"
    played = ", ".join(f"ddplab.course.{room}" for room in ("claims", "checklist", "plan_explorer", "step_explorer"))
    code = f"import sys, ddplab.worker; {heavy}; import {played}, ddplab.course.switches; {heavy}"
    assert python(code).splitlines() == ["set()", "set()"]


def test_the_public_names_fit_one_screen_and_each_says_what_it_is():
    assert len(ddplab.__all__) <= 20
    assert ddplab.__all__ == sorted(ddplab.__all__)
    for name in ddplab.__all__:
        assert inspect.getdoc(getattr(ddplab, name)), f"ddplab.{name} has no docstring"


def functions(value) -> list:
    """A public function; of a class, the constructor and the public methods that it defines itself."""
    if inspect.isfunction(value):
        return [value]
    names = [name for name in vars(value) if name == "__init__" or not name.startswith("_")]
    found = [inspect.getattr_static(value, name) for name in names]
    found = [member.fget if isinstance(member, property) else member for member in found]
    return [member for member in found if inspect.isfunction(member)]


@pytest.mark.parametrize("name", ddplab.__all__)
def test_every_public_name_has_type_hints(name):
    for function in functions(getattr(ddplab, name)):
        signature = inspect.signature(function)
        where = f"{function.__module__}.{function.__qualname__}"
        for parameter in signature.parameters.values():
            hinted = parameter.annotation is not inspect.Parameter.empty
            assert hinted or parameter.name == "self", f"{where}: {parameter.name} has no type hint"
        returns = signature.return_annotation is not inspect.Signature.empty
        assert returns or function.__name__ == "__init__", f"{where} does not say what it returns"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=str)
def test_notebooks_import_public_names_only(notebook):
    cells = json.loads((ROOT / notebook).read_text())["cells"]
    for cell in cells:
        source = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
        for line in re.finditer(r"^\s*from (ddplab[\w.]*) import (\([^)]*\)|.+)", source, re.MULTILINE):
            names = {alias.name for alias in ast.parse(line[0].strip()).body[0].names}
            assert not any(part.startswith("_") for part in [*line[1].split("."), *names]), line[0]
            if line[1] == "ddplab":
                submodules = {path.stem for path in (ROOT / "ddplab").iterdir()}
                assert names <= {*ddplab.__all__, *submodules}, line[0]


# ------------------------------------------------------------------ the documents


def test_ci_calls_make_test_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_workflows_are_yaml_and_call_make_alone():
    def commands(name):
        [job] = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())["jobs"].values()
        return job, [step["run"] for step in job["steps"] if "run" in step]

    assert commands("test")[1] == ["make test"]
    nightly, steps = commands("nightly")
    assert steps == ["make ${{ matrix.target }}"] and set(nightly["strategy"]["matrix"]["target"]) <= make_targets()
    assert yaml.safe_load((ROOT / "workshop" / "github-exercises.yml").read_text())["jobs"]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_command_in_the_documents_exists(document):
    commands = re.findall(
        r"(?:^ {4}|`|[^`\w])make ([a-z-]+)(?=[ `]*(?:PYTHON|NAME|#|`|$| {2,}))", document.read_text(), re.MULTILINE
    )
    assert set(commands) <= make_targets()
    if document.parent == ROOT and document.name == "README.md":
        assert commands[:2] == ["lab", "test"], "the two commands come first"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_the_documents_resolve(document):
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if not target.startswith(("http", "#")):
            assert (document.parent / target).exists(), f"{document.name} links {target}, which is not there"


def test_the_map_of_lessons_is_complete():
    rows = re.findall(r"^\| (\d\.\d+) \| (.+?) \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(numbers)
    linked = [path for _, lesson, _ in rows for path in re.findall(r"\((lessons/.+?)\)", lesson)]
    assert linked == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "lessons").glob("*/?.[1-9]*.ipynb"))
    for number, _, state in rows:
        for folder in ("exercises", "solutions"):
            there = [f"{path.parent.name}/{path.name}" for path in (ROOT / folder).glob(f"*/{number}_*.ipynb")]
            assert there == re.findall(rf"\({folder}/(.+?)\)", state), f"row {number}, {folder}"


def test_every_word_in_italics_in_the_glossary_has_an_entry():
    text = (ROOT / "GLOSSARY.md").read_text().partition("\n## ")[2]
    entries = [
        entry.lower() for names in re.findall(r"^- \*\*(.+?):\*\*", text, re.MULTILINE) for entry in names.split(", ")
    ]
    assert len(entries) == len(set(entries))
    for word in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", re.sub(r"\s+", " ", text)):
        singular = re.sub(r"(es|s)$", "", word.lower())
        known = any(form in entries for form in (word.lower(), word.lower().removesuffix("s"), singular))
        assert known or word in ("broadcasts",), f"{word!r} is in italics and has no entry"


def test_the_lab_opens_at_the_root_so_that_links_between_notebooks_work():
    """The lessons link to ../exercises and ../README.md, which a server rooted in lessons/ cannot reach."""
    recipe = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (command,) = [line for line in recipe.splitlines() if "jupyter lab" in line]
    assert f'--ServerApp.root_dir="{ROOT}" lessons/1_one_device/1.1_start_here.ipynb' in command


def test_a_script_that_a_text_names_is_there():
    texts = [path for kind in ("*.md", "*.py", "Makefile") for path in ROOT.glob(kind)]
    texts += [path for folder in ("ddplab", "tests", "stress", "tools") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in texts for name in re.findall(r"\b(?:stress|tools|benchmarks)/\w+\.py", path.read_text())}
    assert named and [name for name in sorted(named) if not (ROOT / name).exists()] == []
