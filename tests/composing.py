"""What fairseq's programs spend most of a short run on in one process, done once: hydra composes their options.

Each run hands hydra some 250 overrides, ``NAME.OPTION=VALUE`` after a few ``GROUP=CHOICE``. hydra parses every one of
them with a grammar and loads and merges the groups' defaults anew, for 0.3 s. A parsed override and the composed choice
of groups are the same each time, so they are kept here; the values are applied by hydra's own function. hydra also
finds the folder of its files by going through all callers, of which pytest has many; here it is told.
"""

import copy
import functools
from pathlib import Path

from fairseq.dataclass import utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental import initialize_config_dir
from omegaconf import OmegaConf

stock = utils.compose
stock_initialize = utils.initialize
_composed = {}
_parsed = functools.lru_cache(maxsize=None)(lambda line: OverridesParser.create().parse_overrides([line])[0])


def initialize(config_path):
    """``hydra.experimental.initialize`` as the module of fairseq that composes would call it."""
    return initialize_config_dir(str((Path(utils.__file__).parent / config_path).resolve()))


def _is_choice(line):
    return "." not in line.partition("=")[0]


def _registered():
    """The groups that hydra knows, and the identity of each of their choices: a new or replaced one composes anew."""
    groups = ConfigStore.instance().repo
    return tuple((name, *map(id, group.values())) for name, group in groups.items() if isinstance(group, dict))


def compose(config_name, overrides, strict):
    """``hydra.experimental.compose`` for fairseq's overrides; the result is the caller's own."""
    choices = tuple(filter(_is_choice, overrides))
    key = (config_name, choices, strict, _registered())
    if key not in _composed:
        _composed[key] = stock(config_name, overrides=list(choices), strict=strict)
    config = copy.deepcopy(_composed[key])
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config([_parsed(line) for line in overrides if not _is_choice(line)], config)
    OmegaConf.set_struct(config, strict)
    return config


def install():
    """Let fairseq's programs in this process compose so."""
    utils.initialize, utils.compose = initialize, compose
