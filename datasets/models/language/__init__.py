"""Models of text: BERT, T5, GPT-3, Llama 3, Mixtral and a recurrent language model."""

from parenvs.datasets.models.language.bert import bert
from parenvs.datasets.models.language.gpt import gpt
from parenvs.datasets.models.language.llama import llama
from parenvs.datasets.models.language.lstm import lstm
from parenvs.datasets.models.language.mixtral import mixtral
from parenvs.datasets.models.language.t5 import t5

__all__ = ["bert", "gpt", "llama", "lstm", "mixtral", "t5"]
