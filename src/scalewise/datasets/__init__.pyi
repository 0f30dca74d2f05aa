from .contract import BatchedDataset as BatchedDataset
from .tokenize import load_index as load_index
from .tokenize import token_count as token_count
from .tokenize import tokenize_text as tokenize_text
