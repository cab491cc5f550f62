"""Build csekit: one installed package whose subpackages are top-level folders of the repository."""

from pathlib import Path

from setuptools import setup

here = Path(__file__).parent
version = next(
    line.split('"')[1]
    for line in (here / "src/csekit/__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)

#: Package to folder: the rooms, and the folders in them that hold code.
rooms = {
    "csekit." + ".".join(folder.relative_to(here).parts): folder.relative_to(here).as_posix()
    for room in ("modeling", "trainers", "encoding", "evaluation")
    for folder in sorted({path.parent for path in (here / room).rglob("*.py")})
}
#: Folders without code whose data is installed: templates of cards, the demo's pairs, the presets.
data = {f"csekit.{path.replace('/', '.')}": path for path in ("model_cards", "examples/demo", "examples/configs")}

dev = [
    "hypothesis>=6.130",
    "mypy>=1.15",
    "playwright>=1.50",
    "pytest>=8.3",
    "pytest-xdist>=3.6",
    "ruff>=0.11",
    "import-linter>=2.16",
    "build>=1.2",
    "twine>=6.1",
]
trackers = ["tensorboard>=2.19", "trackio>=0.21"]
docs = ["mkdocs>=1.6.1,<2", "mkdocs-material>=9.6", "mkdocstrings-python>=1.16"]
plots = ["matplotlib>=3.10"]
space = ["gradio>=6.10", *plots]
st = ["sentence-transformers>=5.4"]
translation = ["sentencepiece>=0.2"]
retrieval = ["pytrec-eval-terrier>=0.5.6"]
mteb = ["mteb>=2.26", *retrieval]
ray = ["ray[data]>=2.60"]
onnx = ["onnx>=1.19", "onnxruntime>=1.25", "onnxscript>=0.6"]
faiss = ["faiss-cpu>=1.10"]
lora = ["peft>=0.18"]
search = ["optuna>=5.0"]

setup(
    name="csekit",
    version=version,
    description="Sentence embeddings without labels: contrastive methods as Transformers models",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=["csekit", "csekit.cli", *rooms, *data],
    package_dir={"": "src", **rooms, **data},
    package_data={
        "csekit": ["py.typed"],
        "csekit.evaluation.report": ["papers.yaml", "templates/*"],
        "csekit.model_cards": ["*.jinja"],
        "csekit.examples.demo": ["*.tsv"],
        "csekit.examples.configs": ["*.yaml", "pretraining/*.yaml"],
    },
    install_requires=[
        "torch>=2.11",
        "transformers>=5.15,<6",
        "accelerate>=1.12",
        "datasets>=4.4",
        "evaluate>=0.4.6",
        "filelock>=3.16",
        "huggingface_hub>=1.5",
        "jinja2>=3.1.6",
        "numpy>=2.1",
        "psutil>=6.1",
        "pydantic>=2.11",
        "safetensors>=0.8",
        "pyyaml>=6.0.1",
        "scikit-learn>=1.6",
        "scipy>=1.15",
        "rich>=13.9",
        "typer>=0.16",
        "xxhash>=3.5",
    ],
    extras_require={
        "dev": [
            *dev,
            *st,
            *plots,
            *mteb,
            *docs,
            *space,
            *onnx,
            *ray,
            *trackers,
            *translation,
            *faiss,
            *lora,
            *search,
            "model2vec>=0.6",
            "sentencex>=1.0",
        ],
        "docs": docs,
        "trackers": trackers,
        "space": space,
        "st": st,
        "plots": plots,
        "translation": translation,
        "retrieval": retrieval,
        "mteb": mteb,
        "ray": ray,
        "onnx": onnx,
        "faiss": faiss,
        "lora": lora,
        "search": search,
    },
    entry_points={"console_scripts": ["csekit = csekit.cli:main"]},
)
