"""Installs fairseq_rope: `pip install .` (or `pip install -e '.[test]'` to work on it)."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent

# The stack that the tests run on. torch is pinned because a range lets pip pick another build of several
# gigabytes; ve-fairseq is fairseq's last main branch with wheels, for Linux x86-64 and Python 3.11 and 3.12.
STACK = [
    "torch==2.13.0",
    've-fairseq==0.12.3; sys_platform == "linux" and platform_machine == "x86_64"',
    "numpy>=1.26,<3",
    "hydra-core>=1.3.2,<1.4",
    "omegaconf>=2.3,<2.4",
    "sacrebleu>=2.3,<3",
]
TEXT = ["sacremoses>=0.1.1", "sentencepiece>=0.2", "subword-nmt>=0.3.8", "matplotlib>=3.8", "tqdm>=4.66"]
DEPLOY = ["ctranslate2>=4.8"]  # for fairseq-rope-export, and for translating with what it writes
TEST = [*DEPLOY, "pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100", "ruff>=0.6"]
TEST += ["transformers>=4.44,<6", "x-transformers>=2.31,<3"]  # other implementations to compare with

setup(
    name="fairseq-rope",
    version="0.1.0",
    description="Rotary-position Transformers for machine translation as a fairseq plugin",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["fairseq_rope", "fairseq_rope.*"]),
    package_data={"fairseq_rope": ["config/*/*.yaml"]},
    install_requires=STACK + TEXT,
    extras_require={"deploy": DEPLOY, "test": TEST},
    entry_points={
        "console_scripts": [
            "fairseq-rope-average = fairseq_rope.cli.average:main",
            "fairseq-rope-doctor = fairseq_rope.cli.doctor:main",
            "fairseq-rope-export = fairseq_rope.cli.export:main",
            "fairseq-rope-fold = fairseq_rope.cli.fold:main",
            "fairseq-rope-prepare = fairseq_rope.cli.prepare:main",
            "fairseq-rope-plot = fairseq_rope.cli.plot:main",
            "fairseq-rope-score = fairseq_rope.cli.score:main",
            "fairseq-rope-translate = fairseq_rope.cli.translate:main",
        ]
    },
)
