"""fairseq models; importing this package registers them and their architectures."""

from fairseq_rope.models.architectures import ARCHITECTURES
from fairseq_rope.models.translation import TranslationTransformer

__all__ = ["ARCHITECTURES", "TranslationTransformer"]
