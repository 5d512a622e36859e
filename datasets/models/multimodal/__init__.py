"""Models of several kinds of input: CLIP, Whisper and the recommender DLRM."""

from parenvs.datasets.models.multimodal.clip import clip
from parenvs.datasets.models.multimodal.dlrm import dlrm
from parenvs.datasets.models.multimodal.whisper import whisper

__all__ = ["clip", "dlrm", "whisper"]
